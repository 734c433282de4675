"""Which sites `where` chooses, and what they are called."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from closeness import assert_close

import peex as px


def linear(seed=0):
    return eqx.nn.Linear(2, 2, key=jax.random.key(seed))


class Attention(eqx.Module):
    proj: eqx.nn.Linear
    out: eqx.nn.Linear

    def __call__(self, x):
        return self.out(self.proj(x))


class Block(eqx.Module):
    norm: eqx.nn.LayerNorm
    attn: Attention

    def __call__(self, x):
        return x + self.attn(self.norm(x))


class Embed(eqx.Module):
    weight: jax.Array

    def __call__(self, x):
        return self.weight @ x

    def attend(self, x):
        return self.weight.T @ x


class Model(eqx.Module):
    embed: Embed
    layers: list[Block]
    norm: eqx.nn.LayerNorm
    activation: Any

    def __init__(self):
        self.embed = Embed(jnp.eye(2) * 2)
        self.layers = [
            Block(eqx.nn.LayerNorm(2), Attention(linear(2 * i), linear(2 * i + 1)))
            for i in range(2)
        ]
        self.norm = eqx.nn.LayerNorm(2)
        self.activation = jnp.tanh

    def __call__(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.embed.attend(self.activation(self.norm(x)))


MODEL = Model()
X = jnp.array([0.5, -2.0])
LEAVES = [
    "embed",
    "layers.0.norm",
    "layers.0.attn.proj",
    "layers.0.attn.out",
    "layers.1.norm",
    "layers.1.attn.proj",
    "layers.1.attn.out",
    "norm",
]
# Post hooks: a container's output comes after its parts'.
ALL = [
    "embed",
    "layers.0.norm",
    "layers.0.attn.proj",
    "layers.0.attn.out",
    "layers.0.attn",
    "layers.0",
    "layers.1.norm",
    "layers.1.attn.proj",
    "layers.1.attn.out",
    "layers.1.attn",
    "layers.1",
    "norm",
    ".",
]


def keys(model, where, x=X, **kwargs):
    _, log = px.ForwardHook(model, where=where, **kwargs)(x)
    return list(log)


CASES = [
    (None, LEAVES),
    ("**", ALL),
    (".", ["."]),
    ("norm", ["norm"]),
    ("layers.0", ["layers.0"]),
    ("layers.*", ["layers.0", "layers.1"]),
    ("layers.*.attn", ["layers.0.attn", "layers.1.attn"]),
    (
        "layers.*.*",
        ["layers.0.norm", "layers.0.attn", "layers.1.norm", "layers.1.attn"],
    ),
    ("*", ["embed", "norm"]),
    ("*.0", ["layers.0"]),
    ("**.norm", ["layers.0.norm", "layers.1.norm", "norm"]),
    ("layers.**.out", ["layers.0.attn.out", "layers.1.attn.out"]),
    ("layers.0.**", ALL[1:6]),
    ("**.attn.**", [*ALL[2:5], *ALL[8 - 1 : 10]]),
    ("embed:attend", ["embed:attend"]),
    ("*:attend", ["embed:attend"]),
    (["embed", "embed:attend"], ["embed", "embed:attend"]),
    ("embed:__call__", ["embed"]),
    ("activation", ["activation"]),
    ("**.activation", ["activation"]),
    (["norm", "activation"], ["norm", "activation"]),
    (("norm", "layers.1.norm"), ["layers.1.norm", "norm"]),
    (["norm", "**.norm"], ["layers.0.norm", "layers.1.norm", "norm"]),
    (Block, ["layers.0", "layers.1"]),
    (eqx.nn.LayerNorm, ["layers.0.norm", "layers.1.norm", "norm"]),
    ((Embed, Attention), ["embed", "layers.0.attn", "layers.1.attn"]),
    ([Embed, "norm"], ["embed", "norm"]),
    (Model, ["."]),
    (eqx.Module, ALL),
    (lambda m: m.layers[1].attn, ["layers.1.attn"]),
    (lambda m: [m.norm, m.embed], ["embed", "norm"]),
    (lambda m: (m.norm, m.embed), ["embed", "norm"]),
    (lambda m: m, ["."]),
    (lambda m: m.activation, ["activation"]),
    (lambda m: [m.norm, m.activation], ["norm", "activation"]),
    (lambda m: [b.attn for b in m.layers], ["layers.0.attn", "layers.1.attn"]),
]


@pytest.mark.parametrize(("where", "expected"), CASES, ids=range(len(CASES)))
def test_where(where, expected):
    assert keys(MODEL, where) == expected
    hooked = px.BackwardHook(MODEL, where=where).init(X)
    assert sorted(hooked.log) == sorted(expected)


def test_values():
    _, log = px.ForwardHook(MODEL, where=["embed", "embed:attend", "activation", "."])(
        X
    )
    x = MODEL.embed.weight @ X
    assert jnp.array_equal(log["embed"], x)
    x = MODEL.layers[1](MODEL.layers[0](x))
    activated = jnp.tanh(MODEL.norm(x))
    assert_close(log["activation"], activated)
    out = MODEL(X)
    assert_close(log["embed:attend"], out)
    assert_close(log["."], out)


def test_leaf_root():
    layer = linear()
    assert keys(layer, None) == ["."]
    assert keys(layer, ".") == ["."]
    assert keys(layer, "**") == ["."]
    assert keys(layer, eqx.nn.Linear) == ["."]
    assert keys(layer, lambda m: m) == ["."]


def test_containers():
    class Containers(eqx.Module):
        layers: dict[str, Any]

        def __call__(self, x):
            x = self.layers["first"](x)
            for layer in (*self.layers["rest"], self.layers["table"][3]):
                x = layer(x)
            return x

    rest = (linear(1), {"inner": linear(2)}["inner"])
    model = Containers({"first": linear(0), "rest": rest, "table": {3: linear(4)}})
    expected = ["layers.first", "layers.rest.0", "layers.rest.1", "layers.table.3"]
    assert keys(model, None) == expected
    assert keys(model, "layers.*") == ["layers.first"]
    assert keys(model, "layers.rest.*") == expected[1:3]
    assert keys(model, "layers.**") == expected


def test_dict_in_list():
    class Dicts(eqx.Module):
        blocks: list[dict[str, eqx.nn.Linear]]

        def __call__(self, x):
            for block in self.blocks:
                x = block["up"](block["down"](x))
            return x

    model = Dicts(
        [{"up": linear(0), "down": linear(1)}, {"up": linear(2), "down": linear(3)}]
    )
    assert keys(model, "blocks.*.up") == ["blocks.0.up", "blocks.1.up"]
    assert keys(model, None) == [
        "blocks.0.down",
        "blocks.0.up",
        "blocks.1.down",
        "blocks.1.up",
    ]


def test_dotted_dict_key():
    # As in models that were ported from PyTorch: the key is matched as it is shown.
    class Ported(eqx.Module):
        modules: dict[str, eqx.nn.Linear]

        def __call__(self, x):
            return self.modules["h.0.attn"](x)

    model = Ported({"h.0.attn": linear()})
    assert keys(model, None) == ["modules.h.0.attn"]
    assert keys(model, "modules.h.0.attn") == ["modules.h.0.attn"]
    assert keys(model, "modules.h.*.attn") == ["modules.h.0.attn"]


class Tied(eqx.Module):
    first: eqx.nn.Linear
    second: eqx.nn.Linear
    act1: Any = jnp.tanh
    act2: Any = jnp.tanh

    def __call__(self, x):
        return self.act2(self.second(self.act1(self.first(x))))


def test_tied_layers_have_two_keys():
    layer = linear()
    model = Tied(layer, layer)
    assert keys(model, None) == ["first", "second"]
    assert keys(model, "second") == ["second"]
    assert keys(model, eqx.nn.Linear) == ["first", "second"]
    _, log = px.ForwardHook(model, where="second")(X)
    assert_close(log["second"], layer(jnp.tanh(layer(X))))


def test_function_names_one_of_tied_nodes():
    # As with `eqx.tree_at`, it is the place that is named, not the object there.
    layer = linear()
    model = Tied(layer, layer)
    assert keys(model, lambda m: m.second) == ["second"]
    assert keys(model, lambda m: m.act2) == ["act2"]
    assert keys(model, lambda m: [m.first, m.act2]) == ["first", "act2"]


def test_function_returns_nodes_found_before():
    node = MODEL.layers[1].attn
    assert keys(MODEL, lambda m: node) == ["layers.1.attn"]


def test_lambda_module():
    model = eqx.nn.Sequential([linear(), eqx.nn.Lambda(jnp.tanh), linear(1)])
    assert keys(model, None) == ["layers.0", "layers.1", "layers.2"]
    assert keys(model, eqx.nn.Lambda) == ["layers.1"]
    assert keys(model, "layers.1.fn") == ["layers.1.fn"]
    assert keys(model, lambda m: m.layers[1].fn) == ["layers.1.fn"]


def test_mlp_activation():
    mlp = eqx.nn.MLP(2, 2, 3, 2, key=jax.random.key(0))
    expected = ["layers.0", "layers.1", "layers.2"]
    assert keys(mlp, None) == expected
    assert keys(mlp, "**") == [*expected, "."]
    _, log = px.ForwardHook(mlp, where="activation")(X)
    assert list(log) == ["activation", "activation#1"]
    hidden = jax.nn.relu(mlp.layers[0](X))
    assert_close(log["activation"], hidden)
    assert_close(log["activation#1"], jax.nn.relu(mlp.layers[1](hidden)))


class Codec(eqx.Module):
    enc: eqx.nn.Linear
    dec: eqx.nn.Linear

    def encode(self, x):
        return jnp.tanh(self.enc(x))

    def decode(self, z):
        return self.dec(z)


class Holder(eqx.Module):
    codec: Codec

    def __call__(self, x):
        return self.codec.decode(self.codec.encode(x))


def test_module_without_call():
    model = Holder(Codec(linear(0), linear(1)))
    assert keys(model, None) == ["codec.enc", "codec.dec"]
    assert keys(model, "**") == ["codec.enc", "codec.dec", "."]
    assert keys(model, "codec:encode") == ["codec:encode"]
    expected = ["codec:encode", "codec:decode"]
    assert keys(model, ["codec:encode", "codec:decode"]) == expected
    _, log = px.ForwardHook(model, where="codec:encode")(X)
    assert_close(log["codec:encode"], model.codec.encode(X))
    with pytest.raises(
        px.SiteNotFoundError, match="Nearest keys: 'codec.enc', 'codec.dec'"
    ):
        px.ForwardHook(model, where="codec")


def test_methods_are_sites_of_leaf_modules_too():
    _, log = px.ForwardHook(MODEL, where=["embed", "embed:attend"])(X)
    assert list(log) == ["embed", "embed:attend"]
