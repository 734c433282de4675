"""Choosing sites where the model is not called as `model(x)`: wrappers around it, and
other methods; and what can't be chosen.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from closeness import assert_close
from parts import Pair

import peex as px


def linear(seed=0):
    return eqx.nn.Linear(2, 2, key=jax.random.key(seed))


class Halved(Pair):
    def half(self, x):
        return self.first(x)


MODEL = Halved(linear(0), linear(1))
X = jnp.array([0.5, -2.0])
XS = jnp.stack([X, 2 * X, -X])
FIRST = MODEL.first(X)
OUT = MODEL(X)


# Equinox's wrappers around the model, and inside of it


TRANSPARENT = {
    "filter_jit": eqx.filter_jit,
    "filter_checkpoint": eqx.filter_checkpoint,
    "jit of checkpoint": lambda m: eqx.filter_jit(eqx.filter_checkpoint(m)),
}


@pytest.mark.parametrize("wrap", TRANSPARENT.values(), ids=TRANSPARENT)
def test_transparent_wrapper(wrap):
    for where, expected in [
        (None, ["first", "second"]),
        ("first", ["first"]),
        ("**", ["first", "second", "."]),
        (Pair, ["."]),
    ]:
        out, log = px.ForwardHook(wrap(MODEL), where=where)(X)
        assert list(log) == expected
        assert_close(out, OUT)
    assert list(px.BackwardHook(wrap(MODEL)).init(X).log) == ["first", "second"]


def test_transparent_vmap():
    hooked = px.ForwardHook(eqx.filter_vmap(MODEL), where="**")
    out, log = hooked(XS)
    assert list(log) == ["first", "second", "."]
    assert_close(log["first"], jax.vmap(MODEL.first)(XS))
    assert_close(log["."], out)


def test_transparent_grad():
    # A force field: the gradient of an energy, as a part of the model.
    class Energy(eqx.Module):
        layer: eqx.nn.Linear

        def __call__(self, x):
            return jnp.sum(self.layer(x) ** 2)

    class Field(eqx.Module):
        force: Any

        def __call__(self, x):
            return -self.force(x)

    layer = linear()
    out, log = px.ForwardHook(Field(eqx.filter_grad(Energy(layer))))(X)
    assert list(log) == ["force.layer"]
    assert_close(log["force.layer"], layer(X))
    assert_close(out, -2 * layer.weight.T @ layer(X))


def test_transparent_wrapper_in_the_model():
    class Outer(eqx.Module):
        inner: Any
        layers: list[Any]

        def __call__(self, x):
            for f in (self.inner, *self.layers):
                x = f(x)
            return x

    jitted = eqx.filter_jit(linear(2))
    model = Outer(eqx.filter_checkpoint(MODEL), [jitted, eqx.filter_jit(jnp.sin)])
    _, log = px.ForwardHook(model)(X)
    assert list(log) == ["inner.first", "inner.second", "layers.0"]
    _, log = px.ForwardHook(model, where=["inner", "layers.*"])(X)
    assert list(log) == ["inner", "layers.0"]
    # A function is a site only by its own name.
    _, log = px.ForwardHook(model, where="layers.1")(X)
    assert list(log) == ["layers.1"]


# peex's wrappers around each other


def test_backward_of_forward():
    hooked = px.BackwardHook(px.ForwardHook(MODEL), where="**").init(X)
    assert list(hooked.log) == ["first", "second", "."]
    _, log = hooked(X)
    assert list(log) == ["first", "second"]


def test_forward_of_backward():
    inner = px.BackwardHook(MODEL).init(X)
    out, log = px.ForwardHook(inner)(X)
    assert_close(out, OUT)
    assert list(log) == ["first", "second"]


def test_post_and_pre():
    inner = px.ForwardHook(MODEL, pre_hook=True, where="second")
    (out, pre), post = px.ForwardHook(inner)(X)
    assert_close(out, OUT)
    assert list(pre) == ["second"] and list(post) == ["first", "second"]
    assert_close(pre["second"][0], jnp.tanh(FIRST))
    assert_close(post["first"], FIRST)
    assert_close(post["second"], OUT)


def test_hooks_of_an_inner_wrapper_are_no_sites():
    class Gate(px.AbstractHook):
        layer: eqx.nn.Linear

        def __call__(self, value):
            return self.layer(value)

    class Probe(px.AbstractLog):
        layer: eqx.nn.Linear

        def __call__(self, value):
            return self.layer(value)

    inner = px.ForwardHook(MODEL, Gate(linear(5)), Probe(linear(6)), where="first")
    (out, _), log = px.ForwardHook(inner, where="**")(X)
    assert list(log) == ["first", "second", "."]
    # The outer wrapper is around the inner: it sees what the inner hook made.
    assert_close(log["first"], linear(5)(FIRST))
    assert_close(out, MODEL.second(jnp.tanh(linear(5)(FIRST))))
    with pytest.raises(px.SiteNotFoundError, match="Nearest keys"):
        px.ForwardHook(inner, where="hook_fn.layer")


def test_function_is_given_the_model_inside_of_wrappers():
    inner = px.ForwardHook(px.BackwardHook(MODEL, log_fn=None))
    _, log = px.ForwardHook(inner, where=lambda m: m.second)(X)
    assert list(log) == ["second"]


def test_wrapper_as_a_field():
    class Outer(eqx.Module):
        inner: px.ForwardHook
        head: eqx.nn.Linear

        def __call__(self, x):
            x, log = self.inner(x)
            return self.head(x), log

    (_, inner), outer = px.ForwardHook(Outer(px.ForwardHook(MODEL), linear(3)))(X)
    assert list(inner) == ["first", "second"]
    assert list(outer) == ["inner.first", "inner.second", "head"]


# method=


def test_method_name():
    out, log = px.ForwardHook(MODEL, method="half")(X)
    assert_close(out, FIRST)
    assert list(log) == ["first"]
    _, log = px.ForwardHook(MODEL, method="half", where=".")(X)
    assert list(log) == ["."]
    assert_close(log["."], FIRST)
    _, log = px.ForwardHook(MODEL, where=".:half", method=lambda m, x: m(m.half(x)))(X)
    assert list(log) == [".:half"]


class Bare(eqx.Module):
    weight: jax.Array

    def encode(self, x, *, scale=1.0):
        return scale * (self.weight @ x)


@pytest.mark.parametrize("where", [None, ".", "**", Bare, lambda m: m])
def test_method_of_a_leaf_model_without_call(where):
    model = Bare(jnp.eye(2))
    out, log = px.ForwardHook(model, method="encode", where=where)(X, scale=2.0)
    assert_close(out, 2 * X)
    assert list(log) == ["."]
    assert_close(log["."], 2 * X)


def test_method_of_a_wrapped_wrapper():
    hooked = px.BackwardHook(px.ForwardHook(Bare(jnp.eye(2)), method="encode"))
    hooked = hooked.init(X)
    assert list(hooked.log) == ["."]
    out, log = hooked(X)
    assert_close(out, X)
    assert list(log) == ["."]


def test_method_function_is_a_whole_program():
    def rollout(policy, x, steps, *, gain):
        def step(x, _):
            x = x + gain * policy(x)
            return x, x

        return jax.lax.scan(step, x, length=steps)

    hooked = px.ForwardHook(MODEL, method=rollout, where=["first", "."])
    (last, xs), log = hooked(X, 4, gain=0.5)
    x, firsts, outs = X, [], []
    for _ in range(4):
        firsts.append(MODEL.first(x))
        outs.append(MODEL(x))
        x = x + 0.5 * outs[-1]
    assert_close(last, x)
    assert_close(xs[-1], x)
    assert list(log) == ["first", "."]
    assert_close(log["first"], jnp.stack(firsts), rtol=1e-5)
    assert_close(log["."], jnp.stack(outs), rtol=1e-5)


def test_method_function_backward():
    def loss(model, x, y):
        return jnp.sum((model(x) - y) ** 2)

    hooked = px.BackwardHook(MODEL, method=loss).init(X, X)
    grads = eqx.filter_grad(lambda h: h(X, X))(hooked)
    assert_close(grads.log["second"], 2 * (OUT - X))


def test_leaf_root_called_in_a_function():
    _, log = px.ForwardHook(linear(), method=lambda m, x: m(m(x)))(X)
    assert list(log) == [".", ".#1"]


# What can't be chosen


@pytest.mark.parametrize(
    ("where", "match"),
    [
        ("frist", r"`where='frist'` matches nothing.*Nearest keys: 'first'"),
        ("third", r"`where='third'` matches nothing.*Nearest keys: .*'first'"),
        (["first", "nope"], r"`where='nope'` matches nothing in the model"),
        ("first.weight", r"matches nothing.*Nearest keys: 'first'"),
        ("first:attend", r"`where='first:attend'` matches nothing"),
        ("first:weight", r"`where='first:weight'` matches nothing"),
        ("*.first", r"matches nothing.*`\*` stands for one component"),
        (eqx.nn.Conv1d, r"`where='Conv1d'` matches nothing"),
        ((eqx.nn.Linear, eqx.nn.GRUCell), r"`where='GRUCell'` matches nothing"),
        (lambda m: m.first.weight, r"Node 0 that `where` returned.*Return nodes of"),
        (lambda m: [m.first, 3], r"Node 1 that `where` returned, of type int"),
        (lambda m: linear(7), r"Node 0 that `where` returned, of type Linear"),
        (lambda m: [], r"matches nothing"),
        ([], r"matches nothing"),
    ],
)
@pytest.mark.parametrize("wrapper", [px.ForwardHook, px.BackwardHook])
def test_not_found(wrapper, where, match):
    with pytest.raises(px.SiteNotFoundError, match=f"(?s){match}"):
        wrapper(MODEL, where=where)


def test_root_that_is_never_called():
    codec = Bare(jnp.eye(2))
    for where in (".", "**", Bare, lambda m: m):
        with pytest.raises(px.SiteNotFoundError, match="match|Node 0"):
            px.ForwardHook(codec, method=lambda m, x: m.encode(x), where=where)


@pytest.mark.parametrize("where", [3, ["first", 3], [None], {"first": 1}, b"first"])
def test_bad_type(where):
    with pytest.raises(TypeError, match="`where` is a pattern, a class, a list"):
        px.ForwardHook(MODEL, where=where)


def test_bad_method():
    with pytest.raises(TypeError, match="a Halved, has no method 'decode'"):
        px.ForwardHook(MODEL, method="decode")
    with pytest.raises(TypeError, match="a Bare, has no method '__call__'"):
        px.ForwardHook(Bare(jnp.eye(2)))


def test_bad_callables():
    with pytest.raises(TypeError, match="`hook_fn` is a callable, None, or a dict"):
        px.ForwardHook(MODEL, 3.0)
    with pytest.raises(TypeError, match="`log_fn` is a callable, None, or a dict"):
        px.ForwardHook(MODEL, log_fn="norm")
    with pytest.raises(TypeError, match=r"`log_fn\['first'\]` is a callable, None"):
        px.ForwardHook(MODEL, log_fn={"first": "norm"})
    with pytest.raises(TypeError, match="`pre_hook=True, with_kwargs=True`"):
        px.ForwardHook(MODEL, with_kwargs=True)
