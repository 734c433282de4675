"""Several hooks at one site: chains, and wrappers in wrappers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from closeness import assert_close
from parts import Pair

import peex as px


KEYS = jax.random.split(jax.random.key(0))
MODEL = Pair(eqx.nn.Linear(2, 2, key=KEYS[0]), eqx.nn.Linear(2, 2, key=KEYS[1]))
X = jnp.array([0.5, -2.0])
OFFSET = jnp.array([1.0, -3.0])


# Chains


def test_a_chain_acts_in_order():
    chain = px.Chain(px.AddHook(OFFSET), None, px.ScaleHook(2.0), jax.nn.relu)
    out, log = px.ForwardHook(MODEL, chain, where="first")(X)
    expected = jnp.maximum(2 * (MODEL.first(X) + OFFSET), 0)
    assert_close(log["first"], expected)
    assert_close(out, MODEL.second(jnp.tanh(expected)))
    other = px.Chain(px.ScaleHook(2.0), px.AddHook(OFFSET))
    _, log = px.ForwardHook(MODEL, other, where="first")(X)
    assert_close(log["first"], 2 * MODEL.first(X) + OFFSET)


def test_a_chain_of_nothing_is_the_identity():
    out, log = px.ForwardHook(MODEL, px.Chain(None))(X)
    assert_close(log["first"], MODEL.first(X))
    assert_close(out, MODEL(X))


def test_the_arrays_of_a_chain_are_trained():
    chain = px.Chain(px.ScaleHook(jnp.array(2.0)), px.AddHook(OFFSET), jnp.sin)
    hooked = px.ForwardHook(MODEL, chain, None, where="second")
    grads = eqx.filter_grad(lambda hooked: jnp.sum(hooked(X)[0]))(hooked)
    y = MODEL(X)
    cos = jnp.cos(2 * y + OFFSET)
    scale, offset, _ = grads.hook_fn.hooks
    assert_close(scale.scale, jnp.sum(cos * y))
    assert_close(offset.offset, cos)


def test_a_chain_acts_on_cotangents():
    chain = px.Chain(px.AddHook(OFFSET), px.ScaleHook(2.0))
    hooked = px.BackwardHook(MODEL, chain, where="second").init(X)
    grads = eqx.filter_grad(lambda hooked: jnp.sum(hooked(X)))(hooked)
    assert_close(grads.log["second"], 2 * (1 + OFFSET))
    assert_close(grads.model.second.bias, 2 * (1 + OFFSET))


def test_a_chain_in_at_step():
    run = lambda cell, x: jax.lax.scan(lambda x, _: (cell(x), None), x, length=3)[0]
    hook = px.AtStep(px.Chain(px.ScaleHook(2.0), px.AddHook(OFFSET)), [1])
    out, log = px.ForwardHook(MODEL.first, hook, method=run)(X)
    second = 2 * MODEL.first(MODEL.first(X)) + OFFSET
    assert_close(log["."][1], second)
    assert_close(out, MODEL.first(second))


def test_what_a_chain_refuses():
    with pytest.raises(TypeError, match="Hook 1 of a Chain is the class ZeroHook"):
        px.Chain(px.ZeroHook(), px.ZeroHook)
    with pytest.raises(TypeError, match="Hook 0 of a Chain is 2.0, which can't be"):
        px.Chain(2.0)


# Wrappers in wrappers


@pytest.mark.parametrize("pre_inside", [True, False])
@pytest.mark.parametrize("where", ["first", "."])
def test_pre_and_post_at_one_site(pre_inside, where):
    double = lambda args: (2 * args[0],)
    pre = lambda m: px.ForwardHook(m, double, where=where, pre_hook=True)
    post = lambda m: px.ForwardHook(m, px.AddHook(OFFSET), where=where)
    inner, outer = (pre, post) if pre_inside else (post, pre)
    (out, log), outer_log = outer(inner(MODEL))(X)
    pre_log, post_log = (log, outer_log) if pre_inside else (outer_log, log)
    site = MODEL.first if where == "first" else MODEL
    assert_close(pre_log[where][0], 2 * X)
    assert_close(post_log[where], site(2 * X) + OFFSET)
    rest = lambda y: MODEL.second(jnp.tanh(y)) if where == "first" else y
    assert_close(out, rest(site(2 * X) + OFFSET))


def test_the_inner_of_two_wrappers_acts_first():
    inner = px.ForwardHook(MODEL, px.ScaleHook(2.0), where="first")
    (_, log), outer_log = px.ForwardHook(inner, px.AddHook(OFFSET), where="first")(X)
    assert_close(log["first"], 2 * MODEL.first(X))
    assert_close(outer_log["first"], 2 * MODEL.first(X) + OFFSET)
    pre = lambda m, fn: px.ForwardHook(m, fn, where="first", pre_hook=True)
    inner = pre(MODEL, lambda args: (2 * args[0],))
    (_, log), outer_log = pre(inner, lambda args: (args[0] + OFFSET,))(X)
    # Arguments meet the outer one first.
    assert_close(outer_log["first"][0], X + OFFSET)
    assert_close(log["first"][0], 2 * (X + OFFSET))


def test_pre_hook_with_kwargs_on_the_root():
    class Scaled(eqx.Module):
        weight: jax.Array

        def __call__(self, x, *, scale):
            return scale * self.weight * x

    def hook(value):
        args, kwargs = value
        return args, {"scale": kwargs["scale"] + 1}

    model = Scaled(jnp.array(3.0))
    hooked = px.ForwardHook(model, hook, where=".", pre_hook=True, with_kwargs=True)
    out, log = hooked(X, scale=jnp.array(1.0))
    assert_close(out, 6 * X)
    (x,), kwargs = log["."]
    assert_close(x, X)
    assert_close(kwargs["scale"], 2.0)
