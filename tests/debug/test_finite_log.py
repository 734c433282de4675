"""Watching a training step."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from nonfinite_models import Chain, Fn, mean, Recurrent, scales, Scanned

import peex as px


def watched(loss, where=None):
    """A jitted step, and how often it was traced."""
    traced = []

    @eqx.filter_jit
    def step(model, batch, on):
        traced.append(None)
        watch = px.debug.FiniteLog(on)
        step = px.value_and_grad(loss, forward=watch, backward=watch, where=where)
        (value, logs), grads = step(model, batch)
        return value, grads, logs, px.debug.first_nonfinite(logs)

    return step, traced


BATCH = jnp.ones((6, 3)).at[1:5].set(45.0)
ON = jnp.array(True)


def test_names_the_first_in_a_scanned_stack():
    step, _ = watched(mean)
    _, _, logs, bad = step(Scanned(), BATCH, ON)
    assert bad.dtype == jnp.int32 and bad.shape == ()
    assert logs.forward["layers.act"].dtype == bool
    assert logs.forward["layers.act"].shape == (6, 6)
    blame = px.debug.blame(logs, bad)
    assert (blame.key, blame.direction) == ("layers.act", "forward")
    assert blame.step == (2,) and blame.examples == (1, 2, 3, 4)
    assert str(blame) == "layers.act, forward, step 2, examples 1 to 4: inf or nan"


def test_changes_nothing():
    step, _ = watched(mean)
    value, grads, _, bad = step(Scanned(), BATCH[:1], ON)
    expected = eqx.filter_jit(eqx.filter_value_and_grad(mean))(Scanned(), BATCH[:1])
    assert bad == -1
    np.testing.assert_array_equal(value, expected[0])
    np.testing.assert_array_equal(grads.layers.scale, expected[1].layers.scale)


def test_flipping_it_traces_and_compiles_once():
    step, traced = watched(mean)
    flags = [jnp.array(on) for on in (True, False, True, False)]
    found = [int(step(Scanned(), BATCH, on)[3]) for on in flags]
    assert len(traced) == 1
    assert found[0] == found[2] >= 0 and found[1] == found[3] == -1


def test_off_reads_nothing():
    """Where it is off, only a branch is left, which isn't a select."""

    def run(on):
        log = px.debug.FiniteLog(on)
        return px.ForwardHook(Scanned(), log_fn=log, method=mean)(BATCH)

    text = str(jax.make_jaxpr(run)(ON))
    assert text.count("cond[") == 1 and "is_finite" in text
    off = str(jax.make_jaxpr(lambda: run(False))())
    assert "cond[" not in off and "is_finite" not in off


def test_by_step_in_a_loop_not_by_site():
    xs = jnp.ones((1, 8, 2), jnp.float16).at[0, 5].set(100).at[0, 2].set(100)
    step, _ = watched(mean)
    _, _, logs, bad = step(Recurrent(), xs, ON)
    blame = px.debug.blame(logs, bad)
    assert (blame.key, blame.step) == ("scale", (2,))
    # The cell was there at step 2 before the scale was at step 5.
    kinds = np.asarray(logs.forward["cell"])[:, 0]
    assert kinds.tolist() == [False] * 2 + [True] * 6


def test_born_in_the_backward_pass():
    model = Chain(Fn(jnp.sin), Fn(jnp.linalg.norm))
    step, _ = watched(mean)
    xs = jnp.ones((3, 2)).at[1].set(0)
    value, _, logs, bad = step(model, xs, ON)
    assert np.isfinite(value)
    blame = px.debug.blame(logs, bad)
    # The first cotangent that a site sees is that of the output of what is in front.
    assert (blame.key, blame.direction, blame.examples) == ("parts.0", "backward", (1,))


def test_of_a_loop_the_last_step_is_first_in_the_backward_pass():
    class Loop(eqx.Module):
        inner: Fn
        w: jax.Array

        def __call__(self, xs):
            step = lambda c, x: (c + jnp.sqrt(self.inner(self.w * x)), None)
            return jax.lax.scan(step, 0.0, xs)[0]

    model = Loop(Fn(jnp.abs), jnp.array(1.0))
    step, _ = watched(mean)
    xs = jnp.ones((3, 5)).at[1, 4].set(0).at[0, 2].set(0)
    _, _, logs, bad = step(model, xs, ON)
    blame = px.debug.blame(logs, bad)
    assert (blame.direction, blame.step, blame.examples) == ("backward", (4,), (1,))


def test_loops_in_loops():
    class Nested(eqx.Module):
        inner: Fn
        outer: Fn

        def __call__(self, xs):
            def row(c, x):
                c, _ = jax.lax.scan(lambda c, y: (c + self.inner(y), None), c, x)
                return self.outer(c), None

            return jax.lax.scan(row, 0.0, xs)[0]

    model = Nested(Fn(lambda x: 1 / x), Fn(jnp.arctan))
    xs = jnp.ones((3, 4)).at[1, 2].set(0).at[2, 0].set(0)
    _, log = px.ForwardHook(model, log_fn=px.debug.FiniteLog())(xs)
    blame = px.debug.blame(log, px.debug.first_nonfinite(log))
    assert (blame.key, blame.step) == ("inner", (1, 2))


