"""Values that nothing uses, where a derivative in the model drops what it can."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close
from jax import lax
from twin_case import linear

import peex as px


class Unused(eqx.Module):
    layer: eqx.nn.Linear

    def __call__(self, x):
        self.layer(x)
        return jnp.sin(x)


def drop(how):
    def run(model, x):
        how(model, x)
        return jnp.sin(x)

    return run


def repeat(model, x):
    return lax.scan(lambda h, _: (model(h), None), x, length=2)[0]


# How it is called, and how many times in a row (`None`: without a step axis).
HOWS = {
    "call": (lambda m, x: m(x), None),
    "jit": (lambda m, x: jax.jit(lambda x: m(x))(x), None),
    "jit, dropped": (drop(lambda m, x: jax.jit(lambda x: m(x))(x)), None),
    "checkpoint": (lambda m, x: jax.checkpoint(lambda x: m(x))(x), None),
    "cond": (lambda m, x: lax.cond(x[0] > 0, lambda x: m(x), lambda x: x, x), None),
    "scan": (repeat, 2),
    "scan, dropped": (drop(repeat), 2),
    "custom_jvp": (lambda m, x: _with_rule(m)(x), None),
}


def _with_rule(model):
    f = jax.custom_jvp(lambda x: model(x))
    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0]))
    return f


DERIVATIVES = {
    "grad": lambda f: lambda m, x: jax.grad(lambda x: jnp.sum(f(m, x)))(x),
    "jvp": lambda f: lambda m, x: jax.jvp(lambda x: f(m, x), (x,), (x,))[1],
    "linearize": lambda f: lambda m, x: jax.linearize(lambda x: f(m, x), x)[1](x),
    "vjp in checkpoint": lambda f: (
        lambda m, x: jax.checkpoint(lambda x: jax.vjp(lambda x: f(m, x), x)[1](x)[0])(x)
    ),
}
X = jnp.array([0.3, -0.2, 0.7])


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("how", HOWS)
def test_a_value_that_is_not_used_is_logged(how, derivative, jit):
    run, steps = HOWS[how]
    model = Unused(linear(3, 3, 0))
    method = DERIVATIVES[derivative](run)
    hooked = px.ForwardHook(model, method=method)
    out, log = (eqx.filter_jit(hooked) if jit else hooked)(X)
    assert_close(out, method(model, X), rtol=1e-5)
    expected = model.layer(X)
    if steps is not None:
        expected = jnp.stack([expected, model.layer(jnp.sin(X))])
    assert list(log) == ["layer"]
    assert_close(log["layer"], expected, rtol=1e-5)


@pytest.mark.parametrize("derivative", ["grad", "linearize"])
@pytest.mark.parametrize("how", [h for h in HOWS if h != "custom_jvp"])
def test_its_cotangent_is_zero(how, derivative):
    run, steps = HOWS[how]
    method = DERIVATIVES[derivative](run)
    hooked = px.BackwardHook(Unused(linear(3, 3, 0)), method=method).init(X)
    grads = eqx.filter_grad(lambda h: jnp.sum(h(X)))(hooked)
    shape = (3,) if steps is None else (steps, 3)
    np.testing.assert_array_equal(grads.log["layer"], np.zeros(shape))
