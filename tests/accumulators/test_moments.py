"""The numbers of `px.Moments`, next to NumPy's in double precision."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close

import peex as px


def entries(log_fn, xs):
    return jax.vmap(log_fn)(jnp.asarray(xs))


def test_two_of_different_sizes():
    moments = px.Moments()
    three = moments.merge_axis(entries(moments, [1.0, 2, 3]))
    both = moments.merge(three, moments(jnp.array(10.0)))
    assert (both.count, both.mean, both.m2) == (4, 4, 50)
    assert_close(moments.merge(moments(jnp.array(10.0)), three), both)


def test_a_small_variance_next_to_the_mean():
    xs = 1e4 + np.random.default_rng(0).normal(size=(512, 3))
    xs = xs.astype(np.float32)
    expected = np.var(xs.astype(np.float64), 0)
    moments = px.Moments()
    step = jax.jit(lambda total, x: moments.merge(total, moments(x)))
    total = moments.empty(moments(jnp.asarray(xs[0])))
    for x in xs:
        total = step(total, x)
    found = (
        total,
        moments.merge_axis(entries(moments, xs)),
        px.Moments(0)(jnp.asarray(xs)),
    )
    for one in found:
        assert one.count == 512
        np.testing.assert_allclose(one.var, expected, 1e-3)
        np.testing.assert_allclose(one.mean, np.mean(xs.astype(np.float64), 0), 1e-6)
    naive = jnp.mean(jnp.asarray(xs) ** 2, 0) - jnp.mean(jnp.asarray(xs), 0) ** 2
    assert not np.allclose(naive, expected, 0.5)  # what this is for


def test_the_count_goes_on():
    """A float32 would stop at 2^24, a word at 2^32."""
    moments = px.Moments()
    many = moments(jnp.array(1.0))
    for _ in range(33):
        many = moments.merge(many, many)
    assert many.count == 2**33
    more = moments.merge(many, moments(jnp.array(1.0)))
    assert more.count == 2**33 + 1
    more = moments.merge_axis(jax.tree.map(lambda *x: jnp.stack(x), more, many, more))
    assert more.count == 3 * 2**33 + 2
    assert more.mean == 1
    traced = jax.jit(lambda entry: entry.count)(more)
    assert_close(traced, jnp.float32(3 * 2**33))
    assert_close(jax.vmap(lambda x: moments(x))(jnp.ones(2)).count, np.array([1, 1]))


def test_axes_of_the_value():
    x = np.random.default_rng(1).normal(size=(3, 4, 5)).astype(np.float32)
    for axis in (None, 0, -1, (0, 2), ()):
        one = px.Moments(axis)(jnp.asarray(x))
        assert one.count == x.size // np.mean(x, axis).size
        assert_close((one.mean, one.var), (np.mean(x, axis), np.var(x, axis)), 1e-5)


def test_dtypes():
    for dtype in (jnp.bfloat16, jnp.float16, jnp.int8, jnp.int32, bool):
        one = px.Moments()(jnp.ones(2, dtype))
        assert (one.mean.dtype, one.m2.dtype) == (jnp.float32, jnp.float32)
    summed = px.Sum()(dict(h=jnp.ones(2, jnp.float16), i=jnp.ones(2, jnp.int8)))
    assert (summed["h"].dtype, summed["i"].dtype) == (jnp.float32, jnp.int32)
    assert px.Max()(jnp.ones(2, jnp.bfloat16)).dtype == jnp.bfloat16
    # A sum in half precision would stop at 2048.
    halves = jax.vmap(px.Sum())(jnp.ones(4096, jnp.float16))
    assert px.Sum().merge_axis(halves) == 4096
    assert px.Moments()(dict(x=jnp.ones(2), key=jax.random.key(0)))["key"] is None
    with jax.enable_x64(True):
        assert px.Moments()(jnp.ones(2)).mean.dtype == jnp.float64
        assert px.Moments()(jnp.arange(2)).m2.dtype == jnp.float64


def test_complex_values():
    x = jnp.array([1 + 1j, 3 - 1j, 2 + 3j], jnp.complex64)
    moments = px.Moments()
    one = moments.merge_axis(entries(moments, x))
    assert_close((one.mean, one.var), (jnp.mean(x), jnp.var(x)))
    assert_close(px.Moments(0)(x), one)
    sums = jax.tree.map(lambda x: jnp.sum(x, 0), jax.vmap(moments.to_sums)(x))
    assert_close(moments.from_sums(sums), one)
    with pytest.raises(px.LogValueError, match=r"complex64, which has no max.*jnp.abs"):
        px.Max()(x)


def test_derivatives():
    """As of any log: of a loss on the variance of activations."""
    moments = px.Moments()
    xs = jnp.array([1.0, 2, 4, 9])

    def var(xs):
        step = lambda total, x: (moments.merge(total, moments(x)), None)
        start = moments.empty(moments(xs[0]))
        return jax.lax.scan(step, start, xs)[0].var

    assert_close(jax.grad(var)(xs), jax.grad(jnp.var)(xs))
    by_axis = lambda xs: moments.merge_axis(jax.vmap(moments)(xs)).var
    assert_close(jax.grad(by_axis)(xs), jax.grad(jnp.var)(xs))


def test_what_is_shown():
    """Mean, standard deviation and count: as a table, and as curves have it."""
    x = jnp.array([1.0, 2, 6])
    hooked = px.ForwardHook(eqx.nn.Identity(), None, px.Moments(None))
    _, log = hooked(x)
    expected = {"./mean": 3.0, "./std": 14 / 3, "./count": 3}
    expected["./std"] **= 0.5
    assert_close(log.scalars(), expected)
    rows = [line.split()[:2] for line in str(log).splitlines()]
    assert ["./mean", "f32[]"] in rows
    assert ["./count", "i64[]"] in rows
    traced = jax.jit(lambda x: hooked(x)[1].scalars())(x)
    assert_close({k: float(v) for k, v in traced.items()}, expected)
    loss = lambda part, x: jnp.sum(part(x))
    (_, logs), _ = px.value_and_grad(loss, backward=px.Moments(None))(
        eqx.nn.Identity(), x
    )
    assert logs.backward.scalars() == {"./mean": 1, "./std": 0, "./count": 3}
    assert "./std" in str(logs)
