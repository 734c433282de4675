"""Sites inside of `shard_map`, on four devices that the CPU stands for."""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from closeness import assert_close
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P
from pairs import pairs
from twin_case import linear
from twin_loops import While
from twin_models import MLP

import peex as px


pytestmark = pytest.mark.skipif(
    len(jax.devices()) < 4, reason="tests/conftest.py asks XLA for four CPU devices"
)


def mesh(shape, names):
    auto = (jax.sharding.AxisType.Auto,) * len(shape)
    return jax.make_mesh(shape, names, axis_types=auto)


ONE_AXIS = lambda: mesh((4,), ("x",))
MESHES = {"one": ONE_AXIS, "two": lambda: mesh((2, 2), ("x", "y"))}
each_way = pytest.mark.parametrize(
    ("axes", "check_vma", "jit"), pairs(MESHES, (False, True), (False, True))
)


class Sharded(eqx.Module):
    """A data-parallel model: its examples are spread over the mesh."""

    lin: eqx.nn.Linear
    out: eqx.nn.Linear
    mesh: jax.sharding.Mesh = eqx.field(static=True)
    check_vma: bool = eqx.field(static=True)

    def __call__(self, xs):
        dynamic, static = eqx.partition((self.lin, self.out), eqx.is_array)
        everywhere = P(self.mesh.axis_names)

        @ft.partial(
            jax.shard_map,
            mesh=self.mesh,
            in_specs=(P(), everywhere),
            out_specs=everywhere,
            check_vma=self.check_vma,
        )
        def run(dynamic, xs):
            lin, out = eqx.combine(dynamic, static)
            h = jnp.tanh(jax.vmap(lin)(xs))
            step = lambda h, _: (jnp.tanh(jax.vmap(out)(h)), None)
            return lax.scan(step, h, length=3)[0]

        return run(dynamic, xs)


def expected_values(model, xs):
    h = jax.vmap(model.lin)(xs)
    lin, h, outs = h, jnp.tanh(h), []
    for _ in range(3):
        outs.append(jax.vmap(model.out)(h))
        h = jnp.tanh(outs[-1])
    return h, lin, jnp.stack(outs)


@each_way
def test_logs_have_a_device_axis_in_front(axes, check_vma, jit):
    model = Sharded(linear(3, 3, 0), linear(3, 3, 1), MESHES[axes](), check_vma)
    xs = jr.normal(jr.key(2), (8, 3))
    expected, lin, out = expected_values(model, xs)
    hooked = px.ForwardHook(model)
    result, log = (eqx.filter_jit(hooked) if jit else hooked)(xs)
    assert_close(result, expected, rtol=2e-6)
    assert log["lin"].shape == (4, 2, 3)
    assert log["out"].shape == (4, 3, 2, 3)  # devices, steps, batch
    assert_close(log["lin"].reshape(8, 3), lin, rtol=2e-6)
    by_step = np.moveaxis(log["out"], 1, 0).reshape(3, 8, 3)
    assert_close(by_step, out, rtol=2e-6)
    # It stays where it was made.
    spec = P(model.mesh.axis_names)
    wanted = NamedSharding(model.mesh, spec)
    assert log["lin"].sharding.is_equivalent_to(wanted, log["lin"].ndim)


