"""The built-in hooks and logs, each against its formula in numpy."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close

import peex as px


rng = np.random.default_rng(0)
FLOATS = rng.normal(size=(2, 3)).astype(np.float32)
VALUES = {
    "float32": jnp.asarray(FLOATS),
    "scalar": jnp.asarray(1.5),
    "bfloat16": jnp.asarray(FLOATS, jnp.bfloat16),
    "float16": jnp.asarray(FLOATS, jnp.float16),
    "complex64": jnp.asarray(FLOATS + 1j * FLOATS[::-1]),
    "int32": jnp.array([[3, -4], [0, 1]]),
    "large int32": jnp.array([100_000, -200_000, 2_000_000_000]),
    "int8": jnp.array([100, -100, 127, -128], jnp.int8),
    "uint8": jnp.array([200, 250, 0], jnp.uint8),
    "bool": jnp.array([True, False, True]),
}
values = pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)


def wide(x):
    """In numpy, in double precision."""
    x = np.asarray(x)
    if np.iscomplexobj(x):
        return x.astype(np.complex128)
    return x.astype(np.float64)


LOGS = {
    "mean": (px.MeanLog(), lambda x: np.sum(x) / x.size),
    "norm": (px.NormLog(), lambda x: np.sqrt(np.sum(np.abs(x) ** 2))),
    "max_abs": (px.MaxAbsLog(), lambda x: np.max(np.abs(x))),
}


class Constant(eqx.Module):
    value: jax.Array

    def __call__(self):
        return self.value


def logged(log_fn, value):
    """What a log records of a value that a model computes."""
    out, log = px.ForwardHook(Constant(value), log_fn=log_fn)()
    assert out is value or jnp.array_equal(out, value)
    return log["."]


@values
@pytest.mark.parametrize(("log_fn", "formula"), LOGS.values(), ids=LOGS)
def test_log(log_fn, formula, value):
    got = logged(log_fn, value)
    assert got.shape == ()
    if jnp.issubdtype(value.dtype, jnp.floating) or value.dtype == bool:
        # Statistics of half precision are in single precision.
        assert got.dtype == jnp.float32
    assert_close(wide(got), formula(wide(value)))


@values
def test_mean_std(value):
    got = logged(px.MeanStdLog(), value)
    assert isinstance(got, px.MeanStd)
    x = wide(value)
    mean = np.sum(x) / x.size
    std = np.sqrt(np.sum(np.abs(x - mean) ** 2) / x.size)
    assert_close(wide(got.mean), mean)
    assert_close(wide(got.std), std, rtol=1e-5, atol=1e-6)
    assert got.std.dtype == jnp.float32


@values
def test_histogram(value):
    edges = [-1.5, 0.0, 0.5, 3.0, 150.0]
    got = logged(px.HistogramLog(edges), value)
    x = wide(value)
    x = np.abs(x) if np.iscomplexobj(x) else x
    expected, _ = np.histogram(x, [-np.inf, *edges, np.inf])
    assert got.dtype == jnp.int32
    np.testing.assert_array_equal(got, expected)


def test_histogram_loses_nothing():
    value = jnp.array([jnp.nan, jnp.inf, -jnp.inf, 0.0, 1.0])
    got = logged(px.HistogramLog(np.array([0.0, 1.0])), value)
    np.testing.assert_array_equal(got, [1, 1, 3])
    with pytest.raises(ValueError, match="at least one number"):
        px.HistogramLog([])


def test_histogram_of_cotangents():
    linear = eqx.nn.Linear(2, 3, key=jax.random.key(0))
    hooked = px.BackwardHook(linear, log_fn=px.HistogramLog([0.0, 2.0]))
    hooked = hooked.init(jnp.ones(2))
    weights = jnp.array([1.0, -1.0, 5.0])
    grads = eqx.filter_grad(lambda h: jnp.sum(h(jnp.ones(2)) * weights))(hooked)
    np.testing.assert_array_equal(grads.log["."], [1, 1, 1])


@values
def test_identity_and_none(value):
    got = logged(px.IdentityLog(), value)
    assert got.dtype == value.dtype
    np.testing.assert_array_equal(got, value)
    assert logged(px.NoneLog(), value) is None


def test_empty_arrays():
    empty = jnp.zeros((0, 3))
    assert logged(px.NormLog(), empty) == 0
    assert logged(px.MaxAbsLog(), empty) == 0
    assert logged(px.IdentityLog(), empty).shape == (0, 3)
    # 0 / 0, as the formulas say, and without a warning.
    assert np.isnan(logged(px.MeanLog(), empty))
    assert np.isnan(logged(px.MeanStdLog(), empty).std)


def test_logs_of_pytrees():
    value = {"a": jnp.array([3.0, 4.0]), "b": (None, jnp.array([-1.0]), "name")}
    norm = logged_tree(px.NormLog(), value)
    assert jax.tree.structure(norm) == jax.tree.structure(
        {"a": 0, "b": (None, 0, None)}
    )
    assert norm["a"] == 5 and norm["b"][1] == 1
    both = logged_tree(px.MeanStdLog(), value)
    assert both.mean["a"] == 3.5 and both.std["a"] == 0.5


def logged_tree(log_fn, value):
    class Model(eqx.Module):
        def __call__(self):
            return value

    return px.ForwardHook(Model(), log_fn=log_fn)()[1]["."]


def test_keys_have_no_statistics():
    key = jax.random.key(0)
    for log_fn in (px.MeanLog(), px.NormLog(), px.MaxAbsLog(), px.HistogramLog([0.0])):
        assert logged(log_fn, key) is None
    assert jnp.array_equal(logged(px.IdentityLog(), key), key)


def test_norm_is_differentiable():
    # A log of the forward pass may be a part of the loss.
    linear = eqx.nn.Linear(2, 3, key=jax.random.key(0))
    x = jnp.array([1.0, -2.0])
    grads = eqx.filter_grad(lambda h: h(x)[1]["."])(
        px.ForwardHook(linear, log_fn=px.NormLog())
    )
    plain = eqx.filter_grad(lambda m: jnp.linalg.norm(m(x)))(linear)
    assert_close(grads.model.bias, plain.bias)


# Hooks


def hooked_value(hook_fn, value):
    out, log = px.ForwardHook(Constant(value), hook_fn)()
    assert out.dtype == value.dtype and out.shape == value.shape
    np.testing.assert_array_equal(out, log["."])
    return out


@values
def test_identity_hook(value):
    np.testing.assert_array_equal(hooked_value(px.IdentityHook(), value), value)


@pytest.mark.usefixtures("standard_promotion")
@values
def test_zero_hook(value):
    np.testing.assert_array_equal(hooked_value(px.ZeroHook(), value), 0 * value)


def tolerance(dtype):
    return 1e-2 if jnp.dtype(dtype).itemsize == 2 else 1e-6


@pytest.mark.usefixtures("standard_promotion")
@values
@pytest.mark.parametrize("scale", [2, 0.5, jnp.array(2.0), np.float32(2.0)])
def test_scale_hook(value, scale):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = hooked_value(px.ScaleHook(scale), value)
    if not jnp.issubdtype(value.dtype, jnp.inexact):
        expected = jnp.asarray(scale * value, value.dtype)
        np.testing.assert_array_equal(got, expected)
    else:
        expected = np.asarray(scale) * wide(value)
        assert_close(wide(got), expected, rtol=tolerance(value.dtype))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.complex64, jnp.int32])
def test_add_hook(dtype):
    value = jnp.asarray(FLOATS * 4, dtype)
    for offset in (1, 2.5, jnp.array([1.0, 2.0, 3.0]), FLOATS):
        got = hooked_value(px.AddHook(offset), value)
        sum_ = np.asarray(value) + np.asarray(offset)
        expected = wide(sum_.astype(np.asarray(value).dtype))
        assert_close(wide(got), expected, rtol=1e-2)


@pytest.mark.parametrize(
    "hook", [px.IdentityHook(), px.ZeroHook(), px.ScaleHook(2.0), px.AddHook(1.0)]
)
def test_hooks_keep_random_keys(hook):
    # As where the arguments of a Dropout are scaled.
    dropout = eqx.nn.Dropout(0.5)

    class Model(eqx.Module):
        dropout: eqx.nn.Dropout

        def __call__(self, x, key):
            return self.dropout(x, key=key) + jax.random.normal(key)

    key, x = jax.random.key(3), jnp.arange(4.0)
    hooked = px.ForwardHook(
        Model(dropout), hook, where="dropout", pre_hook=True, with_kwargs=True
    )
    out, log = hooked(x, key)
    (x2,), kwargs = log["dropout"]
    assert jnp.array_equal(kwargs["key"], key)
    np.testing.assert_array_equal(x2, hook(x))
    expected = dropout(x2, key=key) + jax.random.normal(key)
    assert_close(out, expected)


def test_numbers_are_static_and_arrays_dynamic():
    leaves = lambda hook: jax.tree.leaves(eqx.filter(hook, eqx.is_array))
    assert (
        leaves(px.ScaleHook(2.0)) == [] and len(leaves(px.ScaleHook(jnp.ones(())))) == 1
    )
    assert leaves(px.AddHook(2.0)) == [] and len(leaves(px.AddHook(jnp.ones(3)))) == 1


def test_abstract_bases():
    with pytest.raises(TypeError, match="abstract"):
        px.AbstractHook()
    with pytest.raises(TypeError, match="abstract"):
        px.AbstractLog()


BACKWARD = {
    "identity": (px.IdentityLog(), lambda x: x),
    "none": (px.NoneLog(), lambda x: None),
    **LOGS,
}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.complex64])
@pytest.mark.parametrize(("log_fn", "formula"), BACKWARD.values(), ids=BACKWARD)
def test_backward_log(log_fn, formula, dtype):
    x = jnp.asarray(FLOATS, dtype)
    weights = jnp.asarray(FLOATS[::-1], dtype)
    hooked = px.BackwardHook(eqx.nn.Lambda(lambda x: x), log_fn=log_fn).init(x)
    loss = lambda h: jnp.sum(jnp.real(h(x) * weights).astype(jnp.float32))
    got = eqx.filter_grad(loss)(hooked).log["."]
    expected = formula(wide(weights))
    if expected is None:
        assert got is None
    else:
        assert_close(wide(got), expected)
