"""JAX's strict modes, odd dtypes, random keys, loops with batched conditions, modules
as values, exported programs, meshes.
"""

import contextlib

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from closeness import assert_close
from jax import lax
from pairs import pairs
from parts import Outer
from twin_case import linear

import peex as px


X = jnp.arange(3.0)


@contextlib.contextmanager
def strict():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


def while_loop(f, x):
    return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, f(s[1])), (0, x))[1]


def nested(f, x):
    def outer(x, _):
        return while_loop(lambda x: f(x) * 0.5, x), None

    return lax.scan(outer, x, length=2)[0]


def while_in_while(f, x):
    return while_loop(lambda x: while_loop(f, x), x)


def branch(f, x):
    return lax.cond(x[0] < 9, lambda x: f(x), lambda x: x, x)


LOOPS = {
    "while": while_loop,
    "while in scan": nested,
    "while in while": while_in_while,
    "scan": lambda f, x: lax.scan(lambda x, _: (f(x), None), x, length=3)[0],
    "cond": branch,
    "cond in while": lambda f, x: while_loop(lambda x: branch(f, x), x),
    "vmapped while": lambda f, x: jax.vmap(lambda x: while_loop(f, x))(x[None])[0],
}


@pytest.mark.parametrize(
    ("name", "buffer", "x64"), pairs(LOOPS, [None, 2], [False, True])
)
def test_strict_modes(name, buffer, x64):
    with jax.enable_x64(x64):
        layer = linear(3, 3, 0)
        method = lambda m, x: LOOPS[name](lambda x: jnp.tanh(m(x)), x)
        x = jnp.arange(3.0)
        hooked = px.ForwardHook(layer, method=method, while_buffer=buffer)
        expected = hooked(x)
        with strict():
            found = eqx.filter_jit(lambda h, x: h(x))(hooked, x)
        assert_close(found, expected, rtol=1e-5)
        # And what is returned is what the model returns.
        assert found[0].dtype == method(layer, x).dtype


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.int16, jnp.int32, jnp.uint8])
def test_steps_of_any_integer_type(dtype):
    layer = linear(3, 3, 0)
    run = lambda m, x: lax.scan(lambda x, _: (m(x), None), x, length=4)[0]
    nested = lambda m, x: lax.scan(lambda x, _: (run(m, x), None), x, length=2)[0]
    for steps, method in (
        (jnp.array([1, 3], dtype), run),
        ((jnp.array(1, dtype), jnp.array([0], dtype)), nested),
    ):
        hooked = px.ForwardHook(layer, px.AtStep(px.ZeroHook(), steps), method=method)
        with strict():
            _, log = hooked(X)
        zero = np.all(np.asarray(log["."]) == 0, axis=-1)
        assert zero.sum() == (2 if method is run else 1)


DTYPES = [jnp.int32, jnp.int8, jnp.bfloat16, jnp.float16, jnp.complex64, jnp.float32]
DTYPES += [jnp.float8_e4m3fn, jnp.float8_e5m2]
HOOKS = {
    "scale": (px.ScaleHook(2.0), lambda x: 2.0 * x),
    "scale array": (px.ScaleHook(jnp.array(2.0)), lambda x: 2.0 * x),
    "add": (px.AddHook(1.0), lambda x: x + 1.0),
    "add array": (px.AddHook(jnp.array([1.0])), lambda x: x + 1.0),
    "add more": (px.AddHook(np.ones(3)), lambda x: x + 1.0),
    "chain": (px.Chain(px.ScaleHook(2), px.AddHook(1)), lambda x: 2 * x + 1),
}