def test_every_number_is_of_one_place():
    """In the order in which a run of the same in Python comes to them."""
    order = []

    class Noted(eqx.Module):
        name: str = eqx.field(static=True)

        def __call__(self, x):
            return x

    class Nested(eqx.Module):
        a: Noted
        b: Noted
        c: Noted

        def __call__(self, xs):
            def row(c, x):
                x = self.a(x)
                c, _ = jax.lax.scan(lambda c, y: (c + self.b(y), None), c, x)
                return self.c(c), None

            return self.a(jax.lax.scan(row, 0.0, xs)[0])

    for i in range(3):
        order += [("a", (i,)), *(("b", (i, j)) for j in range(2)), ("c", (i,))]
    order.append(("a#1", ()))
    model = Nested(*map(Noted, "abc"))
    _, log = px.ForwardHook(model, log_fn=px.debug.FiniteLog())(jnp.ones((3, 2)))
    for n, (key, step) in enumerate(order):
        marked = px.Log(
            {k: x.at[step].set(True) if k == key else x for k, x in log.items()},
            axes=log.axes,
        )
        assert px.debug.first_nonfinite(marked) == n
        assert px.debug.blame(marked, n).step == step
        back = px.Logs(marked, px.Log())
        assert px.debug.first_nonfinite(back) == len(order) - 1 - n


def test_under_vmap_the_examples_are_in_front():
    hooked = px.ForwardHook(Fn(jnp.log), log_fn=px.debug.FiniteLog())
    _, log = jax.vmap(hooked)(jnp.ones((4, 2)).at[2].set(0))
    assert px.debug.blame(log, px.debug.first_nonfinite(log)).examples == (2,)


def test_of_any_array():
    log = px.debug.FiniteLog()
    inf, nan = jnp.inf, jnp.nan
    for value, bad in [
        (jnp.array([1.0, -inf]), True),
        (jnp.array([inf, -nan]), True),
        ((jnp.ones(2), {"a": jnp.array([complex(1, inf)])}), True),
        (jnp.array([65504, inf], jnp.float16), True),
        (jnp.array([nan], jnp.bfloat16), True),
        (jnp.array([448, 0], jnp.float8_e4m3fn), False),
        (jnp.array([nan, 0], jnp.float8_e4m3fn), True),
        (jnp.zeros((0, 3)), False),
        (jnp.finfo(jnp.float32).max, False),
        (jnp.array([7]), False),
        (None, False),
    ]:
        got = log(value)
        assert got.dtype == bool and got == bad, value


def test_float64_is_not_narrowed():
    with jax.enable_x64(True):
        log = px.debug.FiniteLog()
        assert not log(jnp.array([1e300])) and log(jnp.array([jnp.inf]))


def test_refuses_the_update():
    """The pattern of the docs: the model before the step is still there."""
    model = Scanned(scales())

    @eqx.filter_jit(donate="all-except-first")
    def step(batch, model):
        watch = px.debug.FiniteLog()
        step = px.value_and_grad(mean, forward=watch, backward=watch)
        (value, logs), grads = step(model, batch)
        bad = px.debug.first_nonfinite(logs)
        new = eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads))
        keep = lambda new, old: jnp.where(bad < 0, new, old)
        return jax.tree.map(keep, new, model), value, bad

    before = np.asarray(model.layers.scale)
    model, value, bad = step(BATCH, jax.tree.map(jnp.copy, model))
    assert bad >= 0 and not np.isfinite(value)
    np.testing.assert_array_equal(model.layers.scale, before)
    found = px.debug.find_nonfinite(model, BATCH, method=mean)
    assert (found.first.key, found.first.op) == ("layers.act", "exp")


def test_what_is_no_flag_is_refused():
    for on in (jnp.ones(2, bool), jnp.array(1), 1, None, np.array([True])):
        with pytest.raises(TypeError, match=r"`on` of a FiniteLog is a bool"):
            px.debug.FiniteLog(on)


def test_other_logs_are_refused():
    _, log = px.ForwardHook(Fn(jnp.sin))(jnp.ones(2))
    match = r"'\.' isn't one of a `px\.debug\.FiniteLog`, .* got float32"
    with pytest.raises(px.LogValueError, match=match):
        px.debug.first_nonfinite(log)
    _, log = px.ForwardHook(Fn(jnp.sin), log_fn=px.MeanStdLog())(jnp.ones(2))
    with pytest.raises(px.LogValueError, match=r"got MeanStd"):
        px.debug.blame(log, 0)


def test_other_numbers_are_refused():
    _, log = px.ForwardHook(Fn(jnp.sin), log_fn=px.debug.FiniteLog())(jnp.ones(2))
    assert px.debug.blame(log, px.debug.first_nonfinite(log)) is None
    for bad in (0, 7, -2):
        with pytest.raises(ValueError, match=r"isn't where something in these logs"):
            px.debug.blame(log, bad)
