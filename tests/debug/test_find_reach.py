"""Where it still finds the one call: loops, transformations, what is given how."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from nonfinite_models import Chain, find, Fn, mean, Scale, Unrolled

import peex as px


BATCH = jnp.ones((6, 3)).at[1:5].set(45.0)


def test_one_call_of_several():
    class Twice(eqx.Module):
        cell: Fn

        def __call__(self, x):
            return self.cell(self.cell(x))

    xs = jnp.full((2, 2), 5.0).at[0].set(0)
    (first,) = find(Chain(Twice(Fn(jnp.exp))), xs).producers
    assert (first.key, first.examples, first.op) == ("parts.0.cell#1", (1,), "exp")
    np.testing.assert_allclose(first.max_abs, np.exp(5), rtol=1e-5)


def test_what_is_given_by_keyword_counts():
    class Soft(eqx.Module):
        def __call__(self, x, *, bias):
            return jax.nn.relu(x) + bias

    class Given(eqx.Module):
        soft: Soft
        make: Fn

        def __call__(self, x):
            return self.soft(x, bias=self.make(x))

    model = Chain(Given(Soft(), Fn(lambda x: x / 0)))
    found = find(model, jnp.ones((3, 2)), drill=False)
    assert [b.key for b in found.producers] == ["parts.0.make"]


def test_layers_that_are_stacked_in_the_forward_pass():
    class Grouped(eqx.Module):
        layers: list

        def __call__(self, x):
            stacked = jax.tree.map(lambda *a: jnp.stack(a), *self.layers)
            step = lambda x, layer: (layer(x), None)
            return jax.lax.scan(step, x, stacked)[0]

    (first,) = find(Grouped(Unrolled().layers), BATCH).producers
    assert (first.key, first.step) == ("layers.*.act", (2,))
    assert first.examples == (1, 2, 3, 4) and first.op == "exp"


def test_a_while_loop_says_that_it_has_seen_the_last_step():
    class While(eqx.Module):
        cell: Fn

        def __call__(self, x):
            body = lambda c: (c[0] + 1, self.cell(c[1]))
            return jax.lax.while_loop(lambda c: c[0] < 4, body, (0, x))[1]

    (first,) = find(While(Fn(jnp.exp)), jnp.full((2, 2), 4.0), grad=False).producers
    assert first.key == "." and "only the last step is seen" in first.note


def test_stateful_layers():
    class Stateful(eqx.Module):
        norm: eqx.nn.BatchNorm
        log: Fn

        def __call__(self, x, state):
            x, state = self.norm(x, state)
            return self.log(x), state

    def loss(model, xs, state):
        call = jax.vmap(model, axis_name="b", in_axes=(0, None), out_axes=(0, None))
        out, state = call(xs, state)
        return jnp.mean(out), state

    make = lambda: Stateful(eqx.nn.BatchNorm(2, "b", mode="batch"), Fn(jnp.log))
    model, state = eqx.nn.make_with_state(make)()
    xs = jax.random.normal(jax.random.key(0), (4, 2))
    (first,) = px.debug.find_nonfinite(model, xs, state, method=loss).producers
    assert (first.key, first.op, first.kind) == ("log", "log", "nan")


def test_mixed_precision():
    class Mixed(eqx.Module):
        scale: Scale
        log: Fn

        def __call__(self, x):
            half = jax.tree.map(lambda w: w.astype(jnp.float16), self.scale)
            return self.log(half(x.astype(jnp.float16)).astype(jnp.float32))

    model = Mixed(Scale(jnp.array(300.0)), Fn(jnp.log1p))
    (first,) = find(model, jnp.ones((2, 2)).at[1].set(300)).producers
    assert (first.key, first.examples, first.op) == ("scale", (1,), "mul")


def test_a_loss_scale_that_is_too_large():
    def loss(model, xs):
        return jnp.sum(jax.vmap(model)(xs)).astype(jnp.float32) * 30000

    cast = Fn(lambda x: x.astype(jnp.float16))
    model = Chain(cast, Fn(lambda x: x * jnp.float16(3)), gain=0.001)
    found = find(model, jnp.ones((2, 2)), loss)
    (first,) = found.producers
    assert found.value == "finite" and first.direction == "backward"
    assert (first.key, first.kind, first.op) == ("parts.1", "inf", "mul")
    assert first.max_abs == 30000


@pytest.mark.parametrize("wrap", [eqx.filter_jit, eqx.filter_checkpoint, lambda f: f])
def test_inside_of_wrappers(wrap):
    model = Chain(wrap(Fn(lambda x: 1 / x)))
    (first,) = find(model, jnp.ones((2, 3, 2)).at[1, 2].set(0), _rows).producers
    assert (first.key, first.examples, first.op) == ("parts.0", ((1, 2),), "div")


def _rows(model, xs):
    return jnp.mean(jax.vmap(jax.vmap(model))(xs))


def test_a_jitted_loss_of_a_mapped_model():
    model = eqx.filter_vmap(Chain(Fn(jnp.log)))
    loss = eqx.filter_jit(lambda model, xs: jnp.mean(model(xs)))
    (first,) = find(model, jnp.ones((2, 2)).at[1].set(0), loss).producers
    assert (first.key, first.examples, first.op) == ("parts.0", (1,), "log")


def test_in_shard_map():
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("d")

    def loss(model, xs):
        local = lambda xs: jax.vmap(model)(xs)
        mapped = jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec)
        return jnp.mean(mapped(xs))

    (first,) = find(Chain(Fn(jnp.log)), jnp.ones((2, 2)).at[1].set(0), loss).producers
    assert (first.key, first.op) == ("parts.0", "log")
    assert first.examples == ((0, 1),)  # device, example


def test_only_the_chosen_modules():
    (first,) = find(Unrolled(), BATCH, where="layers.*").producers
    assert first.key == "layers.2" and first.trail == (
        "layers.3",
        "layers.4",
        "layers.5",
    )
    with pytest.raises(px.SiteNotFoundError, match="layer"):
        find(Unrolled(), BATCH, where="layer")


def test_a_container_is_not_to_blame_where_a_part_is():
    model = Chain(Chain(Chain(Fn(jnp.log))))
    found = find(model, jnp.zeros((1, 2)), mean, drill=False)
    assert [b.key for b in found.producers] == ["parts.0.parts.0.parts.0"]


def test_a_compiled_program_is_used_again():
    model, traced = Chain(Fn(jnp.log)), []

    def loss(model, xs):
        traced.append(None)
        return mean(model, xs)

    find(model, jnp.ones((2, 2)), loss)
    first = len(traced)
    find(model, jnp.ones((2, 2)) * 2, loss)
    assert len(traced) - first < first  # the report's trace alone
