"""`noinline` and `custom_linear_solve`, against twins written out by hand."""

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax import lax
from twin_case import linear

import peex as px


STEPS = 3


def richardson(matvec, b):
    x = jnp.zeros_like(b)
    for _ in range(STEPS):
        x = x + 0.1 * (b - matvec(x))
    return x


def solve(m, b):
    matvec = lambda x: m(x) - m.bias + 3 * x
    return lax.custom_linear_solve(matvec, b, richardson, transpose_solve=richardson)


def solve_twin(m, b):
    x, calls = jnp.zeros_like(b), []
    for _ in range(STEPS):
        calls.append(m(x))
        x = x + 0.1 * (b - (calls[-1] - m.bias + 3 * x))
    return x, calls


LIN, X = linear(3, 3, 0), jr.normal(jr.key(1), (3,))
RUNS = {"eager": lambda f: f, "jit": eqx.filter_jit}


def check(log, calls):
    assert list(log) == ["."] + [f".#{i}" for i in range(1, len(calls))]
    for entry, call in zip(log.values(), calls, strict=True):
        np.testing.assert_allclose(entry, call, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_calls_of_a_linear_solver(run):
    out, log = run(px.ForwardHook(LIN, method=solve))(X)
    expected, calls = solve_twin(LIN, X)
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    check(log, calls)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_implicit_derivative_is_kept(run):
    def loss(hooked, b):
        out, log = hooked(b)
        return jnp.sum(out**2), log

    hooked = px.ForwardHook(LIN, method=solve)
    grads, log = run(eqx.filter_grad(loss, has_aux=True))(hooked, X)
    check(log, solve_twin(LIN, X)[1])
    expected = jax.grad(lambda w: jnp.sum(solve(_with(w), X) ** 2))(LIN.weight)
    np.testing.assert_allclose(grads.model.weight, expected, rtol=1e-5)
    # It isn't the derivative of the three steps, which are far from a solution.
    unrolled = jax.grad(lambda w: jnp.sum(solve_twin(_with(w), X)[0] ** 2))(LIN.weight)
    assert not np.allclose(grads.model.weight, unrolled, rtol=1e-3)


def _with(weight):
    return eqx.tree_at(lambda m: m.weight, LIN, weight)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_an_inner_derivative_of_a_linear_solve_is_logged_once(run):
    inner = lambda m, b: jax.grad(lambda b: jnp.sum(solve(m, b) ** 2))(b)
    out, log = run(px.ForwardHook(LIN, method=inner))(X)
    np.testing.assert_allclose(out, inner(LIN, X), rtol=1e-6)
    check(log, solve_twin(LIN, X)[1])


def test_a_batch_of_linear_solves():
    bs = jnp.stack([X, 2 * X])
    batched = lambda m, bs: jax.vmap(lambda b: solve(m, b))(bs)
    out, log = px.ForwardHook(LIN, method=batched)(bs)
    np.testing.assert_allclose(out, batched(LIN, bs), rtol=1e-6)
    for i, b in enumerate(bs):
        calls = solve_twin(LIN, b)[1]
        # The first call is on zeros, for every example.
        np.testing.assert_allclose(log["."], calls[0], rtol=1e-6)
        np.testing.assert_allclose(log[".#1"][i], calls[1], rtol=1e-6)
        np.testing.assert_allclose(log[".#2"][i], calls[2], rtol=1e-6)


def test_a_hook_in_a_linear_solve():
    out, log = px.ForwardHook(LIN, px.AddHook(jnp.ones(3)), method=solve)(X)
    expected, calls = _shifted(X)
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    check(log, calls)


def _shifted(b):
    x, calls = jnp.zeros_like(b), []
    for _ in range(STEPS):
        calls.append(LIN(x) + 1)
        x = x + 0.1 * (b - (calls[-1] - LIN.bias + 3 * x))
    return x, calls


def test_cotangents_in_a_linear_solve_are_refused():
    hooked = px.BackwardHook(LIN, method=solve)
    with pytest.raises(px.SiteLostError, match="a solver with an implicit derivative"):
        hooked.init(X)


#
# noinline.
#

NOINLINE = {
    "module": lambda m, x: eqxi.noinline(m)(x),
    "closure": lambda m, x: eqxi.noinline(lambda x: m(x))(x),
    "vmap": lambda m, x: jax.vmap(eqxi.noinline(m))(x[None])[0],
    "scan": lambda m, x: lax.scan(lambda x, _: (eqxi.noinline(m)(x), 0), x, length=1)[
        0
    ],
}


@pytest.mark.parametrize("how", NOINLINE)
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_noinline(how, run):
    method = NOINLINE[how]
    out, log = run(px.ForwardHook(LIN, method=method))(X)
    np.testing.assert_allclose(out, LIN(X), rtol=1e-6)
    np.testing.assert_allclose(log["."].reshape(3), LIN(X), rtol=1e-6)

    loss = lambda m, x: jnp.sum(method(m, x) ** 2)
    (_, logs), grads = run(px.value_and_grad(loss))(LIN, X)
    cotangent = 2 * LIN(X)
    np.testing.assert_allclose(logs.backward["."].reshape(3), cotangent, rtol=1e-6)
    np.testing.assert_allclose(grads.weight, jnp.outer(cotangent, X), rtol=1e-6)


def test_noinline_without_sites_is_kept():
    other = linear(3, 3, 1)
    method = lambda m, x: m(eqxi.noinline(lambda x: other(x))(x))
    hooked = px.ForwardHook(LIN, method=method)
    assert "noinline" in str(jax.make_jaxpr(lambda x: hooked(x)[0])(X))
    assert "noinline" not in str(
        jax.make_jaxpr(px.ForwardHook(LIN, method=NOINLINE["closure"]))(X)
    )
    _, log = hooked(X)
    np.testing.assert_allclose(log["."], LIN(other(X)), rtol=1e-6)