@pytest.mark.parametrize("mode", ["standard", "strict"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.dtype.name)
@pytest.mark.parametrize("name", HOOKS)
def test_built_in_hooks_keep_every_dtype(name, dtype, mode):
    hook, twin = HOOKS[name]
    x = jnp.array([[1, 2, 3], [3, 2, 1]]).astype(dtype)
    with strict() if mode == "strict" else contextlib.nullcontext():
        found, log = px.ForwardHook(eqx.nn.Identity(), hook)(x)
    assert found.dtype == dtype and log["."].dtype == dtype
    wide = np.complex128 if dtype == jnp.complex64 else np.float64
    expected = twin(np.asarray(x).astype(wide))
    np.testing.assert_array_equal(np.asarray(found).astype(wide), expected)


@pytest.mark.parametrize("edges", [[1, 2], jnp.array([1.0, 2.5]), np.array([2.0])])
@pytest.mark.parametrize("dtype", [jnp.int32, jnp.bfloat16, jnp.float32])
def test_histograms_in_strict_mode(edges, dtype):
    x = jnp.array([0, 1, 2, 3], dtype)
    with strict():
        _, log = px.ForwardHook(eqx.nn.Identity(), log_fn=px.HistogramLog(edges))(x)
    bounds = [-np.inf, *np.asarray(edges), np.inf]
    expected = np.histogram(np.asarray(x).astype(float), bounds)[0]
    np.testing.assert_array_equal(log["."], expected)


@pytest.mark.parametrize("hook", [px.AddHook, px.ScaleHook])
def test_an_offset_that_does_not_fit_names_the_site(hook):
    name = hook.__name__
    for other in (jnp.ones(4), jnp.ones((2, 3))):
        match = f"the site 'inner', {name}, can't act: its .* doesn't broadcast.*3"
        hooked = px.ForwardHook(Outer(linear(3, 3, 0)), hook(other))
        with pytest.raises(px.HookShapeError, match=match):
            hooked(X)
        with pytest.raises(px.HookShapeError, match=match):
            px.BackwardHook(Outer(linear(3, 3, 0)), hook(other)).init(X)


#
# Loops with batched conditions.
#


def adaptive(m, x):
    """Runs until the value is small: for each example another time."""
    step = lambda s: (s[0] + 1, 0.5 * jnp.tanh(m(s[1])))
    check = lambda s: (s[0] < 5) & (jnp.sum(jnp.abs(s[1])) > 0.3)
    return lax.while_loop(check, step, (0, x))[1]


ARRAYS = {
    "hook": (px.AddHook(0.1 * jnp.ones(3)), None),
    "log": (None, px.HistogramLog(jnp.array([0.0, 0.1]))),
    "both": (px.ScaleHook(jnp.array(0.9)), px.HistogramLog(jnp.array([0.0]))),
}


@pytest.mark.parametrize(
    ("name", "nest", "jit"), pairs(ARRAYS, [False, True], [False, True])
)
def test_hooks_with_arrays_in_a_vmapped_adaptive_loop(name, nest, jit):
    hook, log_fn = ARRAYS[name]
    layer = linear(3, 3, 0)
    model = px.ForwardHook(layer, px.AddHook(jnp.ones(3)), None) if nest else layer
    run = (lambda m, x: adaptive(lambda x: m(x)[0], x)) if nest else adaptive
    mapped = lambda m, xs: jax.vmap(lambda x: run(m, x))(xs)
    xs = jnp.stack([X, -3 * X, 0.1 * X])
    wrap = eqx.filter_jit if jit else lambda f: f
    out, log = wrap(px.ForwardHook(model, hook, log_fn, method=mapped))(xs)
    one = px.ForwardHook(model, hook, log_fn, method=run)
    for i, x in enumerate(xs):
        expected, alone = one(x)
        assert_close(out[i], expected, rtol=1e-5)
        for key in alone:
            assert_close(log[key][i], alone[key], rtol=1e-5)
            assert log.counts[key][i] == alone.counts[key]
    if hook is not None:
        trained = lambda h: jnp.sum(
            wrap(px.ForwardHook(model, h, method=mapped))(xs)[0]
        )
        jax.jvp(trained, (hook,), (jax.tree.map(jnp.ones_like, hook),))


#
# Random keys.
#


class Drawing(eqx.Module):
    """Takes a random key, and returns one."""

    def __call__(self, key):
        return jr.split(key)[0]


KEYS = {
    "while": while_loop,
    "cond": lambda f, k: lax.cond(jr.bernoulli(k), f, lambda k: k, k),
    "scan": lambda f, k: lax.scan(lambda k, _: (f(k), None), k, length=3)[0],
    "vmapped while": lambda f, k: jax.vmap(lambda k: while_loop(f, k))(jr.split(k)),
}


@pytest.mark.parametrize(
    ("name", "buffer", "pre"), pairs(KEYS, [None, 2], [False, True])
)
def test_random_keys(name, buffer, pre):
    method = lambda m, key: KEYS[name](m, key)
    model, key = Drawing(), jr.key(1)
    hooked = px.ForwardHook(model, method=method, while_buffer=buffer, pre_hook=pre)
    for wrap in (lambda f: f, eqx.filter_jit):
        out, log = wrap(hooked)(key)
        assert jnp.all(jr.key_data(out) == jr.key_data(method(model, key)))
        (entry,) = jax.tree.leaves(log["."])
        assert jnp.issubdtype(entry.dtype, jax.dtypes.prng_key)
        if name == "while" and buffer is None and not pre:
            assert jnp.all(jr.key_data(entry) == jr.key_data(out))


def test_cotangents_in_a_cond_with_a_batched_index():
    layer = linear(3, 3, 0)
    run = lambda m, xs: jax.vmap(
        lambda x: lax.cond(x[0] > 0, lambda x: m(x), jnp.sin, x)
    )(xs)
    xs = jnp.stack([X + 1, -X - 1])
    hooked = px.BackwardHook(layer, px.ScaleHook(jnp.array(2.0)), method=run).init(xs)
    grads = eqx.filter_jit(eqx.filter_grad(lambda h: jnp.sum(h(xs))))(hooked)
    np.testing.assert_array_equal(grads.log["."], [[2.0] * 3, [0.0] * 3])
