"""`where` as a dict: the user's own names for sites, which become the keys."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from closeness import assert_close
from parts import Chain
from twin_case import linear
from twin_models import MLP

import peex as px


MODEL = MLP(3, 4, 2, key=jr.key(0))
X = jr.normal(jr.key(1), (3,))


class Block(eqx.Module):
    attn: eqx.nn.MultiheadAttention
    norm: eqx.nn.LayerNorm

    def __call__(self, x):
        return jax.vmap(self.norm)(x + self.attn(x, x, x))


class Model(eqx.Module):
    blocks: list[Block]
    norm: eqx.nn.LayerNorm

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return jax.vmap(self.norm)(x)


def deep():
    make = lambda i: Block(
        eqx.nn.MultiheadAttention(2, 4, key=jr.key(i)), eqx.nn.LayerNorm(4)
    )
    return Model([make(0), make(1)], eqx.nn.LayerNorm(4))


DEEP = deep()
TOKENS = jr.normal(jr.key(2), (5, 4))


def logged(where, model=DEEP, x=TOKENS):
    return px.ForwardHook(model, where=where)(x)[1]


def test_names_are_the_keys():
    where = {"hidden": "linear1", "given": "linear2:in", "resid": "."}
    log = logged(where, MODEL, X)
    hidden = MODEL.linear1(X)
    assert list(log) == ["hidden", "given", "resid"]
    np.testing.assert_array_equal(log["hidden"], hidden)
    np.testing.assert_array_equal(log["given"], jax.nn.relu(hidden))
    np.testing.assert_array_equal(log["resid"], MODEL(X))


def test_wildcards_are_told_apart_by_what_they_stand_for():
    assert list(logged({"out": "blocks.*"})) == ["out.0", "out.1"]
    z = {"z": "blocks.*.attn.output_proj:in"}
    assert list(logged(z)) == ["z.0", "z.1"]
    assert list(logged({"n": "**.norm"})) == ["n.blocks.0", "n.blocks.1", "n"]
    assert list(logged({"l": "blocks.0.attn.q*"})) == ["l.query_proj"]
    assert list(logged({"p": "blocks.*.attn/softmax"})) == ["p.0", "p.1"]
    classes = {"norms": eqx.nn.LayerNorm}
    keys = ["norms.blocks.0.norm", "norms.blocks.1.norm", "norms.norm"]
    assert list(logged(classes)) == keys


def test_values_inside():
    log = logged({"probs": "blocks.0.attn/softmax"})
    assert log["probs"].shape == (2, 5, 5)

    class Twice(eqx.Module):
        part: eqx.Module

        def __call__(self, x):
            return self.part(self.part(x))

    class Part(eqx.Module):
        def __call__(self, x):
            return jnp.sin(px.probe(jnp.sin(x) + 1, "sum")) + px.probe(x + 2, "sum")

    model = Twice(Part())
    log = logged({"s": "part/sin", "p": "part/sum", "one": "part/sin#1"}, model, X)
    # Those that are further ones of a name in one call say so behind the name.
    keys = ["s", "s/sin#1", "one", "p", "p/sum#1"]
    again = ["s#1", "s#1/sin#1", "one#1", "p#1", "p#1/sum#1"]
    assert sorted(log) == sorted([*keys, *again])
    np.testing.assert_array_equal(log["s"], jnp.sin(X))
    np.testing.assert_array_equal(log["one"], jnp.sin(jnp.sin(X) + 1))
    np.testing.assert_array_equal(log["s/sin#1"], log["one"])
    np.testing.assert_array_equal(log["p/sum#1"], X + 2)


def test_further_calls():
    chain = Chain(linear(3, 3, 0))
    assert list(logged({"c": "cell"}, chain, X)) == ["c", "c#1", "c#2"]
    where = {"second": "cell#1", "given": "cell:in#2", "every": "cell"}
    log = logged(where, chain, X)
    assert list(log) == ["every", "second", "every#1", "given", "every#2"]
    np.testing.assert_array_equal(log["second"], log["every#1"])
    assert set(px.report(chain, X, where=where).entries) == set(log)


def test_two_names_for_one_site():
    log = logged({"a": "linear1", "b": "linear1"}, MODEL, X)
    assert list(log) == ["a", "b"] or list(log) == ["b", "a"]
    np.testing.assert_array_equal(log["a"], log["b"])


def test_hooks_logs_and_patches_go_by_the_names():
    where = {"first": "linear1", "second": "linear2"}
    hooked = px.ForwardHook(
        MODEL, {"second": px.ScaleHook(2.0)}, {"first": px.NormLog()}, where=where
    )
    out, log = hooked(X)
    assert_close(out, 2 * MODEL(X))
    assert_close(dict(log), {"first": jnp.linalg.norm(MODEL.linear1(X))})
    with pytest.raises(px.SiteNotFoundError, match="pattern 'linear1' of `hook_fn`"):
        px.ForwardHook(MODEL, {"linear1": px.ZeroHook()}, where=where)

    _, source = px.ForwardHook(MODEL, where={"first": "linear1"})(X)
    patched = px.ForwardHook(
        MODEL, px.At(px.PatchHook(source), {"first": None}), where={"first": "linear1"}
    )
    assert_close(patched(0 * X)[0], MODEL(X))


def test_backward():
    where = {"out": "linear1", "in": "linear2:in"}
    hooked = px.BackwardHook(MODEL, where=where).init(X)
    grads = eqx.filter_grad(lambda hooked: jnp.sum(hooked(X)))(hooked)
    plain = px.BackwardHook(MODEL, where=list(where.values())).init(X)
    expected = eqx.filter_grad(lambda hooked: jnp.sum(hooked(X)))(plain).log
    assert_close(grads.log["out"], expected["linear1"])
    assert_close(grads.log["in"], expected["linear2:in"])

    run = px.value_and_grad(
        lambda m, x: jnp.sum(m(x)), forward=px.NormLog(), where=where
    )
    (_, logs), _ = run(MODEL, X)
    assert set(logs.forward) == set(logs.backward) == {"out", "in"}


class Stacked(eqx.Module):
    layers: list[eqx.nn.Linear]

    def __call__(self, x):
        layers = jax.tree.map(lambda *xs: jnp.stack(xs), *self.layers)
        dynamic, static = eqx.partition(layers, eqx.is_array)
        step = lambda x, d: (jnp.tanh(eqx.combine(d, static)(x)), None)
        return jax.lax.scan(step, x, dynamic)[0]


def test_layers_that_the_forward_pass_stacks():
    model = Stacked([linear(3, 3, i) for i in range(3)])
    log = logged({"resid": "layers.*", "given": "layers.*:in"}, model, X)
    assert {k: v.shape for k, v in log.items()} == {
        "resid.*": (3, 3),
        "given.*": (3, 3),
    }
    np.testing.assert_array_equal(log["given.*"][1], jnp.tanh(log["resid.*"][0]))
    with pytest.raises(px.SiteLostError, match="different structure"):
        logged({"a": "layers.0", "b": "layers.1", "c": "layers.2"}, model, X)


def test_equal_wrappers_share_a_program():
    @eqx.filter_jit
    @eqx.debug.assert_max_traces(max_traces=1)
    def run(hooked, x):
        return hooked(x)

    for _ in range(2):
        where = {"hidden": "linear1", "given": "linear2:in"}
        run(px.ForwardHook(MODEL, where=where), X)


@pytest.mark.parametrize("name", ["a#1", "", "a/b", 3])
def test_names_that_are_none(name):
    message = "A name of your own in `where` is a string without '#'.*got"
    with pytest.raises(TypeError, match=message):
        px.ForwardHook(MODEL, where={name: "linear1"})


@pytest.mark.parametrize("part", [["linear1"], lambda m: m.linear1, None])
def test_what_a_name_stands_for(part):
    message = "a dict from names of your own to patterns and classes, as.*for the name"
    with pytest.raises(TypeError, match=message):
        px.ForwardHook(MODEL, where={"a": part})


def test_one_name_for_two_sites():
    where = {"a": "linear*", "a.linear1": "linear1"}
    with pytest.raises(TypeError, match="gives the name 'a.linear1' to two sites"):
        px.ForwardHook(MODEL, where=where)
    with pytest.raises(px.SiteNotFoundError, match="'linear3'` matches nothing"):
        px.ForwardHook(MODEL, where={"a": "linear3"})
    with pytest.raises(px.SiteNotFoundError, match="`where` is empty"):
        px.ForwardHook(MODEL, where={})
