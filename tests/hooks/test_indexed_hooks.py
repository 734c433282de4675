"""Hooks that are told where they act, against loops written by hand."""

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from closeness import assert_close
from hooked_mlp import eager_and_jit, MODEL
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
from twin_case import linear
from twin_loops import Stack

import peex as px


LIN, X = linear(3, 3, 0), jnp.arange(3.0) / 3
KEY = jr.key(7)


def noise(call, step, example):
    key = KEY
    for index in (call, step, example):
        key = jr.fold_in(key, index)
    return jr.normal(key, (3,))


class Noise(px.AbstractIndexedHook):
    """Independent for each call, step and example."""

    key: jax.Array
    scale: jax.Array | float = 1.0

    def __call__(self, value, *, at):
        key = self.key
        for index in (at.call, at.step, at.example):
            key = jr.fold_in(key, index)
        return value + self.scale * jr.normal(key, value.shape, value.dtype)


class Show(px.AbstractIndexedHook):
    """Puts what it is told in the place of the first numbers."""

    def __call__(self, value, *, at):
        told = jnp.stack([at.call, at.step, at.example, at.device])
        assert told.dtype == jnp.int32
        return jnp.asarray(told, value.dtype)


SHOWN = linear(3, 4, 1)


def shown(method, *args, where="."):
    """What a hook is told, by key."""
    hooked = px.ForwardHook(SHOWN, Show(), where=where, method=method)
    _, log = eqx.filter_jit(hooked)(*args)
    _, eager = hooked(*args)
    jax.tree.map(np.testing.assert_array_equal, log, eager)
    return {key: np.asarray(log[key], int) for key in log}


def recurrent(m, x, length=5):
    return lax.scan(lambda x, _: (jnp.tanh(m(x)), None), x, length=length)[0]


# Noise


@eager_and_jit
def test_noise_of_each_call_step_and_example(outside):
    """Two calls in each step, and one behind the loop."""

    def one(m, x):
        step = lambda x, _: (jnp.tanh(m(jnp.sin(m(x)))), None)
        return m(lax.scan(step, x, length=4)[0])

    xs = jr.normal(jr.key(0), (5, 3))
    mapped = lambda m, xs: jax.vmap(lambda x: one(m, x))(xs)

    def scanned(m, xs):
        all_ = jax.vmap(m)
        step = lambda xs, _: (jnp.tanh(all_(jnp.sin(all_(xs)))), None)
        return all_(lax.scan(step, xs, length=4)[0])

    expected, values = [], {}
    for j, x in enumerate(xs):
        for i in range(4):
            values[0, i, j] = LIN(x) + noise(0, i, j)
            values[1, i, j] = LIN(jnp.sin(values[0, i, j])) + noise(1, i, j)
            x = jnp.tanh(values[1, i, j])
        expected.append(LIN(x) + noise(2, 0, j))
    each = range(4), range(5)
    by_call = [
        jnp.stack([jnp.stack([values[n, i, j] for j in each[1]]) for i in each[0]])
        for n in range(2)
    ]
    for method in (mapped, scanned):
        out, log = outside(px.ForwardHook(LIN, Noise(KEY), method=method))(xs)
        assert_close(out, jnp.stack(expected), rtol=2e-6)
        assert list(log) == [".", ".#1", ".#2"]
        assert_close(log["."], by_call[0], rtol=2e-6)
        assert_close(log[".#1"], by_call[1], rtol=2e-6)
        assert_close(log[".#2"], out, rtol=2e-6)


@eager_and_jit
def test_noise_on_cotangents(outside):
    xs = jr.normal(jr.key(0), (2, 3))
    loss = lambda m, xs: jnp.sum(jax.vmap(lambda x: recurrent(m, x))(xs))
    step = px.value_and_grad(loss, hook_fn=Noise(KEY))
    (_, logs), grads = outside(step)(LIN, xs)
    expected, weight = np.zeros((5, 2, 3), np.float32), 0
    for j, x in enumerate(xs):
        inputs, values = [x], []
        for _ in range(5):
            values.append(LIN(inputs[-1]))
            inputs.append(jnp.tanh(values[-1]))
        c = jnp.ones(3)
        for i in reversed(range(5)):
            c = c * (1 - inputs[i + 1] ** 2) + noise(0, i, j)
            expected[i, j] = c
            weight += jnp.outer(c, inputs[i])
            c = LIN.weight.T @ c
    assert_close(logs.backward["."], jnp.asarray(expected), rtol=1e-5)
    assert_close(grads.weight, weight, rtol=1e-5)


