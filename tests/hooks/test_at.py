"""Hooks and logs where a mask holds, over the axes of what is logged."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from closeness import assert_close
from jax import lax
from twin_case import linear

import peex as px


STEPS, BATCH, WIDTH = 5, 2, 3
LIN = linear(WIDTH, WIDTH, 0)
XS = jr.normal(jr.key(0), (BATCH, WIDTH))
SHAPE = STEPS, BATCH, WIDTH


def batch_in_scan(m, xs):
    step = lambda xs, _: (jnp.tanh(jax.vmap(m)(xs)), None)
    return lax.scan(step, xs, length=STEPS)[0]


def scan_in_batch(m, xs):
    one = lambda x: lax.scan(lambda x, _: (jnp.tanh(m(x)), None), x, length=STEPS)[0]
    return jax.vmap(one)(xs)


def twin(m, xs, mask, act):
    """`act` is what the hook does; values and output by hand."""
    values = []
    for i in range(STEPS):
        y = xs @ m.weight.T + m.bias
        values.append(jnp.where(jnp.broadcast_to(mask, SHAPE)[i], act(y), y))
        xs = jnp.tanh(values[-1])
    return xs, jnp.stack(values)


def masks():
    rng = np.random.default_rng(0)
    some = rng.random(SHAPE) < 0.5
    yield "all", some
    yield "steps", some[:, :1, :1]
    yield "examples", some[:1, :, :1]
    yield "units", some[:1, :1]
    yield "of the last axes", some[0]
    yield (
        "one unit of one step",
        np.zeros(SHAPE, bool) | (np.arange(15) == 7).reshape(STEPS, 1, WIDTH),
    )
    yield "yes", True
    yield "no", np.asarray(False)


MASKS = dict(masks())


@pytest.mark.parametrize("method", (batch_in_scan, scan_in_batch), ids=("in", "out"))
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_a_mask_over_what_is_logged(mask, method):
    act = lambda y: 2 * y + 1
    out, values = twin(LIN, XS, mask, act)
    for given in (mask, jnp.asarray(mask)):
        hooked = px.ForwardHook(LIN, px.At(act, given), method=method)
        for run in (lambda f: f, eqx.filter_jit):
            got, log = run(lambda h, xs: h(xs))(hooked, XS)
            assert_close(got, out, rtol=5e-6)
            assert_close(log["."], values, rtol=5e-6)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_derivatives(mask):
    act = lambda y: jnp.sin(3 * y)

    def loss(lin, xs):
        hooked = px.ForwardHook(lin, px.At(act, mask), None, method=batch_in_scan)
        return jnp.sum(hooked(xs)[0] ** 2)

    expected = lambda lin, xs: jnp.sum(twin(lin, xs, mask, act)[0] ** 2)
    for derivative in (eqx.filter_grad, lambda f: jax.jacfwd(f, argnums=1)):
        got, want = (eqx.filter_jit(derivative(f))(LIN, XS) for f in (loss, expected))
        for a, b in zip(*map(jax.tree.leaves, (got, want)), strict=True):
            assert_close(a, b, rtol=1e-4)


def test_a_derivative_inside_of_the_model():
    """The data of a step stays with its step where JAX takes the loop apart."""
    mask = MASKS["steps"]

    def force(m, xs):
        return jax.grad(lambda xs: jnp.sum(batch_in_scan(m, xs) ** 2))(xs)

    act = lambda y: jnp.sin(3 * y)
    expected = jax.grad(lambda xs: jnp.sum(twin(LIN, xs, mask, act)[0] ** 2))(XS)
    hooked = px.ForwardHook(LIN, px.At(act, mask), method=force)
    for run in (lambda f: f, eqx.filter_jit):
        out, log = run(lambda h, xs: h(xs))(hooked, XS)
        assert_close(out, expected, rtol=1e-4)
        assert_close(log["."], twin(LIN, XS, mask, act)[1], rtol=5e-6)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_cotangents(mask):
    """In the backward pass, by hand from the last step to the first."""
    hooked = px.BackwardHook(LIN, px.At(px.ScaleHook(2.0), mask), method=batch_in_scan)
    hooked = hooked.init(XS)
    grad = eqx.filter_grad(lambda h, xs: jnp.sum(h(xs)))
    _, values = twin(LIN, XS, False, lambda y: y)
    c, expected = jnp.ones_like(XS), [None] * STEPS
    for i in reversed(range(STEPS)):
        c = c * (1 - jnp.tanh(values[i]) ** 2)
        c = jnp.where(jnp.broadcast_to(mask, SHAPE)[i], 2 * c, c)
        expected[i] = c
        c = c @ LIN.weight
    for run in (lambda f: f, eqx.filter_jit):
        grads = run(grad)(hooked, XS)
        assert_close(grads.log["."], jnp.stack(expected), rtol=1e-5)


#
# What doesn't act isn't run.
#


def counting(act):
    """A hook, and how often it ran."""
    ran = []

    def hook(value):
        jax.debug.callback(lambda: ran.append(1))
        return act(value)

    return hook, ran


@pytest.mark.parametrize("method", (batch_in_scan, scan_in_batch), ids=("in", "out"))
@pytest.mark.parametrize(
    "mask, times",
    (("steps", None), ("examples", STEPS), ("no", 0)),
)
def test_steps_at_which_a_mask_holds_nowhere_are_skipped(mask, times, method):
    mask = MASKS[mask]
    hook, ran = counting(lambda y: 2 * y)
    hooked = px.ForwardHook(LIN, px.At(hook, jnp.asarray(mask)), method=method)
    jax.block_until_ready(eqx.filter_jit(hooked)(XS))
    jax.effects_barrier()
    times = int(np.sum(mask)) if times is None else times
    assert len(ran) == times  # it is given all examples at once


def test_at_steps_a_log_is_run_there_alone():
    log_fn, ran = counting(lambda y: {"mean": jnp.mean(y), "none": None})
    hooked = px.ForwardHook(LIN, None, px.AtStep(log_fn, [1, -1]), method=batch_in_scan)
    _, log = eqx.filter_jit(hooked)(XS)
    jax.effects_barrier()
    assert len(ran) == 2
    _, values = twin(LIN, XS, False, lambda y: y)
    means = jnp.mean(values, axis=-1)
    expected = jnp.zeros_like(means).at[1].set(means[1]).at[4].set(means[4])
    assert_close(log["."]["mean"], expected, rtol=5e-6)


@pytest.mark.parametrize("mask", ("steps", "examples", "yes", "no"))
def test_logs_where_a_mask_holds(mask):
    mask = MASKS[mask]
    _, values = twin(LIN, XS, False, lambda y: y)
    where = jnp.broadcast_to(mask, SHAPE)[..., 0]
    norms = jnp.where(where, jnp.linalg.norm(values, axis=-1), 0)
    log_fn = px.At(px.NormLog(), mask)
    for run in (lambda f: f, eqx.filter_jit):
        hooked = px.ForwardHook(LIN, None, log_fn, method=batch_in_scan)
        assert_close(run(hooked)(XS)[1]["."], norms, rtol=5e-6)
    loss = lambda lin, xs: jnp.sum(batch_in_scan(lin, xs))
    step = px.value_and_grad(loss, backward={"**": log_fn}, forward=log_fn)
    (_, logs), _ = step(LIN, XS)
    assert_close(logs.forward["."], norms, rtol=5e-6)
    assert np.all((np.asarray(logs.backward["."]) != 0) == where)


def shapes(jaxpr):
    """Of all that is computed in a program."""
    for eqn in jaxpr.eqns:
        yield from (v.aval.shape for v in eqn.outvars)
        for param in jax.tree.leaves(list(eqn.params.values())):
            inner = getattr(param, "jaxpr", param)
            if hasattr(inner, "eqns"):
                yield from shapes(inner)


def test_a_derivative_keeps_nothing_of_a_hook_for_each_step():
    """As its weights, or what it makes of them, for the steps where it doesn't act."""
    wide = 50

    class Wide(eqx.Module):
        weight: jax.Array

        def __call__(self, y):
            return jnp.tanh(y @ self.weight) @ self.weight.T

    def loss(hook, xs):
        hooked = px.ForwardHook(LIN, px.AtStep(hook, 1), None, method=batch_in_scan)
        return jnp.sum(hooked(xs)[0])

    hook = Wide(jr.normal(jr.key(0), (WIDTH, wide)))
    grad = eqx.filter_grad(loss)
    found = set(shapes(jax.make_jaxpr(grad)(hook, XS).jaxpr))
    assert (BATCH, WIDTH) in found and (WIDTH, wide) in found
    assert not any(s[:1] == (STEPS,) and wide in s for s in found)
    by_hand = lambda hook, xs: jnp.sum(
        twin(LIN, xs, (jnp.arange(STEPS) == 1)[:, None, None], hook)[0]
    )
    expected = eqx.filter_grad(by_hand)(hook, XS)
    assert_close(grad(hook, XS).weight, expected.weight, rtol=1e-4)


