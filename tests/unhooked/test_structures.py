"""Modules as values, layers that are stacked, halves that are combined; exported
programs; meshes.
"""

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from closeness import assert_close
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from parts import Outer
from twin_case import linear

import peex as px


X = jnp.arange(3.0)


def branch(f, x):
    return lax.cond(x[0] < 9, lambda x: f(x), lambda x: x, x)


#
# Modules as values.
#


class Choosing(eqx.Module):
    a: eqx.nn.Linear
    b: eqx.nn.Linear
    how: str = eqx.field(static=True)

    def __call__(self, x):
        if self.how == "cond":
            return lax.cond(x[0] < 9, lambda: self.a, lambda: self.b)(x)
        if self.how == "switch":
            return lax.switch(1, [lambda m=m: m for m in (self.a, self.b)])(x)
        if self.how == "carry":
            swap = lambda pair, _: (pair[::-1], None)
            (a, _), _ = lax.scan(swap, (self.a, self.b), length=1)
            return a(x)
        if self.how == "average":
            mean = jax.tree.map(lambda a, b: (a + b) / 2, self.a, self.b)
            return mean(x)
        plain = eqx.nn.Linear(3, 3, key=jr.key(2))
        return jax.tree.map(lambda a, b: a + b, self.a, plain)(x)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("how", ["cond", "switch", "carry", "average", "plain"])
def test_modules_as_values_are_refused_by_name(how, jit):
    model = Choosing(linear(3, 3, 0), linear(3, 3, 1), how)
    model(X)
    wrap = eqx.filter_jit if jit else lambda f: f
    among = "" if how == "plain" else ", among them '[ab]'"
    match = f"brings modules .* together{among}.*Call the modules where"
    for run in (
        lambda m: px.ForwardHook(m)(X),
        lambda m: px.BackwardHook(m).init(X),
        lambda m: px.value_and_grad(lambda m, x: jnp.sum(m(x)))(m, X),
    ):
        with pytest.raises(px.SiteLostError, match=match):
            wrap(run)(model)
    # Of the sites that stay, nothing is refused.
    out, _ = wrap(px.ForwardHook(model, None, None))(X)
    assert_close(out, model(X))


class Stacking(eqx.Module):
    ls: list[eqx.nn.Linear]

    def __call__(self, x):
        stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *self.ls)
        return lax.scan(lambda x, f: (jnp.tanh(f(x)), None), x, stacked)[0]


def stack():
    return Stacking([linear(3, 3, i) for i in range(3)])


def stack_values(model, x):
    out = []
    for f in model.ls:
        out.append(f(x))
        x = jnp.tanh(out[-1])
    return jnp.stack(out), x


@pytest.mark.filterwarnings("ignore:This model is wrapped in an equal")
@pytest.mark.parametrize("where", [None, "ls.*", "**", ["ls.0", "ls.1", "ls.2"]])
def test_stacked_layers_with_everything(where):
    model = stack()
    values, out = stack_values(model, X)
    loss = lambda m, x: jnp.sum(m(x))
    run = px.value_and_grad(loss, forward=px.IdentityLog(), where=where)
    for wrap in (lambda f: f, eqx.filter_jit):
        (value, logs), grads = wrap(run)(model, X)
        assert_close(value, jnp.sum(out), rtol=1e-5)
        assert_close(logs.forward["ls.*"], values, rtol=1e-5)
        assert logs.backward["ls.*"].shape == (3, 3)
        expected = eqx.filter_grad(loss)(model, X)
        assert_close(grads, expected, rtol=1e-5)
    inner = px.ForwardHook(model, where=where)
    (out2, log1), log2 = px.ForwardHook(inner, where=where)(X)
    assert_close(out2, out, rtol=1e-5)
    assert_close(log1["ls.*"], log2["ls.*"], rtol=1e-5)


def test_one_of_the_layers_that_are_stacked():
    for where in ("ls.1", ["ls.0", "ls.1"]):
        with pytest.raises(px.SiteLostError, match=r"where='layers\.\*'.*px.AtStep"):
            px.ForwardHook(stack(), where=where)(X)
    hooks = {"ls.0": px.ZeroHook(), "ls.*": None}
    with pytest.raises(px.SiteLostError, match="need the same hook_fn and log_fn"):
        px.ForwardHook(stack(), hooks)(X)


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("wrap", [lambda f: f, eqx.filter_jit], ids=["eager", "jit"])
def test_partition_and_combine_in_the_loss(order, wrap):
    model = Outer(eqx.nn.MLP(3, 3, 4, 2, key=jr.key(0)))
    spec = jax.tree.map(lambda _: False, model)
    last = lambda m: (m.inner.layers[-1].weight, m.inner.layers[-1].bias)
    spec = eqx.tree_at(last, spec, (True, True))
    trained, frozen = eqx.partition(model, spec)

    def loss(trained, frozen, x):
        halves = (frozen, trained) if order else (trained, frozen)
        return jnp.sum(eqx.combine(*halves)(x) ** 2)

    run = px.value_and_grad(loss, forward=px.IdentityLog())
    (value, logs), grads = wrap(run)(trained, frozen, X)
    expected, grad = eqx.filter_value_and_grad(loss)(trained, frozen, X)
    assert_close(value, expected)
    assert jax.tree.structure(grads) == jax.tree.structure(grad)
    assert_close(grads, grad, rtol=1e-5)
    _, plain = px.ForwardHook(model)(X)
    assert list(logs.forward) == list(logs.backward) == list(plain)
    for key in plain:
        assert_close(logs.forward[key], plain[key])


