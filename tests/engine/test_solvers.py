"""`custom_linear_solve`, `custom_root` and `noinline`, against twins by hand."""

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from closeness import assert_close
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
        assert_close(entry, call)


def _with(weight):
    return eqx.tree_at(lambda m: m.weight, LIN, weight)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_an_inner_derivative_of_a_linear_solve_is_logged_once(run):
    inner = lambda m, b: jax.grad(lambda b: jnp.sum(solve(m, b) ** 2))(b)
    out, log = run(px.ForwardHook(LIN, method=inner))(X)
    assert_close(out, inner(LIN, X))
    check(log, solve_twin(LIN, X)[1])


def test_a_hook_in_a_linear_solve():
    out, log = px.ForwardHook(LIN, px.AddHook(jnp.ones(3)), method=solve)(X)
    expected, calls = _shifted(X)
    assert_close(out, expected)
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
# custom_root. (A high-level primitive from JAX 0.12 on; before, a `custom_jvp`.)
#


def fixed_point(m, b):
    """Solves x = tanh(m(x) / 4) + b."""

    def iterate(f, x):
        for _ in range(STEPS):
            x = x - f(x)
        return x

    def solve_linear(g, y):
        return jnp.linalg.solve(jax.jacobian(g)(y), y)

    f = lambda x: x - jnp.tanh(m(x) / 4) - b
    return lax.custom_root(f, jnp.zeros_like(b), iterate, solve_linear)


def fixed_point_twin(m, b):
    x, calls = jnp.zeros_like(b), []
    for _ in range(STEPS):
        calls.append(m(x))
        x = jnp.tanh(calls[-1] / 4) + b
    return x, calls


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_roots_in_a_loop(run):
    twice = lambda m, b: lax.scan(lambda b, _: (fixed_point(m, b), None), b, length=2)[
        0
    ]
    out, log = run(px.ForwardHook(LIN, method=twice))(X)
    first, calls = fixed_point_twin(LIN, X)
    second, more = fixed_point_twin(LIN, first)
    assert_close(out, second)
    check(log, [jnp.stack(pair) for pair in zip(calls, more, strict=True)])


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_trained_hook_in_a_root(run):
    def loss(hooked, b):
        out, log = hooked(b)
        return jnp.sum(out**2), log

    offset = jnp.array([0.1, -0.2, 0.3])
    hooked = px.ForwardHook(LIN, px.AddHook(offset), method=fixed_point)
    grads, log = run(eqx.filter_grad(loss, has_aux=True))(hooked, X)
    shifted = lambda offset: eqx.tree_at(lambda m: m.bias, LIN, LIN.bias + offset)
    check(log, fixed_point_twin(shifted(offset), X)[1])
    if jax.__version_info__ < (0, 12):
        # The rule of a `custom_jvp` says nothing of what it closes over.
        np.testing.assert_array_equal(grads.hook_fn.offset, np.zeros(3))
        return
    expected = jax.grad(lambda o: jnp.sum(fixed_point(shifted(o), X) ** 2))(offset)
    assert_close(grads.hook_fn.offset, expected, rtol=1e-5)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_an_inner_derivative_of_a_root(run):
    inner = lambda m, b: jax.grad(lambda b: jnp.sum(fixed_point(m, b) ** 2))(b)
    out, log = run(px.ForwardHook(LIN, method=inner))(X)
    assert_close(out, inner(LIN, X), rtol=1e-5)
    # Further calls are those that JAX makes for the derivative, at the root.
    root, calls = fixed_point_twin(LIN, X)
    for entry, call in zip(log.values(), calls, strict=False):
        assert_close(entry, call)
    for entry in list(log.values())[STEPS:]:
        expected = np.broadcast_to(LIN(root), entry.shape)
        assert_close(entry, expected)