def test_masks_and_steps_are_arrays():
    traces = 0

    @eqx.filter_jit
    def run(hook, xs):
        nonlocal traces
        traces += 1
        return px.ForwardHook(LIN, hook, method=batch_in_scan)(xs)[1]["."]

    for mask in (MASKS["all"], ~MASKS["all"]):
        expected = twin(LIN, XS, mask, lambda y: 0 * y)[1]
        assert_close(run(px.At(px.ZeroHook(), mask), XS), expected, rtol=5e-6)
    assert traces == 1
    for step in (2, -1):
        mask = (np.arange(STEPS) == step % STEPS).reshape(-1, 1, 1)
        expected = twin(LIN, XS, mask, lambda y: 0 * y)[1]
        assert_close(run(px.AtStep(px.ZeroHook(), step), XS), expected, rtol=5e-6)
    assert traces == 2


def test_masks_that_are_mapped_over():
    """One wrapper for each mask, as in a sweep."""
    steps = jnp.arange(STEPS)

    def patched(step, xs):
        mask = (steps == step)[:, None, None]
        hook = px.At(px.ZeroHook(), mask)
        return px.ForwardHook(LIN, hook, None, method=batch_in_scan)(xs)[0]

    got = eqx.filter_jit(jax.vmap(patched, in_axes=(0, None)))(steps, XS)
    for i in range(STEPS):
        mask = (np.arange(STEPS) == i)[:, None, None]
        assert_close(got[i], twin(LIN, XS, mask, lambda y: 0 * y)[0], rtol=5e-6)


