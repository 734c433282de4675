"""Hooks that are told where they act: what they can't be, and can't do."""

import jax
import jax.numpy as jnp
import pytest
from hooked_mlp import MODEL
from jax import lax
from twin_case import linear

import peex as px


LIN, X = linear(3, 3, 0), jnp.arange(3.0) / 3


class Noise(px.AbstractIndexedHook):
    key: jax.Array

    def __call__(self, value, *, at):
        return value + jax.random.normal(self.key, value.shape)


KEY = jax.random.key(7)


def test_not_in_a_while_loop_and_not_by_itself():
    def loop(m, x):
        step = lambda c: (c[0] + 1, m(c[1]))
        return lax.while_loop(lambda c: c[0] < 3, step, (0, x))[1]

    with pytest.raises(px.SiteLostError, match="can't be told which step it is in"):
        px.ForwardHook(LIN, Noise(KEY), method=loop)(X)
    chain = px.Chain(Noise(KEY), jax.nn.relu)
    with pytest.raises(TypeError, match="A Noise in a Chain has data for each step"):
        chain(X)


def test_a_hook_that_changes_the_shape():
    class Short(px.AbstractIndexedHook):
        def __call__(self, value, *, at):
            return value[:1]

    match = r"hook_fn of the site '\.' changed .* expected float32\[3\], got float32\[1"
    with pytest.raises(px.HookShapeError, match=match):
        px.ForwardHook(LIN, Short())(X)


def test_an_error_of_such_a_hook_is_noted():
    class Fails(px.AbstractIndexedHook):
        def __call__(self, value, *, at):
            raise ZeroDivisionError("of the hook")

    with pytest.raises(ZeroDivisionError) as error:
        px.ForwardHook(MODEL, Fails(), where="linear1")(X)
    assert error.value.__notes__[0] == (
        "In the hook_fn of the site 'linear1' (Fails), given float32[4]."
    )


def test_the_base_class_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        px.AbstractIndexedHook()
    assert px.ForwardHook(MODEL, Noise(KEY)).hook_fn.key is KEY