def test_what_a_root_finder_returns_besides():
    def run(m, b):
        f = lambda x: x - jnp.tanh(m(x) / 4) - b
        find = lambda f, x: (x - f(x), {"residual": f(x), "steps": 1})
        return lax.custom_root(f, b, find, lambda g, y: y, has_aux=True)

    out, log = eqx.filter_jit(px.ForwardHook(LIN, method=run))(X)
    assert jax.tree.structure(out) == jax.tree.structure(run(LIN, X))
    assert_close(out, run(LIN, X))
    check(log, [LIN(X), LIN(X)])


def test_cotangents_in_a_root_are_refused():
    hooked = px.BackwardHook(LIN, method=fixed_point)
    with pytest.raises(px.SiteLostError, match="stands in the place of autodiff"):
        hooked.init(X)


#
# Both.
#

SOLVERS = {"linear": (solve, solve_twin), "root": (fixed_point, fixed_point_twin)}
for_both = pytest.mark.parametrize("solver, twin", SOLVERS.values(), ids=SOLVERS)


@for_both
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_calls_of_a_solver(run, solver, twin):
    out, log = run(px.ForwardHook(LIN, method=solver))(X)
    expected, calls = twin(LIN, X)
    assert_close(out, expected)
    check(log, calls)


@for_both
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_implicit_derivative_is_kept(run, solver, twin):
    def loss(hooked, b):
        out, log = hooked(b)
        return jnp.sum(out**2), log

    hooked = px.ForwardHook(LIN, method=solver)
    grads, log = run(eqx.filter_grad(loss, has_aux=True))(hooked, X)
    check(log, twin(LIN, X)[1])
    loss_of = lambda f, w: jnp.sum(f(_with(w), X) ** 2)
    expected = jax.grad(lambda w: loss_of(solver, w))(LIN.weight)
    assert_close(grads.model.weight, expected, rtol=1e-5)
    # It isn't the derivative of the three steps, which are far from a solution.
    steps = lambda m, b: twin(m, b)[0]
    unrolled = jax.grad(lambda w: loss_of(steps, w))(LIN.weight)
    assert not np.allclose(grads.model.weight, unrolled, rtol=1e-3)


@for_both
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("outside", [False, True])
def test_a_batch_of_solves(run, outside, solver, twin):
    bs = jnp.stack([X, 2 * X])
    batched = lambda m, bs: jax.vmap(lambda b: solver(m, b))(bs)
    if outside:
        hooked = px.ForwardHook(LIN, method=solver)
        out, log = run(eqx.filter_vmap(hooked))(bs)
    else:
        out, log = run(px.ForwardHook(LIN, method=batched))(bs)
    assert_close(out, batched(LIN, bs))
    for i, b in enumerate(bs):
        calls = twin(LIN, b)[1]
        # The first call is on zeros, for every example.
        first = log["."][i] if outside else log["."]
        assert_close(first, calls[0])
        assert_close(log[".#1"][i], calls[1])
        assert_close(log[".#2"][i], calls[2])


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
    assert_close(out, LIN(X))
    assert_close(log["."].reshape(3), LIN(X))

    loss = lambda m, x: jnp.sum(method(m, x) ** 2)
    (_, logs), grads = run(px.value_and_grad(loss))(LIN, X)
    cotangent = 2 * LIN(X)
    assert_close(logs.backward["."].reshape(3), cotangent)
    assert_close(grads.weight, jnp.outer(cotangent, X))


def test_noinline_without_sites_is_kept():
    other = linear(3, 3, 1)
    method = lambda m, x: m(eqxi.noinline(lambda x: other(x))(x))
    hooked = px.ForwardHook(LIN, method=method)
    assert "noinline" in str(jax.make_jaxpr(lambda x: hooked(x)[0])(X))
    assert "noinline" not in str(
        jax.make_jaxpr(px.ForwardHook(LIN, method=NOINLINE["closure"]))(X)
    )
    _, log = hooked(X)
    assert_close(log["."], LIN(other(X)))
