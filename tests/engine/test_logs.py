"""Forward and backward logs against hand-written twins, under each transformation."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
import twins
from closeness import assert_close
from pairs import pairs

import peex as px


CASES = twins.cases()


def loss_of(out):
    return sum(
        jnp.sum(jnp.sin(x) * (i + 1)) for i, x in enumerate(jax.tree.leaves(out))
    )


@functools.cache
def forward_twin(case):
    return case.twin(case.model, case.x, case.eps())


@functools.cache
def backward_twin(case):
    def loss(model_eps, x):
        model, eps = model_eps
        return loss_of(case.twin(model, x, eps)[0])

    return eqx.filter_grad(loss)((case.model, case.eps()), case.x)


def same_keys(log, expected):
    assert set(log) == set(expected)


# What is put around the wrapper. Each is given a function of the model and the input.
OUTSIDE = {
    "eager": lambda f: f,
    "jit": eqx.filter_jit,
    "checkpoint": eqx.filter_checkpoint,
    "jit of jit": lambda f: eqx.filter_jit(eqx.filter_jit(f)),
}
# All of them around each model, but the last two around one of its passes each, if it
# has two.
LAST = pairs(CASES, ("forward", "backward"), ("checkpoint", "jit of jit"))


def ways(direction):
    return [
        pytest.param(c, outside, id=f"{c}-{outside}")
        for c in CASES
        for outside in OUTSIDE
        if outside in ("eager", "jit")
        or (c, direction, outside) in LAST
        or not c.differentiable
        if c.differentiable or direction == "forward"
    ]


@pytest.mark.parametrize(("case", "outside"), ways("forward"))
def test_forward(case, outside):
    run = OUTSIDE[outside](lambda h, x: h(x))
    out, log = run(px.ForwardHook(case.model), case.x)
    expected_out, expected = forward_twin(case)
    same_keys(log, expected)
    assert_close(out, expected_out)
    assert_close(dict(log), expected)


@pytest.mark.parametrize(("case", "outside"), ways("backward"))
def test_backward(case, outside):
    run = OUTSIDE[outside](lambda h, x: h(x))
    hooked = px.BackwardHook(case.model).init(case.x)
    grads = eqx.filter_grad(lambda h, x: loss_of(run(h, x)))(hooked, case.x)
    model, eps = backward_twin(case)
    same_keys(grads.log, eps)
    assert_close(dict(grads.log), eps, 2e-6)
    assert_close(grads.model, model, 2e-6)
