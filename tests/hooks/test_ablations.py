"""What is put in the place of a value, taken from it, added to it: against NumPy."""

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


LIN, X = linear(3, 4, 0), jnp.arange(3.0) / 3
Y = np.asarray(LIN(X))
FLOATS = jr.normal(jr.key(0), (3, 4))


def acted(hook, value):
    """What a hook makes of a value that a model hands on."""
    model = eqx.nn.Identity()
    out, log = px.ForwardHook(model, hook)(value)
    assert jax.tree.map(jnp.result_type, out) == jax.tree.map(jnp.result_type, value)
    jitted, _ = eqx.filter_jit(px.ForwardHook(model, hook))(value)
    assert_close(jitted, out, rtol=1e-5)
    return out


DTYPES = ("float32", "bfloat16", "float16")


@pytest.mark.parametrize("dtype", (*DTYPES, "int32", "complex64"))
def test_replace(dtype):
    value = jnp.ones((3, 4), dtype)
    for new in (2, jnp.arange(4.0), jnp.arange(12.0).reshape(3, 4)):
        expected = np.broadcast_to(np.asarray(new), (3, 4)).astype(dtype)
        assert_close(acted(px.ReplaceHook(new), value), expected)


def test_replace_a_pytree():
    value = {"a": jnp.ones(2), "b": jnp.ones((2, 2))}
    new = {"a": jnp.arange(2.0), "b": jnp.zeros(2)}
    expected = {"a": np.arange(2.0), "b": np.zeros((2, 2))}
    assert_close(acted(px.ReplaceHook(new), value), expected)
    expected = {"a": np.full(2, 3.0), "b": np.full((2, 2), 3.0)}
    assert_close(acted(px.ReplaceHook(3.0), value), expected)
    with pytest.raises(
        px.HookShapeError, match="ReplaceHook, can't act: its value has"
    ):
        acted(px.ReplaceHook((1.0, 2.0)), value)
    with pytest.raises(
        px.HookShapeError, match=r"its value of shape \[3\] doesn't broa"
    ):
        acted(px.ReplaceHook(jnp.ones(3)), value)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", (None, 0, -1, (0, 1)))
def test_mean(axis, dtype):
    value = FLOATS.astype(dtype)
    mean = np.mean(np.asarray(value, np.float64), axis=axis, keepdims=True)
    expected = np.broadcast_to(mean, (3, 4))
    rtol = 1e-6 if dtype == "float32" else 1e-2
    assert_close(acted(px.MeanHook(axis), value).astype("float32"), expected, rtol=rtol)


@pytest.mark.parametrize("dtype", (*DTYPES, "int32"))
def test_clamp(dtype):
    value = (4 * FLOATS).astype(dtype)
    for low, high in ((-1, None), (None, 1), (-1, 1), (jnp.arange(4.0) - 3, 2)):
        expected = np.asarray(value)
        expected = expected if low is None else np.maximum(expected, low)
        expected = expected if high is None else np.minimum(expected, high)
        expected = expected.astype(dtype)
        assert_close(acted(px.ClampHook(low, high), value), expected)
    with pytest.raises(
        px.HookShapeError, match=r"its max of shape \[3\] doesn't broadc"
    ):
        acted(px.ClampHook(max=jnp.ones(3)), FLOATS)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keep", (False, True))
@pytest.mark.parametrize("rows", (1, 2, "dependent", "vector"))
def test_project(rows, keep, dtype):
    basis = jr.normal(jr.key(1), (2, 4))
    basis = {1: basis[:1], 2: basis, "vector": basis[0]}.get(
        rows, jnp.concatenate([basis, basis[:1] - basis[1:]])
    )
    matrix = np.atleast_2d(np.asarray(basis, np.float64))
    _, s, vt = np.linalg.svd(matrix, full_matrices=False)
    span = vt[s > 1e-5]
    value = FLOATS.astype(dtype)
    wide = np.asarray(value, np.float64)
    inside = wide @ span.T @ span
    expected = inside if keep else wide - inside
    got = acted(px.ProjectHook(basis, keep), value).astype("float32")
    rtol = 1e-4 if dtype == "float32" else 2e-2
    assert_close(got, expected, rtol=rtol, atol=rtol)


def test_project_refuses_another_size():
    with pytest.raises(
        px.HookShapeError, match=r"vectors of size 3, the value is float"
    ):
        acted(px.ProjectHook(jnp.ones(3)), FLOATS)


def test_the_basis_is_trained():
    """Its derivative is that of the formula, where rows are orthonormal too."""
    basis = jnp.eye(4)[:2]
    loss = lambda basis: jnp.sum(acted_once(px.ProjectHook(basis), FLOATS) ** 3)

    def by_hand(basis):
        inverse = jnp.linalg.inv(basis @ basis.T)
        return jnp.sum((FLOATS - FLOATS @ basis.T @ inverse @ basis) ** 3)

    assert_close(jax.grad(loss)(basis), jax.grad(by_hand)(basis), rtol=1e-4, atol=1e-5)


def acted_once(hook, value):
    return px.ForwardHook(eqx.nn.Identity(), hook)(value)[0]


def steps(m, xs):
    return lax.scan(lambda xs, _: (jax.vmap(m)(xs), None), xs, length=5)[0]


def test_noise_is_independent_and_known():
    cell, xs = eqx.nn.Identity(), jnp.zeros((2, 400))
    wrap = lambda key, scale=0.5: px.ForwardHook(
        cell, px.NoiseHook(scale, key), method=steps
    )
    for key in (jr.key(0), jr.PRNGKey(0)):
        _, log = wrap(key)(xs)
        noise = np.diff(np.asarray(log["."]), axis=0, prepend=0).reshape(10, 400)
        np.testing.assert_allclose(noise.std(axis=1), 0.5, rtol=0.15)
        np.testing.assert_allclose(noise.mean(axis=1), 0, atol=0.1)
        correlation = np.corrcoef(noise) - np.eye(10)
        assert np.abs(correlation).max() < 0.25
        assert_close(wrap(key)(xs)[1], log)
        assert_close(eqx.filter_jit(wrap(key))(xs)[1], log, rtol=1e-5)
    assert_close(wrap(jr.key(0), 0.0)(xs)[0], xs)


def test_noise_of_each_site_and_call():
    class Net(eqx.Module):
        a: eqx.nn.Identity
        b: eqx.nn.Identity

        def __call__(self, x):
            return self.a(x), self.b(x), self.a(x)

    model = Net(eqx.nn.Identity(), eqx.nn.Identity())
    hooked = px.ForwardHook(model, px.NoiseHook(1.0, jr.key(0)))
    out, _ = hooked(jnp.zeros(100))
    assert np.abs(np.corrcoef(np.stack(out)) - np.eye(3)).max() < 0.4
    again, _ = px.ForwardHook(model, px.NoiseHook(1.0, jr.key(0)), where="b")(
        out[0] * 0
    )
    assert_close(again[1], out[1])  # whatever is hooked besides


def test_noise_keeps_what_is_not_a_float():
    value = {"i": jnp.arange(3), "k": jr.key(0), "h": jnp.zeros(3, jnp.bfloat16)}
    out = acted_once(px.NoiseHook(1.0, jr.key(1)), value)
    assert out["h"].dtype == jnp.bfloat16 and jnp.all(out["h"] != 0)
    np.testing.assert_array_equal(out["i"], value["i"])
    assert out["k"] == value["k"]
    out = acted_once(px.NoiseHook(1.0, jr.key(1)), jnp.zeros(1000, "complex64"))
    np.testing.assert_allclose(np.var(out), 1, rtol=0.15)
