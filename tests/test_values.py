"""Values of every kind through hooks and logs: tuples, `None`, integers, random keys,
half precision, complex numbers, what isn't an array; and backward logs of integers.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close
from jax import lax
from parts import Outer, Returning as Fn

import peex as px


X = jnp.array([0.5, -1.0, 2.0])


class Pair(NamedTuple):
    a: Any
    b: Any


# Tuples


class Recurrent(eqx.Module):
    cell: eqx.nn.LSTMCell

    def __call__(self, x):
        state = (jnp.zeros(2), jnp.ones(2))
        for _ in range(2):
            state = self.cell(x, state)
        return state


LSTM = Recurrent(eqx.nn.LSTMCell(3, 2, key=jax.random.key(0)))


def lstm_twin(eps):
    state = (jnp.zeros(2), jnp.ones(2))
    states = []
    for e in eps:
        state = jax.tree.map(jnp.add, LSTM.cell(X, state), e)
        states.append(state)
    return state, states


def test_tuple_output():
    (h, c), log = px.ForwardHook(LSTM)(X)
    eps = [(jnp.zeros(2), jnp.zeros(2))] * 2
    expected, states = lstm_twin(eps)
    assert_close((h, c), expected)
    assert list(log) == ["cell", "cell#1"]
    assert_close([log["cell"], log["cell#1"]], states)

    # The cell's state alone is used, so the cotangent of `h` is zero, not missing.
    loss = lambda state: jnp.sum(state[1] ** 2)
    hooked = px.BackwardHook(LSTM).init(X)
    grads = eqx.filter_grad(lambda h: loss(h(X)))(hooked)
    expected = jax.grad(lambda eps: loss(lstm_twin(eps)[0]))(eps)
    assert_close([grads.log["cell"], grads.log["cell#1"]], expected)
    assert not np.any(grads.log["cell#1"][0])


def test_tuple_arguments():
    hooked = px.ForwardHook(LSTM, pre_hook=True)
    _, log = hooked(X)
    assert_close(log["cell"], (X, (jnp.zeros(2), jnp.ones(2))))


# What isn't an array, or has no cotangent

ODD = {
    "none": lambda x: None,
    "int": lambda x: 3,
    "bool": lambda x: True,
    "float": lambda x: 2.5,
    "str": lambda x: "name",
    "function": lambda x: jnp.sin,
    "int array": lambda x: jnp.arange(3),
    "bool array": lambda x: x > 0,
    "key": lambda x: jax.random.key(0),
    "raw key": lambda x: jax.random.PRNGKey(0),
    "numpy": lambda x: np.arange(3.0, dtype=np.float32),
    "numpy scalar": lambda x: np.float32(2.0),
    "empty": lambda x: (),
    "empty array": lambda x: x[:0],
    "mixed": lambda x: {"x": 2 * x, "i": jnp.arange(2), "n": None, "s": "name"},
    "namedtuple": lambda x: Pair(x, (x > 0, None)),
    "module": lambda x: eqx.nn.Linear(2, 2, key=jax.random.key(0)),
}
odd = pytest.mark.parametrize("fn", ODD.values(), ids=ODD)


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if isinstance(x, jax.Array | np.ndarray):
            assert x.dtype == y.dtype and jnp.array_equal(x, y)
        else:
            assert type(x) is type(y) and x == y


is_array = lambda x: isinstance(x, jax.Array | np.ndarray | np.generic)


@odd
@pytest.mark.parametrize("outside", [lambda f: f, eqx.filter_jit])
def test_forward(fn, outside):
    out, log = outside(lambda h, x: h(x))(px.ForwardHook(Outer(Fn(fn))), X)
    plain = outside(lambda m, x: m(x))(Outer(Fn(fn)), X)
    same(out, plain)
    # In the log, what isn't an array is `None`.
    same(log["inner"], jax.tree.map(lambda x: x if is_array(x) else None, plain))


def ones_times_3(x):
    if is_array(x) and jnp.issubdtype(x.dtype, jnp.inexact):
        return jnp.full(x.shape, 3.0, x.dtype)
    return None


@odd
def test_backward(fn):
    hooked = px.BackwardHook(Outer(Fn(fn))).init(X)
    same(hooked(X), fn(X))

    def loss(h, x):
        leaves = jax.tree.leaves(eqx.filter(h(x), eqx.is_inexact_array))
        return sum((jnp.sum(3 * y) for y in leaves), jnp.sum(x))

    for outside in (lambda f: f, eqx.filter_jit):
        grads = outside(eqx.filter_grad(loss))(hooked, X)
        expected = jax.tree.map(ones_times_3, fn(X))
        same(grads.log["inner"], expected)


@pytest.mark.parametrize("wrapper", [px.ForwardHook, px.BackwardHook])
def test_hooks_see_none_for_what_passes_by(wrapper):
    seen = []

    def hook(value):
        seen.append(value)
        assert value["s"] is None and value["n"] is None
        if wrapper is px.BackwardHook:
            assert value["i"] is None
        return jax.tree.map(lambda x: 2 * x, value)

    hooked = wrapper(Outer(Fn(ODD["mixed"])), hook, None)
    out = hooked(X)
    out = out[0] if wrapper is px.ForwardHook else out
    scale = 2 if wrapper is px.ForwardHook else 1
    same(out, {"x": 2 * X * scale, "i": jnp.arange(2) * scale, "n": None, "s": "name"})
    assert seen


def test_a_log_of_none_after_no_log():
    # Both have no leaves, but they aren't the same.
    for _ in range(2):
        hooked = px.BackwardHook(Fn(jnp.sin), log_fn=None)
        same(hooked(X), jnp.sin(X))
        hooked = px.BackwardHook(Fn(jnp.sin), log_fn=px.NoneLog()).init(X)
        assert dict(hooked.log) == {".": None}


# Half precision


class Half(eqx.Module):
    layer: eqx.nn.Linear

    def __call__(self, x):
        return self.layer(x.astype(jnp.bfloat16)).astype(jnp.float32)


HALF = Half(eqx.nn.Linear(3, 2, dtype=jnp.bfloat16, key=jax.random.key(0)))


def test_half_precision():
    out, log = px.ForwardHook(HALF)(X)
    assert log["layer"].dtype == jnp.bfloat16
    assert_close(log["layer"].astype(jnp.float32), HALF(X))
    # The loss is in float32; the cotangent of a half value is half.
    loss = lambda h: jnp.sum(h(X) ** 2)
    hooked = px.BackwardHook(HALF).init(X)
    grads = eqx.filter_grad(loss)(hooked)
    assert grads.log["layer"].dtype == jnp.bfloat16
    assert_close(grads.log["layer"], eqx.filter_grad(loss)(HALF).layer.bias)
    wide = px.BackwardHook(HALF, log_fn=lambda x: x.astype(jnp.float32)).init(X)
    assert eqx.filter_grad(loss)(wide).log["layer"].dtype == jnp.float32


def test_half_precision_cotangent_that_is_widened():
    hooked = px.BackwardHook(HALF, lambda ct: ct.astype(jnp.float32))
    match = r"site 'layer' .*cotangent: expected bfloat16\[2\], got float32\[2\]"
    with pytest.raises(px.HookShapeError, match=match):
        hooked.init(X)


# Complex numbers: JAX's own convention for cotangents


class Complex(eqx.Module):
    layer: Fn

    def __call__(self, z):
        return jnp.sum(jnp.abs(self.layer(z) * (1 + 2j)) ** 2 + self.layer(z).imag)


@pytest.mark.parametrize("outside", [lambda f: f, eqx.filter_jit])
def test_complex(outside):
    model = Complex(Fn(lambda z: z * z))
    z = jnp.array([0.5 + 1j, -2.0 + 0.3j])
    hooked = px.BackwardHook(model).init(z)
    value, grads = outside(eqx.filter_value_and_grad(lambda h, z: h(z)))(hooked, z)

    def twin(eps):
        a, b = z * z + eps[0], z * z + eps[1]
        return jnp.sum(jnp.abs(a * (1 + 2j)) ** 2 + b.imag)

    expected = jax.grad(twin)([jnp.zeros_like(z)] * 2)
    assert_close(value, model(z))
    assert_close([grads.log["layer"], grads.log["layer#1"]], expected)


def test_complex_hook_and_log():
    z = jnp.array([0.5 + 1j, -2.0 + 0.3j])
    hooked = px.BackwardHook(
        Fn(lambda z: z * 2), lambda ct: ct * 1j, lambda ct: (ct.real, ct * 2)
    ).init(z)
    _, vjp = jax.vjp(
        lambda z, log: eqx.tree_at(lambda h: h.log, hooked, log)(z), z, hooked.log
    )
    ct = jnp.array([1.0 + 2j, 3j])
    grad, log = vjp(ct)
    assert_close(log["."], ((ct * 1j).real, ct * 2j))
    _, plain = jax.vjp(lambda z: z * 2, z)
    assert_close(grad, plain(ct * 1j)[0])


# A real cotangent may be logged as a complex number.


def test_complex_log_of_real_cotangent():
    hooked = px.BackwardHook(Fn(lambda x: 2 * x), None, jnp.fft.fft).init(X)
    grads = eqx.filter_grad(lambda h: jnp.sum(h(X) * X))(hooked)
    assert_close(grads.log["."], jnp.fft.fft(X))


# Backward logs of integers and booleans


INTS = jnp.array([2_147_483_647, -2_147_483_648, 16_777_217, -16_777_217, 0, -1])


class Count(px.AbstractLog):
    values: jax.Array

    def __call__(self, ct):
        return {
            "int": self.values,
            "bool": ct > 0,
            "small": self.values[:2].astype(jnp.int8),
            "unsigned": jnp.array([4_294_967_295, 0, 1], jnp.uint32),
            "argmax": jnp.argmax(ct),
            "float": jnp.sum(ct),
        }


def expected_count(ct):
    return {
        "int": INTS,
        "bool": ct > 0,
        "small": INTS[:2].astype(jnp.int8),
        "unsigned": jnp.array([4_294_967_295, 0, 1], jnp.uint32),
        "argmax": jnp.argmax(ct),
        "float": jnp.sum(ct),
    }


@pytest.mark.parametrize("outside", [lambda f: f, eqx.filter_jit])
def test_integers_backward(outside):
    hooked = px.BackwardHook(Fn(jnp.sin), None, Count(INTS)).init(X)
    grads = outside(eqx.filter_grad(lambda h, x: jnp.sum(h(x) * X)))(hooked, X)
    assert_close(grads.log["."], expected_count(X))
    assert np.array_equal(grads.log["."]["int"], INTS)
    assert grads.log["."]["int"].dtype == jnp.int32


def stacked(counts):
    return jax.tree.map(lambda *xs: jnp.stack(xs), *counts)


def test_integers_backward_under_vmap_and_scan():
    xs = jnp.stack([X, -X, 2 * X])
    ws = jnp.stack([X, 3 * X, -X])
    expected = stacked([expected_count(w) for w in ws])

    hooked = px.BackwardHook(eqx.filter_vmap(Fn(jnp.sin)), None, Count(INTS)).init(xs)
    grads = eqx.filter_grad(lambda h: jnp.sum(h(xs) * ws))(hooked)
    assert_close(grads.log["."], expected)

    def scanned(model, xs):
        return lax.scan(lambda _, x: (None, model(x)), None, xs)[1]

    hooked = px.BackwardHook(Fn(jnp.sin), None, Count(INTS), method=scanned).init(xs)
    grads = eqx.filter_grad(lambda h: jnp.sum(h(xs) * ws))(hooked)
    assert_close(grads.log["."], expected)


def test_integers_backward_summed_over_a_batch():
    xs = jnp.stack([X, -X, 2 * X])
    big = jnp.array([100_000_001, -7, 16_777_217])
    log_fn = lambda ct: (jnp.where(ct > 0, big, -1), ct > 0)
    hooked = px.BackwardHook(Fn(jnp.sin), None, log_fn).init(X)
    grads = eqx.filter_grad(lambda h: jnp.sum(jax.vmap(h)(xs) * xs))(hooked)
    summed = sum(np.where(x > 0, big, -1) for x in np.asarray(xs))
    assert np.array_equal(grads.log["."][0], summed)


def test_log_that_does_not_depend_on_the_cotangent_is_summed_too():
    # It counts the calls, for instance.
    xs = jnp.stack([X] * 5)
    hooked = px.BackwardHook(Fn(jnp.sin), None, lambda ct: (1, 0.5)).init(X)
    grads = eqx.filter_grad(lambda h: jnp.sum(jax.vmap(h)(xs)))(hooked)
    assert_close(grads.log["."], (jnp.array(5), jnp.array(2.5)))


def test_the_number_of_negative_cotangents():
    hooked = px.BackwardHook(Fn(jnp.sin), None, lambda ct: jnp.sum(ct < 0)).init(X)
    log = eqx.filter_grad(lambda h: jnp.sum(h(X) * X))(hooked).log
    assert log["."] == 1 and log["."].dtype == jnp.int32


@pytest.mark.parametrize("log_fn", [px.IdentityLog(), lambda ct: 2 * ct])
def test_a_numpy_array_of_another_precision(log_fn):
    class Scaled(eqx.Module):
        scale: Fn

        def __call__(self, x):
            return x * self.scale(x)

    model = Scaled(Fn(lambda x: np.full(3, 2.0)))  # float64, where JAX has float32
    hooked = px.BackwardHook(model, None, log_fn, where="scale").init(X)
    out, grads = eqx.filter_value_and_grad(lambda h: jnp.sum(h(X)))(hooked)
    assert_close(out, jnp.sum(2 * X))
    assert_close(grads.log["scale"], log_fn(X))
    _, log = px.ForwardHook(model, where="scale")(X)
    patched = px.ForwardHook(model, px.PatchHook(log), where="scale")
    assert_close(patched(X)[0], 2 * X)
