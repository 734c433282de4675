"""Equinox's own loops: `while_loop` and `scan` of `equinox.internal`, of each kind."""

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close
from twin_case import linear

import peex as px


STEPS, X = 5, jnp.array([0.3, -0.2, 0.7])
LIN = linear(3, 3, 0)


def while_loop(**kwargs):
    def run(m, x):
        go, step = lambda s: s[0] < STEPS, lambda s: (s[0] + 1, jnp.tanh(m(s[1])))
        return eqxi.while_loop(go, step, (0, x), **kwargs)[1]

    return run


def scan(**kwargs):
    def run(m, x):
        step = lambda h, _: (jnp.tanh(m(h)), None)
        return eqxi.scan(step, x, None, length=STEPS, **kwargs)[0]

    return run


LOOPS = {
    "while": while_loop(kind="lax"),
    "bounded while": while_loop(kind="bounded", max_steps=8),
    "checkpointed while": while_loop(kind="checkpointed", max_steps=8, checkpoints=2),
    "scan": scan(kind="lax"),
    "checkpointed scan": scan(kind="checkpointed", checkpoints=2),
}
EACH_STEP = ["bounded while", "scan"]  # the others keep the last


def twin(m, x, eps):
    calls = []
    for i in range(STEPS):
        calls.append(m(x) + eps[i])
        x = jnp.tanh(calls[-1])
    return x, jnp.stack(calls)


def loss(run):
    return lambda m, x: jnp.sum(run(m, x) ** 2)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("how", LOOPS)
def test_forward(how, jit):
    hooked = px.ForwardHook(LIN, method=LOOPS[how])
    out, log = (eqx.filter_jit(hooked) if jit else hooked)(X)
    expected, calls = twin(LIN, X, jnp.zeros((STEPS, 3)))
    assert_close(out, expected)
    if how in EACH_STEP:
        assert_close(log["."][:STEPS], calls)
        np.testing.assert_array_equal(log["."][STEPS:], 0)
    else:
        assert_close(log["."], calls[-1])
    assert how == "scan" or np.sum(log.counts["."]) == STEPS


@pytest.mark.parametrize("how", [h for h in LOOPS if h != "while"])
def test_gradients_through_a_forward_hook(how):
    hooked = px.ForwardHook(LIN, method=LOOPS[how])
    grads = eqx.filter_grad(lambda h: jnp.sum(h(X)[0] ** 2))(hooked)
    expected = eqx.filter_grad(loss(LOOPS[how]))(LIN, X)
    assert_close(grads.model.weight, expected.weight, rtol=1e-5)


@pytest.mark.parametrize("how", EACH_STEP)
def test_cotangents(how):
    (_, logs), _ = px.value_and_grad(loss(LOOPS[how]))(LIN, X)
    total = lambda eps: jnp.sum(twin(LIN, X, eps)[0] ** 2)
    expected = jax.grad(total)(jnp.zeros((STEPS, 3)))
    found = logs.backward["."]
    assert_close(found[:STEPS], expected, rtol=1e-5)
    np.testing.assert_array_equal(found[STEPS:], 0)


@pytest.mark.parametrize("how", [h for h in LOOPS if h not in EACH_STEP])
def test_cotangents_are_refused_where_there_are_none(how):
    with pytest.raises(px.SiteLostError, match="no reverse-mode derivative"):
        px.BackwardHook(LIN, method=LOOPS[how]).init(X)
