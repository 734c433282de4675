"""Models inside of the solvers of diffrax and optimistix, which are made of Equinox's
own loops, custom derivative rules and primitives. Skipped where these aren't installed:

    pip install diffrax && pytest tests/test_solver_libraries.py
"""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close
from twin_case import linear

import peex as px


dx = pytest.importorskip("diffrax")
optx = pytest.importorskip("optimistix")

N = 10
Y = jnp.array([1.0, -0.5])
LIN = linear(2, 2, 0)
ADJOINTS = {
    "checkpoint": dx.RecursiveCheckpointAdjoint(),
    "backsolve": dx.BacksolveAdjoint(),
    "direct": dx.DirectAdjoint(),
}


class Field(eqx.Module):
    """A vector field (a function that closed over the model couldn't be differentiated
    by `BacksolveAdjoint`).
    """

    model: eqx.nn.Linear

    def __call__(self, t, y, args):
        return jnp.tanh(self.model(y))


class Controlled(Field):
    def __call__(self, t, y, args):
        return jnp.outer(super().__call__(t, y, args), jnp.array([1.0, 0.5]))


def solved(terms, solver, adjoint, y, **kwargs):
    kwargs = {"max_steps": 16, "adjoint": adjoint, **kwargs}
    return dx.diffeqsolve(terms, solver, 0.0, 1.0, 1 / N, y, **kwargs).ys[-1]


def ode(m, y, adjoint):
    return solved(dx.ODETerm(Field(m)), dx.Euler(), adjoint, y)


def sde(m, y, adjoint):
    drift = dx.ODETerm(Field(m))
    path = dx.VirtualBrownianTree(0.0, 1.0, 1e-3, (), jax.random.key(0))
    noise = dx.ControlTerm(lambda t, y, a: 0.1 * y, path)
    return solved(dx.MultiTerm(drift, noise), dx.Heun(), adjoint, y)


def cde(m, y, adjoint):
    times = jnp.linspace(0.0, 1.0, 5)
    path = dx.LinearInterpolation(times, jnp.stack([times, times**2], axis=1))
    return solved(dx.ControlTerm(Controlled(m), path), dx.Euler(), adjoint, y)


def adaptive(m, y, adjoint):
    terms = dx.ODETerm(Field(m))
    steps = dx.PIDController(1e-3, 1e-5)
    return solved(terms, dx.Tsit5(), adjoint, y, stepsize_controller=steps)


def implicit(m, y, adjoint):
    terms = dx.ODETerm(Field(m))
    steps = dx.PIDController(1e-3, 1e-5)
    return solved(terms, dx.Kvaerno3(), adjoint, y, stepsize_controller=steps)


PROGRAMS = {"ode": ode, "sde": sde, "cde": cde, "tsit5": adaptive, "kvaerno": implicit}


def check_program(run):
    """The model isn't changed, nor its gradient; eager and jitted logs agree."""
    hooked = px.ForwardHook(LIN, method=run)
    out, log = hooked(Y)
    jitted_out, jitted = eqx.filter_jit(hooked)(Y)
    expected = eqx.filter_jit(run)(LIN, Y)
    assert_close(out, expected)
    assert_close(jitted_out, expected)
    close = ft.partial(assert_close, rtol=1e-5, atol=1e-6)
    close(log, jitted)

    def loss(hooked):
        out, log = hooked(Y)
        return jnp.sum(out**2), log

    grads, in_gradient = eqx.filter_jit(eqx.filter_grad(loss, has_aux=True))(hooked)
    plain = eqx.filter_jit(eqx.filter_grad(lambda m: jnp.sum(run(m, Y) ** 2)))(LIN)
    close(grads.model, plain)
    assert list(in_gradient) == list(log)
    return log


