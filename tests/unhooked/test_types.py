"""Methods, attributes, classes of hooked parts; types of values."""

import collections
import copy
import dataclasses
import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close
from jax.experimental import jet
from parts import Returning, Whole
from twin_case import linear

import peex as px


X = jnp.arange(3.0)


#
# Methods, attributes, classes.
#


class Methods(eqx.Module):
    weight: jax.Array

    @staticmethod
    def act(x):
        return 2 * x

    @classmethod
    def scale(cls, x):
        return 3 * x

    def __call__(self, x):
        return self.act(self.scale(self.weight * x)) + type(self).act(0 * x)


class StaticCall(eqx.Module):
    @staticmethod
    def __call__(x):
        return 2 * x


@pytest.mark.parametrize("where", [".:act", ".:scale", [".:act", ".:scale", "."]])
def test_static_and_class_methods(where):
    cls = type("Fresh", (Methods,), {})
    model = cls(jnp.ones(3))
    out, log = px.ForwardHook(model, where=where)(X)
    np.testing.assert_array_equal(out, 6 * X)
    expected = {".:act": 6 * X, ".:scale": 3 * X, ".": 6 * X}
    keys = [where] if isinstance(where, str) else where
    assert sorted(log) == sorted(keys)
    for key in keys:
        np.testing.assert_array_equal(log[key], expected[key])
    hooked = px.ForwardHook(model, px.ScaleHook(10.0), where=keys[0])
    np.testing.assert_array_equal(hooked(X)[0], 60 * X)
    # And no later hook of the class is affected.
    out, log = px.ForwardHook(model, where=".")(X)
    np.testing.assert_array_equal(log["."], 6 * X)


def test_a_call_that_is_a_static_method():
    model = Whole(StaticCall(), lambda part, x: part(x))
    out, log = px.ForwardHook(model, px.AddHook(1.0))(X)
    np.testing.assert_array_equal(log["part"], 2 * X + 1)
    np.testing.assert_array_equal(out, 2 * X + 1)
    hooked = px.BackwardHook(model).init(X)
    grads = eqx.filter_grad(lambda h, x: jnp.sum(h(x)))(hooked, X)
    np.testing.assert_array_equal(grads.log["part"], jnp.ones(3))


class Totalling(eqx.Module):
    weight: jax.Array

    @ft.cached_property
    def total(self):
        return jnp.sum(self.weight)

    def __call__(self, x):
        return self.total * x


@pytest.mark.parametrize("cached", [False, True])
def test_a_cached_property_is_of_one_object(cached):
    model = Totalling(jnp.ones(3))
    if cached:
        assert model.total == 3

    def run(part, x):
        scaled = jax.tree.map(lambda w: 2 * w, part)
        return part(x) + scaled(x)

    whole = Whole(model, run)
    out, log = px.ForwardHook(whole)(X)
    np.testing.assert_array_equal(out, 9 * X)
    np.testing.assert_array_equal(log["part#1"], 6 * X)
    grads = jax.grad(lambda m: jnp.sum(px.ForwardHook(Whole(m, run))(X)[0]))(model)
    np.testing.assert_array_equal(grads.weight, 3 * jnp.sum(X) * jnp.ones(3))


def test_names_and_classes_of_hooked_parts():
    def gelu(x):
        """A documented function."""
        return jax.nn.gelu(x)

    gelu.marker = 1
    seen = []

    class Looking(eqx.Module):
        linear: eqx.nn.Linear
        act: collections.abc.Callable

        def __call__(self, x):
            part, act = self.linear, self.act
            seen.append((part.__class__ is eqx.nn.Linear, part.__class__.__name__))
            seen.append(isinstance(part, eqx.nn.Linear))
            seen.append((act.__name__, act.__doc__, act.marker, act.__module__))
            return act(part(x))

    model = Looking(linear(3, 3, 0), gelu)
    model(X)
    expected = list(seen)
    seen.clear()
    _, log = px.ForwardHook(model, where=["linear", "act"])(X)
    assert seen == expected and list(log) == ["linear", "act"]