@each_way
def test_cotangents(axes, check_vma, jit):
    model = Sharded(linear(3, 3, 0), linear(3, 3, 1), MESHES[axes](), check_vma)
    xs = jr.normal(jr.key(2), (8, 3))
    loss = lambda m, xs: jnp.sum(jnp.sin(m(xs)))

    def twin_loss(eps, xs):
        h = jnp.tanh(jax.vmap(model.lin)(xs) + eps["lin"])
        for i in range(3):
            h = jnp.tanh(jax.vmap(model.out)(h) + eps["out"][i])
        return jnp.sum(jnp.sin(h))

    eps = {"lin": jnp.zeros((8, 3)), "out": jnp.zeros((3, 8, 3))}
    expected = jax.grad(twin_loss)(eps, xs)
    hooked = px.BackwardHook(model).init(xs)
    grad = eqx.filter_grad(loss)
    grads = (eqx.filter_jit(grad) if jit else grad)(hooked, xs)
    lin = grads.log["lin"].reshape(8, 3)
    assert_close(lin, expected["lin"], rtol=1e-5, atol=1e-6)
    out = np.moveaxis(grads.log["out"], 1, 0).reshape(3, 8, 3)
    assert_close(out, expected["out"], rtol=1e-5, atol=1e-6)
    assert_close(grads.model, grad(model, xs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("check_vma", (False, True))
def test_branches_loops_and_hooks_inside(check_vma):
    model = While(linear(3, 3, 50), linear(3, 1, 51))
    xs = jr.normal(jr.key(3), (4, 3))
    the_mesh = ONE_AXIS()

    def run(m, xs):
        dynamic, static = eqx.partition(m, eqx.is_array)

        def body(dynamic, xs):
            m = eqx.combine(dynamic, static)
            return m(xs[0])[None]

        return jax.shard_map(
            body,
            mesh=the_mesh,
            in_specs=(P(), P("x")),
            out_specs=P("x"),
            check_vma=check_vma,
        )(dynamic, xs)

    hook = px.ScaleHook(jnp.array(0.5))
    out, log = eqx.filter_jit(px.ForwardHook(model, hook, method=run))(xs)
    for i, x in enumerate(xs):
        one, expected = px.ForwardHook(model, hook)(x)
        assert_close(out[i], one, rtol=2e-6)
        for key in expected:
            assert_close(log[key][i], expected[key], rtol=2e-6)
            assert int(log.counts[key][i]) == int(expected.counts[key])


def test_shard_map_in_a_loop_keeps_devices_in_front():
    model = Sharded(linear(3, 3, 0), linear(3, 3, 1), ONE_AXIS(), True)
    xs = jr.normal(jr.key(2), (8, 3))

    def twice(m, xs):
        return lax.scan(lambda xs, _: (m(xs), None), xs, length=2)[0]

    hooked = px.ForwardHook(model, method=twice)
    out, log = eqx.filter_jit(hooked)(xs)
    assert log["lin"].shape == (4, 2, 2, 3)  # devices, steps, batch
    assert log["out"].shape == (4, 2, 3, 2, 3)
    second = np.moveaxis(log["lin"], 1, 0)[1].reshape(8, 3)
    assert_close(second, jax.vmap(model.lin)(model(xs)), rtol=2e-6)
    hooked = px.BackwardHook(model, method=twice).init(xs)
    grads = eqx.filter_grad(lambda h, xs: jnp.sum(h(xs)))(hooked, xs)
    assert grads.log["out"].shape == (4, 2, 3, 2, 3)
    bias = eqx.filter_grad(lambda m, xs: jnp.sum(twice(m, xs)))(model, xs).out.bias
    assert_close(grads.log["out"].sum((0, 1, 2, 3)), bias, rtol=1e-5, atol=1e-6)


def test_shard_map_without_sites_is_left_alone():
    the_mesh = ONE_AXIS()

    def run(m, xs):
        double = jax.shard_map(
            lambda x: 2 * x, mesh=the_mesh, in_specs=P("x"), out_specs=P("x")
        )
        return jax.vmap(m)(double(xs))

    model, xs = MLP(3, 4, 3, key=jr.key(0)), jr.normal(jr.key(1), (8, 3))
    for transform in (lambda f: f, eqx.filter_jit):
        out, _ = transform(px.ForwardHook(model, method=run))(xs)
        assert_close(out, run(model, xs), rtol=2e-6)


def test_sharded_inputs_are_not_gathered():
    the_mesh = ONE_AXIS()
    model = MLP(3, 4, 3, key=jr.key(0))
    sharding = NamedSharding(the_mesh, P("x"))
    xs = jax.device_put(jr.normal(jr.key(1), (8, 3)), sharding)
    hooked = px.ForwardHook(model, method=lambda m, xs: jax.vmap(m)(xs))
    out, log = eqx.filter_jit(hooked)(xs)
    assert out.sharding.is_equivalent_to(sharding, 2)
    for value in log.values():
        assert value.sharding.is_equivalent_to(sharding, 2)
