"""What is recorded of a value, next to NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import peex as px
from peex.monitoring.stats import DEFAULT
from peex.monitoring.summary import statistics_of
from peex.monitoring.windows import merged, of_step


EVERY = px.monitoring.Stats(
    *DEFAULT,
    "highest",
    "entropy",
    "dead",
    px.HistogramLog([-1.0, 0.5]),
    dtype="float16",
)


@eqx.filter_jit
def window(value):
    """Of examples, each recorded alone."""
    return of_step(jax.vmap(EVERY)(value), (0,), ())


def numpy_says(x, dtype=np.float16):
    """Over all elements, in float64."""
    x = np.asarray(x, np.float64)
    good, info = x[np.isfinite(x)], jnp.finfo(dtype)
    size, tiny = np.abs(good), float(info.smallest_normal)
    rms = np.sqrt(np.mean(good**2))
    some = np.where(x > 0, x, 1)
    return {
        "mean": np.mean(good),
        "rms": rms,
        "std": np.std(good),
        "max": np.max(size),
        "zeros": np.mean(x == 0),
        "nonfinite": np.sum(~np.isfinite(x)),
        "headroom": np.log2(float(info.max) / np.max(size)),
        "footroom": np.log2(rms / tiny),
        "highest": np.max(good),
        "entropy": np.mean(np.sum(-some * np.log(some), -1)[np.isfinite(x).all(-1)]),
        "dead": np.mean(np.all(x.reshape(-1, x.shape[-1]) == 0, 0)),
        "flushed": np.sum((size > 0) & (size < tiny)) / x.size,
        "saturated": np.sum(size > float(info.max)) / x.size,
        "histogram": (
            (np.sum(x < -1), np.sum((x >= -1) & (x < 0.5)), np.sum(~(x < 0.5))),
            (-1.0, 0.5),
        ),
    }


def assert_same(got, expected, scale=1.0):
    assert list(got) == list(expected)
    assert got.pop("histogram") == expected.pop("histogram")
    for name in expected:
        # What is left of values of order `scale` that cancel is rounded as they were.
        atol = 1e-5 * scale if name == "mean" else 0
        np.testing.assert_allclose(got[name], expected[name], 1e-5, atol, err_msg=name)


KEY = jax.random.key(0)
NORMAL = jax.random.normal(KEY, (6, 3, 40))
VALUES = {
    "normal": NORMAL,
    "far from zero": 1e4 + NORMAL,
    "an outlier in front": NORMAL.at[:, 0, 0].set(1e3),
    "sparse": jax.nn.relu(NORMAL).at[:, :, 7].set(0),
    "not finite": NORMAL.at[0, 1].set(jnp.nan).at[2, 0, 5].set(jnp.inf),
    "of any size": 10.0 ** (6 * NORMAL),
}


@pytest.mark.parametrize("name", VALUES)
def test_as_numpy(name):
    value = VALUES[name]
    got = statistics_of(window(value))
    with np.errstate(all="ignore"):
        assert_same(
            got, numpy_says(value), float(np.std(value, where=np.isfinite(value)))
        )


def test_merged_steps_are_one_of_all():
    first, second = NORMAL, 3 + 2 * NORMAL
    both = statistics_of(merged(window(first), window(second)))
    assert_same(both, numpy_says(jnp.concatenate([first, second])))


def test_other_dtypes():
    stats = px.monitoring.Stats("mean", "max", "headroom", "footroom")
    half = NORMAL[0].astype(jnp.bfloat16)
    whole = jnp.array([[3, -5], [0, 1]])
    value = (
        half,
        jax.lax.complex(NORMAL[1], NORMAL[0]),
        whole,
        whole > 0,
        jax.random.key(1),
    )
    *got, key = (
        jax.tree.map(lambda one: of_step(one, (), ()), x, is_leaf=_recorded)
        for x in stats(value)
    )
    assert key is None
    got = [statistics_of(x) for x in got]
    expected = numpy_says(half, jnp.bfloat16)
    for name in got[0]:
        np.testing.assert_allclose(got[0][name], expected[name], 1e-5, 1e-5)
    size = np.abs(np.asarray(value[1]))
    np.testing.assert_allclose(
        [got[1]["mean"], got[1]["max"]], [size.mean(), size.max()], 1e-5
    )
    assert (got[2]["mean"], got[2]["max"]) == (-0.25, 5)
    assert (got[3]["mean"], got[3]["max"]) == (0.5, 1)
    assert np.isnan([got[2]["headroom"], got[3]["footroom"]]).all()


def _recorded(x):
    return hasattr(x, "wanted")


def test_empty_values_and_scalars():
    stats = px.monitoring.Stats("mean", "nonfinite", "dead", "entropy")
    nothing = statistics_of(of_step(stats(jnp.zeros((0, 3))), (), ()))
    assert nothing["nonfinite"] == 0
    assert np.isnan([nothing["mean"], nothing["dead"], nothing["entropy"]]).all()
    one = statistics_of(of_step(stats(jnp.array(0.5)), (), ()))
    assert (one["mean"], one["dead"]) == (0.5, 0)


def test_counts_beyond_float32():
    """As of many steps."""
    stats = px.monitoring.Stats("rms", "zeros")
    one = of_step(stats(jnp.zeros(3)), (), ())
    many = eqx.tree_at(
        lambda w: (w.counts["zeros"], w.moments["values"].words),
        one,
        (jnp.array([2**32 - 1, 4], jnp.uint32),) * 2,
    )
    both = merged(many, one)
    assert both.counts["zeros"].tolist() == [2, 5]
    assert both.moments["values"].count == 2 + 5 * 2**32


def test_units_of_another_axis():
    value = NORMAL[0].at[1].set(0)
    stats = px.monitoring.Stats("dead", unit_axis=0)
    got = statistics_of(of_step(stats(value), (), ()))
    np.testing.assert_allclose(got["dead"], 1 / 3)


@pytest.mark.parametrize(
    "args, kwargs, message",
    [
        (("rsm",), {}, r"'rsm', which isn't the name of a statistic. There are: mean,"),
        ((px.NormLog(),), {}, r"one `px.HistogramLog`, as in .*; got NormLog"),
        (("flushed",), {}, r"say which, as in `px.monitoring.Stats\('rms', dtype="),
        ((), {"dtype": "int8"}, r"is a floating point dtype, .*; got 'int8'"),
        ((), {"dtype": "float17"}, r"is a floating point dtype, .*; got 'float17'"),
    ],
    ids=["name", "log", "no dtype", "integer", "no such dtype"],
)
def test_refused(args, kwargs, message):
    with pytest.raises(ValueError, match=message):
        px.monitoring.Stats(*args, **kwargs)