REPLACE = {"dataclasses": dataclasses.replace, "copy": getattr(copy, "replace", None)}


@pytest.mark.parametrize("how", [k for k, f in REPLACE.items() if f is not None])
def test_a_replaced_part_keeps_its_site(how):
    class Replacing(eqx.Module):
        drop: eqx.nn.Dropout

        def __call__(self, x):
            drop = REPLACE[how](self.drop, inference=True)
            assert drop.inference and type(self.drop)(0.5).p == 0.5
            return copy.copy(drop)(x)

    model = Replacing(eqx.nn.Dropout(0.5))
    out, log = px.ForwardHook(model, px.ScaleHook(2.0), where="drop")(X)
    np.testing.assert_array_equal(log["drop"], 2 * X)
    np.testing.assert_array_equal(out, 2 * X)


#
# Types of values.
#

HOOKS = {
    "none": None,
    "scale": px.ScaleHook(1.0),
    "array": px.ScaleHook(jnp.array(1.0)),
    "add": px.AddHook(0.0),
    "zero": px.ZeroHook(),
    "chain": px.Chain(px.ScaleHook(1.0), px.AddHook(0.0)),
    "lambda": lambda x: x,
}


@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("value", [2.0, 2, 2j], ids=str)
@pytest.mark.parametrize("hook", HOOKS)
def test_weak_types_stay_weak(hook, value, jit):
    make = lambda x: jnp.sin(value) if value == 2.0 else jnp.asarray(value) * 1
    seen = []

    def run(part, x):
        y = part(x)
        seen.append(jax.typeof(y))
        return y * x

    model, x = Whole(Returning(make), run), X.astype(jnp.bfloat16)
    wrap = eqx.filter_jit if jit else lambda f: f
    expected = wrap(model)(x).dtype
    out, _ = wrap(px.ForwardHook(model, HOOKS[hook], where="part"))(x)
    assert out.dtype == expected
    assert seen[0] == seen[1] and seen[0].weak_type == seen[1].weak_type
    backward = px.BackwardHook(model, HOOKS[hook], None, where="part")
    assert wrap(backward)(x).dtype == expected


def test_a_numpy_value_is_no_tracer_where_nothing_is_hooked():
    seen = []

    def run(part, x):
        y = part(x)
        seen.append(type(y))
        return x * float(np.sum(y))

    model = Whole(Returning(lambda x: np.ones(3, np.float32)), run)
    for wrapper in (
        px.BackwardHook(model, None, None, where="part"),
        px.ForwardHook(model, None, None, where="part"),
        px.ForwardHook(model, where="part"),
    ):
        jax.jit(lambda x, wrapper=wrapper: wrapper(x))(X)
    assert seen == [np.ndarray] * 3


@pytest.mark.parametrize("outer", [False, True], ids=["inside", "outside"])
@pytest.mark.parametrize("vmap", [False, True], ids=["alone", "vmap"])
def test_taylor_series_over_a_site(outer, vmap):
    layer = linear(3, 3, 0)

    def series(f, x):
        run = lambda x: jet.jet(f, (x,), ((jnp.ones(3), jnp.zeros(3)),))
        return jax.vmap(run)(x) if vmap else run(x)

    x = jnp.stack([X, 2 * X]) if vmap else X
    expected = series(lambda x: jnp.sin(layer(x)), x)
    run = lambda m, x: jnp.sin(m(x))
    if outer:
        hooked = px.ForwardHook(layer, method=run)
        out = series(lambda x: hooked(x)[0], x)
        _, value = series(lambda x: hooked(x)[1]["."], x)[0], None
        backward = px.BackwardHook(layer, method=run).init(X)
        assert_close(series(backward, x), expected)
    else:
        method = lambda m, x: series(lambda x: run(m, x), x)
        out, log = px.ForwardHook(layer, method=method)(x)
        value = jax.vmap(layer)(x) if vmap else layer(x)
        assert_close(log["."], value)
    assert_close(out, expected)
