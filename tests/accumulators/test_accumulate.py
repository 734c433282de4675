"""Logs that were stacked, merged afterwards; and the largest values."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close
from jax import lax

import peex as px


ITSELF = eqx.nn.Identity()


def steps(part, xs):
    return lax.map(part, xs)


def episode(num=5):
    h = jnp.arange(float(num))[:, None] * jnp.array([1.0, 10])
    return px.ForwardHook(ITSELF, method=steps)(h)[1]


def test_dead_steps_are_left_out():
    alive = jnp.array([True, True, True, False, False])
    total = px.accumulate(episode(), px.Moments(), mask=alive)
    assert total["."].count == 3
    assert_close(total["."].mean, jnp.array([1.0, 10]))
    assert_close(total["."].std, jnp.array([0.8164966, 8.164966]))
    assert total.axes == {}
    more = px.accumulate(episode(6), px.Moments())
    both = px.merge(total, more)
    assert both["."].count == 9
    assert_close(both["."].mean[0], jnp.float32(2.0))
    largest = px.accumulate(episode(), px.Max(), mask=alive)
    assert_close(largest["."], jnp.array([2.0, 20]))
    none = jax.jit(lambda mask: px.accumulate(episode(), px.Min(), mask=mask))
    assert_close(none(jnp.zeros(5, bool))["."], jnp.full(2, jnp.inf))


def test_axes_of_steps_and_examples():
    xs = jax.random.normal(jax.random.key(0), (3, 4, 2))
    run = lambda part, xs: lax.map(lambda x: jax.vmap(part)(x), xs)
    hooked = px.ForwardHook(ITSELF, method=run)
    _, log = hooked(xs)
    by_log = px.accumulate(log, px.Moments())["."]
    _, where = px.ForwardHook(ITSELF, None, px.Moments(), method=run)(xs)
    assert by_log.count == where["."].count == 12
    assert_close((by_log.mean, by_log.m2), (where["."].mean, where["."].m2))
    # A mask of the steps alone, and one of both.
    for mask in (
        jnp.array([True, False, True]),
        jnp.ones((3, 4), bool).at[1].set(False),
    ):
        some = px.accumulate(log, px.Moments(), mask=mask)["."]
        assert some.count == 8
        assert_close(some.mean, jnp.mean(xs[jnp.array([0, 2])], (0, 1)))
    _, mapped = eqx.filter_vmap(hooked)(jnp.stack([xs, xs]))
    with pytest.raises(
        px.LogShapeError, match=r"f32\[2,3,4,2\].*size \(3, 4\).*in front"
    ):
        px.accumulate(mapped, px.Moments())
    with pytest.raises(px.LogShapeError, match=r"the mask is of shape \(4,\)"):
        px.accumulate(log, px.Moments(), mask=jnp.ones(4, bool))
    whole = px.accumulate(mapped, px.Moments(), mask=jnp.ones((2, 3, 4), bool))
    assert whole["."].count == 24
    by_mask = px.accumulate(dict(log), px.Max(), mask=np.ones((3, 4), bool))
    assert_close(by_mask["."], jnp.max(xs, (0, 1)))
    for args in (log["."], px.Moments()), (log, px.NormLog()):
        with pytest.raises(TypeError, match="takes a log, an accumulator and a mask"):
            px.accumulate(*args)
    with pytest.raises(TypeError, match="got a Log, a Max, float32"):
        px.accumulate(log, px.Max(), mask=jnp.ones(3))


def test_where_a_site_ran():
    def branches(part, xs):
        return lax.map(lambda x: lax.cond(x > 0, part, lambda x: x, x), xs)

    xs = jnp.array([3.0, -1, 2, -5])
    _, log = px.ForwardHook(ITSELF, method=branches)(xs)
    total = px.accumulate(log, px.Moments())["."]
    assert (total.count, total.mean) == (2, 2.5)
    _, one = px.ForwardHook(ITSELF)(xs[0])
    assert px.accumulate(one, px.Moments())["."].count == 1

    def loop(part, x):
        return lax.while_loop(lambda x: x < 9, lambda x: 2 * part(x), x)

    _, last = px.ForwardHook(ITSELF, method=loop, while_buffer=2)(jnp.array(1.0))
    with pytest.raises(px.LogShapeError, match="last iterations of a `while` loop"):
        px.accumulate(last, px.Moments())


def test_top_k():
    values = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    top = px.TopK(4)
    batches = (slice(0, 2), slice(2, 7), slice(7, 12))
    each = [top.of(jnp.asarray(values[b]), jnp.arange(100)[b]) for b in batches]
    found = top.merge(top.merge(each[2], each[0]), each[1])
    order = np.argsort(-values, axis=0)[:4]
    assert_close(found.ids, jnp.asarray(order))
    assert_close(found.values, jnp.asarray(np.take_along_axis(values, order, 0)))
    assert each[0].ids.tolist()[2:] == [[-1] * 3] * 2
    assert np.all(np.asarray(each[0].values[2:]) == -np.inf)
    ints = px.TopK(2).of(jnp.array([3]), jnp.array([7]))
    assert ints.ids.tolist() == [7, -1]
    assert ints.values.tolist() == [3, np.iinfo(np.int32).min]
    with pytest.raises(ValueError, match="positive number of values; got 0"):
        px.TopK(0)
