"""`px.value_and_grad` runs the loss's Python once, and what it runs is the loss."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from closeness import assert_close
from jax.experimental import io_callback
from twin_case import linear
from twin_loops import Stack
from twin_models import MLP

import peex as px


X = jnp.arange(3.0) / 3
forms = pytest.mark.parametrize("forward", [None, px.IdentityLog()], ids=str)
wraps = pytest.mark.parametrize(
    "wrap", [lambda f: f, eqx.filter_jit], ids=["eager", "jit"]
)


@forms
@wraps
def test_python_runs_once(forward, wrap):
    runs = []

    def loss(m, x):
        runs.append(x)
        return jnp.sum(m(x) ** 2)

    wrap(px.value_and_grad(loss, forward=forward))(linear(3, 3, 0), X)
    assert len(runs) == 1


@forms
def test_effects_happen_once(forward):
    m, seen, ref = linear(3, 3, 0), [], jax.new_ref(jnp.zeros(()))

    def loss(m, x):
        io_callback(lambda: seen.append(1), None, ordered=True)
        ref[...] += 1.0
        return jnp.sum(m(x) ** 2)

    step = px.value_and_grad(loss, forward=forward)
    for wrap in (lambda f: f, eqx.filter_jit):
        seen.clear()
        before = ref[...]
        wrap(step)(m, X)
        jax.effects_barrier()
        assert (len(seen), ref[...] - before) == (1, 1)


@forms
def test_the_program_has_no_call_that_the_plain_one_has_not(forward):
    def calls(fn):
        jaxpr = eqx.filter_make_jaxpr(fn)(MLP(3, 4, 2, key=jr.key(0)), X)[0]
        return [e.params["name"] for e in jaxpr.eqns if e.primitive.name == "jit"]

    def loss(m, x):
        # `jnp.matmul` is a jit that is inlined, and this one isn't.
        return jnp.sum(jax.jit(jnp.tanh)(m(x) @ jnp.ones((2, 2))) ** 2)

    plain = calls(eqx.filter_value_and_grad(loss))
    assert "tanh" in plain
    assert calls(px.value_and_grad(loss, forward=forward)) == plain


def test_arguments_are_those_that_were_given():
    def loss(m, x, how):
        seen.append(x)
        value = jnp.sum(m(x) ** 2)
        return value if np.asarray(x)[0] > 0 and how == "sum" else -value

    m, seen = linear(3, 3, 0), []
    for x in (X, X + 1):
        (value, _), grads = px.value_and_grad(loss)(m, x, how="sum")
        assert seen.pop() is x
        plain, expected = eqx.filter_value_and_grad(loss)(m, x, how="sum")
        assert_close((value, grads), (plain, expected))


@wraps
def test_all_that_the_loss_returns(wrap):
    class Aux(eqx.Module):
        hidden: jax.Array
        name: str
        none: None = None

    def loss(m, x):
        y = m(x)
        return jnp.sum(y), (Aux(y, "aux"), 3, {"b": x, "a": y})

    m = linear(3, 3, 0)
    ((value, aux), _), _ = wrap(px.value_and_grad(loss, has_aux=True))(m, X)
    (plain, expected), _ = wrap(eqx.filter_value_and_grad(loss, has_aux=True))(m, X)
    assert value == plain
    assert jax.tree.structure(aux) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, aux, expected)


def test_under_transformations():
    model, xs = Stack(4, seed=0), jr.normal(jr.key(1), (2, 5, 3))
    loss = lambda m, x: jnp.sum(jnp.sin(m(x)))
    step = px.value_and_grad(loss)
    plain = eqx.filter_value_and_grad(loss)
    # Mapped and differentiated from outside.
    (values, logs), grads = eqx.filter_vmap(step, in_axes=(None, 0))(model, xs)
    assert_close((values, grads), eqx.filter_vmap(plain, in_axes=(None, 0))(model, xs))
    assert logs.backward["blocks.linear1"].shape[:2] == (2, 4)
    norm = lambda step: (
        lambda x: sum(
            jnp.sum(g**2) for g in jax.tree.leaves(eqx.filter(step(x), eqx.is_array))
        )
    )
    hooked = jax.grad(norm(lambda x: step(model, x)[1]))(xs[0])
    assert_close(hooked, jax.grad(norm(lambda x: plain(model, x)[1]))(xs[0]), 1e-5)


def test_a_value_that_is_no_scalar():
    m = linear(3, 3, 0)
    with pytest.raises(TypeError, match="Gradient only defined for scalar-output"):
        px.value_and_grad(lambda m, x: m(x))(m, X)
    (value, logs), _ = px.value_and_grad(lambda m, x: 2.0 if m(x) is None else 1.0)(
        m, X
    )
    assert value == 1.0
    np.testing.assert_array_equal(logs.backward["."], np.zeros(3))