def test_a_frozen_copy_that_runs_says_nothing():
    model = Outer(linear(3, 3, 0))

    def loss(m, average, x):
        return jnp.sum((m(x) - average(x)) ** 2)

    average = jax.tree.map(lambda w: w / 2, model)
    (_, logs), _ = px.value_and_grad(loss)(model, average, X)
    assert list(logs.backward) == ["inner"]


#
# Exported programs.
#


def test_a_log_in_an_exported_program():
    model = Outer(linear(3, 3, 0))
    shape = jax.export.symbolic_shape("n, 3")
    x = jax.ShapeDtypeStruct(shape, jnp.float32)

    def run(xs):
        method = lambda m, xs: lax.map(m, xs)
        return px.ForwardHook(model, method=method)(xs)

    exported = jax.export.export(jax.jit(run))(x)
    again = jax.export.deserialize(exported.serialize())
    for n in (2, 5):
        xs = jr.normal(jr.key(n), (n, 3))
        out, log = again.call(xs)
        assert isinstance(log, px.Log) and list(log) == ["inner"]
        assert_close(out, jax.vmap(model)(xs))
        assert_close(log["inner"], out)


def test_statistics_and_counts_in_an_exported_program():
    model = Outer(linear(3, 3, 0))
    run = lambda x: px.ForwardHook(
        model, log_fn=px.MeanStdLog(), method=lambda m, x: branch(m, x)
    )(x)
    exported = jax.export.export(jax.jit(run))(X)
    _, log = jax.export.deserialize(exported.serialize()).call(X)
    _, expected = run(X)
    assert_close(log["inner"].std, expected["inner"].std)
    assert int(log.counts["inner"]) == 1


#
# Meshes.
#


def mesh():
    return jax.make_mesh((4,), ("d",), axis_types=(AxisType.Explicit,))


def test_shard_map_on_an_explicit_mesh_with_closed_over_weights():
    layer = linear(3, 3, 0)
    with jax.set_mesh(mesh()):
        xs = jax.device_put(jr.normal(jr.key(0), (8, 3)), P("d", None))

        def run(m, xs):
            body = lambda xs: jax.vmap(m)(xs)
            return jax.shard_map(body, in_specs=P("d", None), out_specs=P("d", None))(
                xs
            )

        out, log = px.ForwardHook(layer, method=run)(xs)
        expected = jax.vmap(layer)(xs)
        assert_close(out, expected, rtol=1e-5)
        hooked = px.BackwardHook(layer, method=run).init(xs)
        loss = lambda h, xs: jnp.sum(jnp.sin(h(xs)))
        grads = eqx.filter_jit(eqx.filter_grad(loss))(hooked, xs)
        assert_close(
            np.asarray(grads.log["."]).reshape(8, 3), jnp.cos(expected), rtol=1e-5
        )
        loss = lambda m, xs: jnp.sum(jnp.sin(run(m, xs)))
        (_, logs), _ = eqx.filter_jit(px.value_and_grad(loss))(layer, xs)
        assert_close(logs.backward["."], grads.log["."], rtol=1e-5)


def test_backward_logs_on_an_explicit_mesh_are_sharded_as_the_values():
    layer = linear(3, 3, 0)
    m = mesh()
    with jax.set_mesh(m):
        xs = jax.device_put(jr.normal(jr.key(0), (8, 3)), P("d", None))
        run = lambda f, xs: jax.vmap(f)(xs)
        loss = lambda f, xs: jnp.sum(jnp.sin(run(f, xs)))
        (_, logs), _ = eqx.filter_jit(px.value_and_grad(loss))(layer, xs)
        assert jax.typeof(logs.backward["."]).sharding.spec == P("d", None)
        hooked = px.BackwardHook(layer, method=run).init(xs)
        assert hooked.log["."].sharding == NamedSharding(m, P("d", None))
        grads = eqx.filter_grad(lambda h, xs: jnp.sum(jnp.sin(h(xs))))(hooked, xs)
        assert jax.typeof(grads.log["."]).sharding.spec == P("d", None)
