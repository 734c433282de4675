"""Hooks change values and cotangents, each against a model that was changed by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close
from hooked_mlp import (
    eager_and_jit,
    loss,
    MODEL,
    OFFSET,
    run,
    twin,
    X,
)

import peex as px


# Forward


@eager_and_jit
@pytest.mark.parametrize(
    "hook", [px.ZeroHook(), px.ScaleHook(0.0), jnp.zeros_like, lambda x: 0 * x]
)
def test_zeroing_linear1_leaves_the_bias(outside, hook):
    hooked = px.ForwardHook(MODEL, hook, where="linear1")
    out, log = outside(run)(hooked, X)
    np.testing.assert_array_equal(out, MODEL.linear2.bias)
    # The log is of what the hook returned.
    np.testing.assert_array_equal(log["linear1"], jnp.zeros(4))


@eager_and_jit
def test_edits_of_two_sites(outside):
    hooked = px.ForwardHook(MODEL, {"linear1": px.AddHook(OFFSET), "linear2": jnp.sin})
    out, log = outside(run)(hooked, X)
    expected = twin(MODEL, X, lambda a: a + OFFSET, jnp.sin)
    assert_close(out, expected)
    assert_close(log["linear2"], expected)


def test_edit_of_the_whole_model():
    out, log = px.ForwardHook(MODEL, jnp.cos, where=".")(X)
    assert_close(out, jnp.cos(MODEL(X)))
    assert_close(log["."], out)


def test_edits_of_a_container_and_its_part():
    hooked = px.ForwardHook(MODEL, px.AddHook(1.0), where="**")
    out, log = hooked(X)
    expected = twin(MODEL, X, lambda a: a + 1, lambda b: b + 1)
    assert_close(log["linear2"], expected)
    assert_close(log["."], expected + 1)
    assert_close(out, expected + 1)


@eager_and_jit
def test_pre_hook_on_arguments(outside):
    hooked = px.ForwardHook(
        MODEL, lambda args: (2 * args[0],), where="linear2", pre_hook=True
    )
    out, log = outside(run)(hooked, X)
    hidden = 2 * jnp.tanh(MODEL.linear1(X))
    assert_close(out, MODEL.linear2(hidden))
    assert list(log) == ["linear2"]
    assert_close(log["linear2"], (hidden,))


class Scaled(eqx.Module):
    weight: jax.Array

    def __call__(self, x, *, scale, name="none", key=None):
        assert name == "some" and key is None
        return scale * (self.weight @ x)


class Caller(eqx.Module):
    layer: Scaled

    def __call__(self, x):
        return self.layer(x, scale=jnp.array(3.0), name="some")


@eager_and_jit
def test_with_kwargs(outside):
    def hook(value):
        (x,), kwargs = value
        assert kwargs["name"] is None  # what isn't an array
        return (x + 1,), {**kwargs, "scale": kwargs["scale"] * 2}

    model = Caller(Scaled(jnp.eye(3)))
    hooked = px.ForwardHook(model, hook, pre_hook=True, with_kwargs=True)
    out, log = outside(run)(hooked, X)
    assert_close(out, 6 * (X + 1))
    expected = ((X + 1,), {"scale": jnp.array(6.0), "name": None})
    assert_close(log["layer"], expected)
    # Without: the positional arguments alone.
    out, log = outside(run)(px.ForwardHook(model, pre_hook=True), X)
    assert_close(out, 3 * X)
    assert_close(log["layer"], (X,))


def test_with_kwargs_backward():
    model = Caller(Scaled(jnp.eye(3)))
    hooked = px.BackwardHook(model, pre_hook=True, with_kwargs=True).init(X)
    grads = eqx.filter_grad(lambda h: jnp.sum(h(X)))(hooked)
    expected = ((jnp.full(3, 3.0),), {"scale": jnp.sum(X), "name": None})
    assert_close(grads.log["layer"], expected)


# Which hook acts where


def test_first_match_wins():
    hooks = {"linear1": px.ScaleHook(2.0), "*": px.ScaleHook(10.0), "**": px.ZeroHook()}
    out, log = px.ForwardHook(MODEL, hooks, {"linear2": jnp.sum, "*": jnp.max})(X)
    expected = twin(MODEL, X, lambda a: 2 * a, lambda b: 10 * b)
    assert_close(out, expected)
    assert_close(log["linear1"], jnp.max(2 * MODEL.linear1(X)))
    assert_close(log["linear2"], jnp.sum(expected))


def test_none_in_a_dict_is_nothing():
    hooks = {"linear1": None, "**": px.ZeroHook()}
    out, log = px.ForwardHook(MODEL, hooks, {"linear1": None, "**": jnp.sum})(X)
    assert list(log) == ["linear2"]
    assert_close(out, jnp.zeros(2))


def test_sites_without_entry_have_no_log():
    out, log = px.ForwardHook(MODEL, None, {"linear1": jnp.sum})(X)
    assert list(log) == ["linear1"]
    assert_close(out, MODEL(X))
    hooked = px.BackwardHook(MODEL, None, {"linear1": jnp.sum}).init(X)
    assert list(hooked.log) == ["linear1"]


@pytest.mark.parametrize("what", ["hook_fn", "log_fn"])
def test_unmatched_pattern(what):
    match = rf"The pattern 'linear3' of `{what}` matches none of the chosen sites. Near"
    with pytest.raises(px.SiteNotFoundError, match=match):
        px.ForwardHook(MODEL, **{what: {"linear1": jnp.sin, "linear3": jnp.cos}})
    # A place of the model that isn't chosen.
    match = r"The pattern '\.' of .* name it in `where` too"
    with pytest.raises(px.SiteNotFoundError, match=match):
        px.ForwardHook(MODEL, **{what: {".": jnp.sin}})


def test_none():
    out, log = px.ForwardHook(MODEL, None, None)(X)
    np.testing.assert_array_equal(out, MODEL(X))
    assert len(log) == 0 and jax.tree.leaves(log) == []
    hooked = px.BackwardHook(MODEL, None, None)
    np.testing.assert_array_equal(hooked(X), MODEL(X))  # no `init` needed
    grads = eqx.filter_grad(lambda h: loss(h(X)))(hooked)
    assert_close(grads.model, eqx.filter_grad(lambda m: loss(m(X)))(MODEL))
    assert grads.log is None


# Backward


@eager_and_jit
def test_doubling_a_cotangent(outside):
    hooked = px.BackwardHook(MODEL, px.ScaleHook(2.0), where="linear1").init(X)
    value_and_grad = eqx.filter_value_and_grad(lambda h, x: loss(h(x)))
    value, grads = outside(value_and_grad)(hooked, X)
    expected, plain = eqx.filter_value_and_grad(lambda m: loss(m(X)))(MODEL)
    assert_close(value, expected)
    # Upstream of the site all is doubled, downstream nothing.
    assert_close(grads.model.linear1.bias, 2 * plain.linear1.bias)
    assert_close(grads.model.linear1.weight, 2 * plain.linear1.weight)
    assert_close(grads.model.linear2.bias, plain.linear2.bias)
    assert_close(grads.model.linear2.weight, plain.linear2.weight)
    assert_close(grads.log["linear1"], 2 * plain.linear1.bias)


def test_backward_hook_on_the_input():
    hooked = px.BackwardHook(MODEL, px.ScaleHook(3.0), where=".", pre_hook=True)
    hooked = hooked.init(X)
    grad_x = jax.grad(lambda x: loss(hooked(x)))(X)
    assert_close(grad_x, 3 * jax.grad(lambda x: loss(MODEL(x)))(X))


def test_backward_pre_is_the_cotangent_of_the_arguments():
    hooked = px.BackwardHook(MODEL, where="linear2", pre_hook=True).init(X)
    grads = eqx.filter_grad(lambda h: loss(h(X)))(hooked)
    hidden = jnp.tanh(MODEL.linear1(X))
    expected = jax.grad(lambda h: loss(MODEL.linear2(h)))(hidden)
    assert_close(grads.log["linear2"], (expected,))


def test_stopping_a_cotangent():
    hooked = px.BackwardHook(MODEL, px.ZeroHook(), None, where="linear1")
    grads = eqx.filter_grad(lambda h: loss(h(X)))(hooked)
    assert not np.any(grads.model.linear1.weight)
    assert np.any(grads.model.linear2.weight)


def test_clipping_per_example():
    xs = jnp.stack([X, 10 * X, -X])
    model = eqx.filter_vmap(MODEL)

    def clip(ct):
        return ct / jnp.maximum(1, jnp.linalg.norm(ct) / 0.1)

    hooked = px.BackwardHook(model, clip, where="linear2").init(xs)
    batch_loss = lambda out: jnp.sum(jnp.sin(out))
    grads = eqx.filter_grad(lambda h: batch_loss(h(xs)))(hooked)
    cts = jax.grad(batch_loss)(jax.vmap(MODEL)(xs))
    expected = jnp.stack([clip(ct) for ct in cts])
    assert_close(grads.log["linear2"], expected)