def test_noise_is_trained_and_changed_like_any_hook():
    traces = []

    @eqx.filter_jit
    def grad(hook, x):
        traces.append(hook)
        hooked = lambda hook: px.ForwardHook(LIN, hook, method=recurrent)(x)[0]
        return eqx.filter_grad(lambda hook: jnp.sum(hooked(hook)))(hook)

    def by_hand(scale, x):
        for i in range(5):
            x = jnp.tanh(LIN(x) + scale * noise(0, i, 0))
        return jnp.sum(x)

    for scale in (0.1, 0.7):
        got = grad(Noise(KEY, jnp.array(scale)), X)
        assert_close(got.scale, jax.grad(by_hand)(scale, X), rtol=1e-5)
    assert len(traces) == 1


def test_forward_mode():
    hooked = px.ForwardHook(LIN, Noise(KEY), None, method=recurrent)
    run = lambda x: hooked(x)[0]
    assert_close(jax.jacfwd(run)(X), jax.jacrev(run)(X), rtol=1e-5)


def test_arguments():
    class First(px.AbstractIndexedHook):
        def __call__(self, value, *, at):
            (x,) = value
            return (x + at.step.astype(x.dtype),)

    hooked = px.ForwardHook(LIN, First(), pre_hook=True, method=recurrent)
    _, log = hooked(jnp.zeros(3))
    x = jnp.zeros(3)
    for i in range(5):
        assert_close(log["."][0][i], x + i, rtol=2e-6)
        x = jnp.tanh(LIN(x + i))


def test_fields_of_its_own():
    class Table(px.AbstractIndexedHook):
        data: jax.Array
        local: float

        def __call__(self, value, *, at):
            return value + self.local * self.data[at.step]

    rows = jr.normal(jr.key(0), (5, 3))
    _, log = px.ForwardHook(LIN, Table(rows, 2.0), method=recurrent)(X)
    x = X
    for i in range(5):
        value = LIN(x) + 2 * rows[i]
        assert_close(log["."][i], value, rtol=2e-6)
        x = jnp.tanh(value)


# What it is told


def test_outside_of_loops_and_batches():
    told = shown(lambda m, x: m(m(x)[:3] * m(x)[:3]), X)
    for i, key in enumerate([".", ".#1", ".#2"]):
        np.testing.assert_array_equal(told[key], [i, 0, 0, 0])


def test_steps_are_counted_through_loops_in_loops():
    def model(m, x):
        inner = lambda x, _: (m(x)[:3], None)
        outer = lambda x, _: (lax.scan(inner, x, length=5)[0], None)
        return lax.scan(outer, x, length=3, reverse=True)[0]

    (told,) = shown(model, X).values()
    assert told.shape == (3, 5, 4)
    np.testing.assert_array_equal(told[..., 1], np.arange(15).reshape(3, 5))
    assert not told[..., [0, 2, 3]].any()


def test_examples_are_counted_through_batches_in_batches():
    xs = jnp.ones((2, 3, 4, 3))
    (told,) = shown(lambda m, xs: jax.vmap(jax.vmap(jax.vmap(m)))(xs), xs).values()
    np.testing.assert_array_equal(told[..., 2], np.arange(24).reshape(2, 3, 4))
    assert not told[..., [0, 1, 3]].any()


def test_a_value_without_the_batch_axis_is_one_example():
    told = shown(lambda m, xs: jax.vmap(lambda x: m(X) * x[0])(xs), jnp.ones((2, 3)))
    np.testing.assert_array_equal(told["."], [0, 0, 0, 0])


def test_a_batch_around_the_wrapper_is_not_seen():
    hooked = px.ForwardHook(SHOWN, Show())
    _, log = jax.vmap(hooked)(jnp.ones((2, 3)))
    np.testing.assert_array_equal(log["."], np.zeros((2, 4)))


def test_calls_of_one_jitted_function():
    # Its program is traced once.
    @jax.jit
    def run(m, x):
        return m(x)[:3]

    told = shown(lambda m, x: run(m, run(m, run(m, x))), X)
    assert [told[key][0] for key in told] == [0, 1, 2]


def test_branches():
    def model(m, x):
        step = lambda x, i: (
            lax.cond(i % 2 == 0, lambda x: m(x)[:3], lambda x: x, x),
            i,
        )
        return lax.scan(step, x, jnp.arange(4))[0]

    (told,) = shown(model, X).values()
    np.testing.assert_array_equal(told[:, 1], [0, 0, 2, 0])


def test_layers_of_a_scanned_stack():
    model = Stack(4, seed=0)

    class Layer(px.AbstractIndexedHook):
        def __call__(self, value, *, at):
            assert at.key == "blocks.linear1"
            return jnp.full_like(value, at.step)

    _, log = px.ForwardHook(model, Layer(), where="blocks.linear1")(jnp.ones((5, 3)))
    expected = np.broadcast_to(
        np.arange(4.0)[:, None, None], log["blocks.linear1"].shape
    )
    np.testing.assert_array_equal(log["blocks.linear1"], expected)


