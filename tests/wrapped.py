"""A model run plain and wrapped, for the tests that it goes on working."""

import equinox as eqx
import jax
import jax.numpy as jnp
from closeness import assert_close

import peex as px


def linear(seed=0):
    return eqx.nn.Linear(2, 2, key=jax.random.key(seed))


def check(model, *args, keys=None, where=None, **kwargs):
    """Runs a model plain and wrapped: same outputs, gradients, and model after it.
    Returns the forward log.
    """
    before = jax.tree.structure(model), jax.tree.leaves(model)

    def call(f):
        # Copies: a `State` can be used once.
        args_, kwargs_ = jax.tree.map(lambda x: x, (args, kwargs))
        return f(*args_, **kwargs_)

    plain = call(model)
    out, log = call(px.ForwardHook(model, where=where))
    same(out, plain)
    if keys is not None:
        assert list(log) == keys

    hooked = call(px.BackwardHook(model, where=where).init)
    same(call(hooked), plain)
    if keys is not None:
        assert sorted(hooked.log) == sorted(keys)

    def loss(model):
        leaves = jax.tree.leaves(eqx.filter(call(model), eqx.is_inexact_array))
        return sum(jnp.sum(jnp.sin(x)) for x in leaves)

    grads = eqx.filter_grad(loss)(hooked)
    same(grads.model, eqx.filter_grad(loss)(model))
    jitted, _ = call(eqx.filter_jit(px.ForwardHook(model, where=where)))
    same(jitted, call(eqx.filter_jit(model)))
    after = jax.tree.structure(model), jax.tree.leaves(model)
    assert before[0] == after[0]
    assert all(a is b for a, b in zip(before[1], after[1], strict=True))
    return log


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if eqx.is_array(x):
            assert_close(x, y)
        else:
            assert x == y