def test_around_a_patch_and_in_a_chain():
    source = jr.normal(jr.key(1), SHAPE)
    mask, other = MASKS["all"], MASKS["steps"]
    patch = px.At(px.PatchHook({".": source}), mask)
    chain = px.Chain(patch, None, px.At(px.ScaleHook(2.0), other), px.AddHook(1.0))
    hooked = px.ForwardHook(LIN, px.AtStep(chain, [0, 3]), method=batch_in_scan)
    xs, values = XS, []
    for i in range(STEPS):
        y = xs @ LIN.weight.T + LIN.bias
        if i in (0, 3):
            y = jnp.where(mask[i], source[i], y)
            y = jnp.where(other[i], 2 * y, y) + 1
        values.append(y)
        xs = jnp.tanh(y)
    for run in (lambda f: f, eqx.filter_jit):
        assert_close(run(hooked)(XS)[1]["."], jnp.stack(values), rtol=5e-6)


def test_a_value_of_several_arrays():
    cell, h = eqx.nn.LSTMCell(2, WIDTH, key=jr.key(0)), jnp.zeros(WIDTH)
    run = lambda m, xs: lax.scan(lambda hc, x: (m(x, hc), None), (h, h), xs)[0]
    xs, mask = (
        jr.normal(jr.key(1), (3, 2)),
        jnp.zeros((3, WIDTH), bool).at[1, 2].set(True),
    )
    _, log = px.ForwardHook(cell, px.At(px.ZeroHook(), mask), method=run)(xs)
    state = h, h
    for i, x in enumerate(xs):
        state = tuple(jnp.where(mask[i], 0, y) for y in cell(x, state))
        for got, y in zip(log["."], state, strict=True):
            assert_close(got[i], y, rtol=5e-6)


#
# What is refused.
#


@pytest.mark.parametrize(
    "mask",
    (2, "l", [True, False], np.ones(3), None, {"l": 1.0}, {0: True}),
    ids=("int", "str", "list", "floats", "none", "dict", "key"),
)
def test_masks_are_bools(mask):
    with pytest.raises(
        TypeError, match="mask of an At is an array of bools, or a dict"
    ):
        px.At(px.ZeroHook(), mask)


@pytest.mark.parametrize(
    "hook", (None, {".": px.ZeroHook()}, px.ZeroHook), ids=("none", "dict", "class")
)
def test_what_cannot_act_where_a_mask_holds(hook):
    with pytest.raises(TypeError, match="At was given a hook of|hook of an At is the"):
        px.At(hook, True)


def test_masks_that_do_not_fit():
    at = lambda mask: px.ForwardHook(LIN, px.At(abs, mask), method=batch_in_scan)
    match = (
        r"shape \(5,\), doesn't.*logged there, float32\[5, 2, 3\].*first axes, write"
    )
    with pytest.raises(px.LogShapeError, match=match + r" `x.reshape\(\(5, 1, 1\)\)"):
        at(jnp.ones(STEPS, bool))(XS)
    with pytest.raises(px.LogShapeError, match=r"shape \(1, 5, 2, 3\), doesn't broad"):
        at(jnp.ones((1, *SHAPE), bool))(XS)
    square = lambda m, xs: lax.scan(lambda x, _: (m(x), None), xs[0], length=WIDTH)[0]
    hooked = px.ForwardHook(LIN, px.At(abs, jnp.ones(WIDTH, bool)), method=square)
    match = r"may be of the first or of the last axes.*\(3, 1\).*or .*\(1, 3\)"
    with pytest.raises(px.LogShapeError, match=match):
        hooked(XS)


def test_a_mask_of_a_log_that_varies_over_the_value():
    log_fn = px.At(px.NormLog(), MASKS["units"])
    hooked = px.ForwardHook(LIN, None, log_fn, method=batch_in_scan)
    with pytest.raises(
        px.LogShapeError, match=r"mask of a log at the site '\.'.*any\("
    ):
        hooked(XS)


def test_a_patch_is_no_log():
    with pytest.raises(
        TypeError, match="`log_fn` was given a PatchHook, which changes"
    ):
        px.ForwardHook(LIN, None, px.PatchHook({".": XS}))


def test_a_hook_where_a_mask_holds_keeps_shapes():
    for mask in (True, jnp.asarray(MASKS["steps"])):
        hooked = px.ForwardHook(LIN, px.At(lambda x: x[:1], mask), method=batch_in_scan)
        with pytest.raises(
            px.HookShapeError, match=r"hook_fn of the site '\.' changed"
        ):
            hooked(XS)