def test_the_key_of_the_site():
    class ByName(px.AbstractIndexedHook):
        offsets: dict[str, float]

        def __call__(self, value, *, at):
            return value + self.offsets[at.key]

    offsets = {"linear1": 1.0, "linear2": -2.0, "./tanh": 0.5}
    hook = ByName(offsets)
    _, log = px.ForwardHook(MODEL, hook, where=list(offsets))(X)
    tanh = jnp.tanh(MODEL.linear1(X) + 1.0) + 0.5
    assert_close(log["linear1"], MODEL.linear1(X) + 1.0)
    assert_close(log["./tanh"], tanh)
    assert_close(log["linear2"], MODEL.linear2(tanh) - 2.0)


def test_devices():
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))

    def model(m, xs):
        each = jax.vmap(m)
        return jax.shard_map(each, mesh=mesh, in_specs=P("d"), out_specs=P("d"))(xs)

    (told,) = shown(model, jnp.ones((6, 3))).values()
    assert told.shape == (2, 3, 4)
    np.testing.assert_array_equal(told[..., 2], [[0, 1, 2]] * 2)
    np.testing.assert_array_equal(told[..., 3], [[0] * 3, [1] * 3])


@pytest.mark.parametrize("x64", [False, True])
def test_strict_modes(x64):
    with (
        jax.enable_x64(x64),
        jax.numpy_dtype_promotion("strict"),
        jax.numpy_rank_promotion("raise"),
    ):
        hooked = px.ForwardHook(LIN, Noise(KEY), method=lambda m, x: recurrent(m, x))
        _, log = hooked(X)
    assert_close(log["."][0], LIN(X) + noise(0, 0, 0), rtol=2e-6)


# With other hooks


def test_at_some_steps():
    hooked = px.ForwardHook(LIN, px.AtStep(Noise(KEY), [1, 3]), method=recurrent)
    _, log = eqx.filter_jit(hooked)(X)
    x = X
    for i in range(5):
        value = LIN(x) + (noise(0, i, 0) if i in (1, 3) else 0)
        assert_close(log["."][i], value, rtol=2e-6)
        x = jnp.tanh(value)


def test_a_patch_at_some_steps():
    _, source = px.ForwardHook(LIN, method=recurrent)(-X)
    hook = px.AtStep(px.PatchHook(source), [2])
    _, log = px.ForwardHook(LIN, hook, method=recurrent)(X)
    x = X
    for i in range(5):
        value = source["."][2] if i == 2 else LIN(x)
        assert_close(log["."][i], value, rtol=2e-6)
        x = jnp.tanh(value)


def test_at_one_call():
    method = lambda m, x: m(m(m(x)))
    out, log = px.ForwardHook(LIN, Noise(KEY), where=".#1", method=method)(X)
    second = LIN(LIN(X)) + noise(1, 0, 0)
    assert list(log) == [".#1"]
    assert_close(log[".#1"], second, rtol=2e-6)
    assert_close(out, LIN(second), rtol=2e-6)


def test_in_nested_wrappers():
    inner = px.ForwardHook(LIN, Noise(KEY), None, method=recurrent)
    out, log = px.ForwardHook(inner, Noise(KEY, 2.0))(X)
    x = X
    for i in range(5):
        x = jnp.tanh(LIN(x) + 3 * noise(0, i, 0))
    assert_close(out[0], x, rtol=5e-6)


@pytest.mark.skipif(len(jax.devices()) < 2, reason="tests/conftest.py asks for four")
@pytest.mark.parametrize("hook", [Noise(KEY), px.AtStep(px.ScaleHook(2.0), [1])])
def test_explicit_shardings(hook):
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Explicit,))
    method = lambda m, xs: jax.vmap(lambda x: recurrent(m, x))(xs)
    xs = jr.normal(jr.key(0), (4, 3))
    expected = px.ForwardHook(LIN, hook, method=method)(xs)
    with jax.set_mesh(mesh):
        sharded = jax.device_put(xs, NamedSharding(mesh, P("d")))
        for run in (lambda f: f, eqx.filter_jit):
            found = run(px.ForwardHook(LIN, hook, method=method))(sharded)
            assert_close(jax.device_get(found), jax.device_get(expected), rtol=2e-6)


def test_symbolic_shapes():
    (size,) = jax.export.symbolic_shape("size")
    method = lambda m, xs: jax.vmap(m)(xs)
    run = lambda xs: px.ForwardHook(SHOWN, Show(), method=method)(xs)[0]
    shape = jax.ShapeDtypeStruct((size, 3), jnp.float32)
    exported = jax.export.export(jax.jit(run))(shape)
    told = np.asarray(exported.call(jnp.ones((5, 3))))
    np.testing.assert_array_equal(told[:, 2], np.arange(5))