@pytest.mark.parametrize("adjoint", ADJOINTS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_diffrax(program, adjoint):
    run = lambda m, y: PROGRAMS[program](m, y, ADJOINTS[adjoint])
    log = check_program(run)
    assert np.sum(log.counts["."]) > 0


@pytest.mark.parametrize("adjoint", ADJOINTS)
def test_the_evaluations_of_a_solve(adjoint):
    y, calls = Y, []
    for _ in range(N):
        calls.append(LIN(y))
        y = y + jnp.tanh(calls[-1]) / N
    run = lambda m, y: ode(m, y, ADJOINTS[adjoint])
    out, log = px.ForwardHook(LIN, method=run)(Y)
    assert_close(out, y)
    assert np.sum(log.counts["."]) == N
    if adjoint == "direct":
        assert_close(log["."][:N], jnp.stack(calls), rtol=1e-5)
        return
    assert_close(log["."], calls[-1], rtol=1e-5)
    _, log = px.ForwardHook(LIN, method=run, while_buffer=4)(Y)
    assert_close(log["."], jnp.stack(calls[-4:]), rtol=1e-5)


def test_the_cotangents_of_a_solve():
    def twin(eps):
        y = Y
        for i in range(N):
            y = y + jnp.tanh(LIN(y) + eps[i]) / N
        return jnp.sum(y**2)

    run = lambda m, y: ode(m, y, ADJOINTS["direct"])
    loss = lambda m, y: jnp.sum(run(m, y) ** 2)
    (_, logs), _ = px.value_and_grad(loss)(LIN, Y)
    expected = jax.grad(twin)(jnp.zeros((N, 2)))
    assert_close(logs.backward["."][:N], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(logs.backward["."][N:], 0)


@pytest.mark.parametrize("adjoint", ["checkpoint", "backsolve"])
def test_cotangents_are_refused_where_there_are_none(adjoint):
    hooked = px.BackwardHook(LIN, method=lambda m, y: ode(m, y, ADJOINTS[adjoint]))
    match = (
        r"no reverse-mode derivative\. In a solve by diffrax it is known with "
        r"`adjoint=diffrax.DirectAdjoint\(\)` and an explicit solver"
    )
    with pytest.raises(px.SiteLostError, match=match):
        hooked.init(Y)


def test_steps_are_known_where_cotangents_are():
    hook = px.AtStep(px.ZeroHook(), 2)
    method = lambda adjoint: lambda m, y: ode(m, y, ADJOINTS[adjoint])
    match = r"which step it is in\. In a solve by .* `adjoint=diffrax.DirectAdjoint"
    with pytest.raises(px.SiteLostError, match=match):
        px.ForwardHook(LIN, hook, method=method("checkpoint"))(Y)
    _, log = px.ForwardHook(LIN, hook, method=method("direct"))(Y)
    zero = np.all(np.asarray(log["."])[:N] == 0, axis=-1)
    np.testing.assert_array_equal(np.flatnonzero(zero), [2])


def test_an_implicit_solver_is_said_to_be_the_reason():
    hooked = px.BackwardHook(
        LIN, method=lambda m, y: implicit(m, y, ADJOINTS["direct"])
    )
    with pytest.raises(px.SiteLostError, match="DirectAdjoint.*an explicit solver"):
        hooked.init(Y)


def _residual(m):
    return lambda z, a: z - 0.3 * jnp.tanh(m(z)) - Y


SOLVES = {
    "root": lambda m, y: optx.root_find(_residual(m), optx.Newton(1e-5, 1e-5), y),
    "fixed point": lambda m, y: optx.fixed_point(
        lambda z, a: 0.3 * jnp.tanh(m(z)) + Y, optx.FixedPointIteration(1e-5, 1e-5), y
    ),
    "least squares": lambda m, y: optx.least_squares(
        _residual(m), optx.LevenbergMarquardt(1e-5, 1e-5), y
    ),
    "minimum": lambda m, y: optx.minimise(
        lambda z, a: jnp.sum(_residual(m)(z, a) ** 2), optx.BFGS(1e-5, 1e-5), y
    ),
}


@pytest.mark.parametrize("how", SOLVES)
def test_optimistix(how):
    # The implicit derivative binds a primitive that holds the model.
    log = check_program(lambda m, y: SOLVES[how](m, y).value)
    assert np.sum(log.counts["."]) > 1
