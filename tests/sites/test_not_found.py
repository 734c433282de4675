"""What is said where `where` chooses nothing: what may have been meant, and what there
is.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from twin_case import linear

import peex as px


class Codec(eqx.Module):
    """Can't be called itself."""

    enc: eqx.nn.Linear
    scale: float = 2.0

    def _private(self, x):
        return x

    def encode(self, x):
        return self.scale * self.enc(x)


class Block(eqx.Module):
    attn: eqx.nn.Linear
    parts: dict[str, list[eqx.nn.Linear]]

    def __call__(self, x):
        return self.attn(x)


class Model(eqx.Module):
    layers: list[Block]
    codec: Codec
    activation: Any

    def __init__(self):
        block = lambda i: Block(linear(3, 3, i), {"mlp": [linear(3, 3, i)]})
        self.layers = [block(0), block(1)]
        self.codec = Codec(linear(3, 3, 4))
        self.activation = jax.nn.relu

    def __call__(self, x):
        for layer in self.layers:
            x = self.activation(layer(x))
        return self.codec.encode(x)


MODEL = Model()
INSIDE = (
    r"If {0!r} is a value inside of a forward pass, write '{1}' \(of the module "
    r"'{2}'\) or '\*\*/{0}' \(of any module\)"
)
HOLDS = (
    "What it names isn't called, but holds modules that are: write '{}' for these, as "
    "'{}'"
)
MEANT = {
    "relu": INSIDE.format("relu", "./relu", "."),
    "softmaxx": INSIDE.format("softmaxx", "./softmaxx", "."),
    "layers.0.tanh": INSIDE.format("tanh", "layers.0/tanh", "layers.0"),
    "layers.*.attn.add": INSIDE.format("add", r"layers.\*.attn/add", "layers.0.attn"),
    "layers": HOLDS.format(r"layers\.\*", r"layers\.0") + r"\. Nearest keys: 'layers",
    "layers.0.parts": HOLDS.format(r"layers.0.parts.\*\*", "layers.0.parts.mlp.0"),
    "layers.*.parts.mlp": HOLDS.format(
        r"layers.\*.parts.mlp.\*", "layers.0.parts.mlp.0"
    ),
    "codec": HOLDS.format(r"codec.\*", "codec.enc")
    + "; or 'codec:encode' for a method",
    "codec.enc.weight": "'codec.enc.weight' is an array, of which nothing is called: "
    "its gradient is in that of the model. Hook the module that reads it",
}


def raises(match, error=px.SiteNotFoundError):
    return pytest.raises(error, match=match)


@pytest.mark.parametrize("where", MEANT)
def test_what_was_meant(where):
    match = r"matches nothing in the model\. " + MEANT[where]
    for wrapper in (px.ForwardHook, px.BackwardHook):
        with raises(match):
            wrapper(MODEL, where=where)
        with raises(match):
            wrapper(MODEL, where=["layers.0", where])


def test_what_is_told_to_be_written_is_right():
    x = jnp.ones(3)
    for where in ("./relu", "**/relu", "layers.*", "codec:encode", "layers.0.attn/add"):
        assert list(px.ForwardHook(MODEL, where=where)(x)[1])
    for where in ("layers.0.parts.**", "layers.*.parts.mlp.*", "codec.*"):
        px.ForwardHook(MODEL, where=where)


@pytest.mark.parametrize("where", ["layer.0", "frist", "codec.encc", "nope!"])
def test_what_was_only_written_wrong(where):
    with raises(r"matches nothing in the model\. (Nearest|If)"):
        px.ForwardHook(MODEL, where=where)
    if where != "frist":
        with raises(r"matches nothing in the model\. Nearest keys"):
            px.ForwardHook(MODEL, where=where)


def test_nearest_keys_first_then_all():
    match = (
        r"Nearest keys: 'layers.1.attn', 'layers.0.attn'(?=.*'codec.enc')(?=.*'\.')"
        "(?=.*'activation')(?=.*'layers.0.parts.mlp.0')"
    )
    with raises(match):
        px.ForwardHook(MODEL, where="layers.1.atn")
    many = eqx.nn.Sequential([linear(2, 2, 0)] * 30)
    with raises(r"Nearest keys: '.*', and 11 more\. A pattern is a dotted path"):
        px.ForwardHook(many, where="layers.31")


def test_a_class_that_matches_nothing():
    match = (
        "`where='Conv1d'` matches nothing in the model. The classes of its callable "
        "modules are: Model, Block, Linear.$"
    )
    for where in (eqx.nn.Conv1d, ["layers.0", eqx.nn.Conv1d]):
        with raises(match):
            px.ForwardHook(MODEL, where=where)


def test_a_class_that_is_not_called():
    match = (
        "`where='Codec'` matches nothing in the model. 'codec' is one, but isn't "
        "called itself: name the method that is, as in `where='codec:encode'`"
    )
    with raises(match):
        px.ForwardHook(MODEL, where=Codec)


NODES = {
    "module": (MODEL.layers[1], "got a module, Block. Write `where='layers.1'`, or"),
    "function": (
        MODEL.activation,
        "got a function to be hooked, relu. Write `where='activation'`, or a `lambda",
    ),
    "module of another model": (
        linear(3, 3, 7),
        "got a module, Linear. It isn't part of this model, of which a node may be",
    ),
    "function of JAX": (
        jax.nn.gelu,
        r"got a function to be hooked, gelu. Write `where='./gelu'` for what it "
        r"computes in the model's own forward pass, `where='\*\*/gelu'` for that",
    ),
    "function of jax.numpy": (jnp.maximum, "got a function to be hooked, maximum"),
}


@pytest.mark.parametrize("name", NODES)
def test_a_node_in_the_place_of_its_name(name):
    where, match = NODES[name]
    for given in (where, ["layers.0", where]):
        with raises(
            "`where` is a pattern, a class, a list .* nodes; " + match, TypeError
        ):
            px.ForwardHook(MODEL, where=given)


def test_a_function_that_fails_says_what_it_is_called_with():
    def fails(model):
        return model.blocks

    with pytest.raises(AttributeError, match="no attribute 'blocks'") as error:
        px.ForwardHook(MODEL, where=fails)
    assert error.value.__notes__ == [
        "`where` was given a function: it is called with the model, and returns nodes "
        "of it, as `lambda m: [m.layers[0], m.head]`."
    ]


def test_a_partial_is_a_function_of_the_model():
    where = eqx.Partial(lambda i, m: m.layers[i], 1)
    _, log = px.ForwardHook(MODEL, where=where)(jnp.ones(3))
    assert list(log) == ["layers.1"]
