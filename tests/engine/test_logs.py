"""Forward and backward logs against hand-written twins, under each transformation."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
import twins
from closeness import assert_close

import peex as px


CASES = twins.cases()
DIFFERENTIABLE = [c for c in CASES if c.differentiable]


def loss_of(out):
    return sum(
        jnp.sum(jnp.sin(x) * (i + 1)) for i, x in enumerate(jax.tree.leaves(out))
    )


def same_keys(log, expected):
    assert set(log) == set(expected)


# What is put around the wrapper. Each is given a function of the model and the input.
OUTSIDE = {
    "eager": lambda f: f,
    "jit": eqx.filter_jit,
    "checkpoint": eqx.filter_checkpoint,
    "jit of jit": lambda f: eqx.filter_jit(eqx.filter_jit(f)),
}


@pytest.mark.parametrize("outside", OUTSIDE)
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_forward(case, outside):
    run = OUTSIDE[outside](lambda h, x: h(x))
    out, log = run(px.ForwardHook(case.model), case.x)
    expected_out, expected = case.twin(case.model, case.x, case.eps())
    same_keys(log, expected)
    assert_close(out, expected_out)
    assert_close(dict(log), expected)


@pytest.mark.parametrize("outside", OUTSIDE)
@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=repr)
def test_backward(case, outside):
    run = OUTSIDE[outside](lambda h, x: h(x))
    hooked = px.BackwardHook(case.model).init(case.x)
    grads = eqx.filter_grad(lambda h, x: loss_of(run(h, x)))(hooked, case.x)

    def twin_loss(model_eps, x):
        model, eps = model_eps
        return loss_of(case.twin(model, x, eps)[0])

    model, eps = eqx.filter_grad(twin_loss)((case.model, case.eps()), case.x)
    same_keys(grads.log, eps)
    assert_close(dict(grads.log), eps, 2e-6)
    assert_close(grads.model, model, 2e-6)
