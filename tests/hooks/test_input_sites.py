"""The arguments of a module as a site, `"l:in"`, beside its output."""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from closeness import assert_close
from jax.sharding import PartitionSpec as P
from parts import Chain
from twin_case import linear
from twin_models import MLP

import peex as px


MODEL = MLP(3, 4, 2, key=jr.key(0))
X = jr.normal(jr.key(1), (3,))
BOTH = ["linear2", "linear2:in"]


def test_in_and_out_of_one_call():
    out, log = px.ForwardHook(MODEL, where=BOTH)(X)
    hidden = jax.nn.relu(MODEL.linear1(X))
    assert list(log) == ["linear2:in", "linear2"]
    np.testing.assert_array_equal(log["linear2:in"], hidden)
    np.testing.assert_array_equal(log["linear2"], out)
    np.testing.assert_array_equal(out, MODEL(X))


def test_each_has_its_own_hook_and_log():
    hooked = px.ForwardHook(
        MODEL,
        {"linear2:in": px.ScaleHook(2.0), "linear2": px.AddHook(jnp.array(1.0))},
        {"linear2": px.IdentityLog(), "**:in": px.MaxAbsLog()},
        where=BOTH,
    )
    out, log = hooked(X)
    hidden = 2 * jax.nn.relu(MODEL.linear1(X))
    assert_close(out, MODEL.linear2(hidden) + 1)
    assert_close(log["linear2"], out)
    assert_close(log["linear2:in"], jnp.max(jnp.abs(hidden)))


def test_each_has_its_own_cotangent():
    def wrapped(**kwargs):
        return px.BackwardHook(MODEL, where=BOTH, **kwargs).init(X)

    loss = lambda hooked: jnp.sum(hooked(X) ** 2)
    grads = eqx.filter_grad(loss)(wrapped())
    cotangent = 2 * MODEL(X)
    assert_close(grads.log["linear2"], cotangent)
    assert_close(grads.log["linear2:in"], cotangent @ MODEL.linear2.weight)

    # What is changed on its way in comes to the layer before, not to this one.
    hook = {"linear2:in": px.ScaleHook(3.0)}
    changed = eqx.filter_grad(loss)(wrapped(hook_fn=hook))
    first, second = grads.model.linear1, grads.model.linear2
    assert_close(changed.model.linear1.weight, 3 * first.weight)
    assert_close(changed.model.linear2, second)
    assert_close(changed.log["linear2:in"], 3 * grads.log["linear2:in"])


class Takes(eqx.Module):
    def __call__(self, *args, **kwargs):
        return sum(jax.tree.leaves((args, kwargs)))


class Gives(eqx.Module):
    part: Takes
    args: tuple = eqx.field(static=True)
    kwargs: dict = eqx.field(static=True)

    def __call__(self, x):
        put = lambda tree: jax.tree.map(lambda name: x[name], tree)
        return self.part(*put(self.args), **put(self.kwargs))


@pytest.mark.parametrize(
    "args, kwargs, expected",
    [
        (("a",), {}, "a"),
        (("a", "b"), {}, ("a", "b")),
        ((("a", "b"),), {}, ("a", "b")),
        (({"y": "a", "x": "b"},), {}, {"y": "a", "x": "b"}),
        (("a", None), {}, ("a", None)),
        (("a",), {"b": "b"}, "a"),
        ((), {"b": "b"}, ()),
    ],
)
@pytest.mark.parametrize("backward", [False, True])
def test_a_lone_argument_is_itself(args, kwargs, expected, backward):
    model = Gives(Takes(), args, kwargs)
    x = {"a": jnp.array(2.0), "b": jnp.array(3.0)}
    log = px.ForwardHook(model, where="part:in")(x)[1]
    if backward:
        hooked = px.BackwardHook(model, where="part:in").init(x)
        log = eqx.filter_grad(lambda hooked: hooked(x))(hooked).log
    one = lambda name: jnp.array(1.0) if backward else x[name]
    (entry,) = log.values()
    assert_close(entry, jax.tree.map(one, expected))
    (by_pre,) = px.ForwardHook(model, where="part", pre_hook=True)(x)[1].values()
    assert by_pre == jax.tree.map(lambda name: x[name], args)


def test_the_very_objects_are_handed_on():
    seen = []

    class Part(eqx.Module):
        def __call__(self, *args):
            seen.append(args)
            return args[0]["x"]

    class Whole(eqx.Module):
        part: Part

        def __call__(self, *args):
            return self.part(*args)

    for args in [({"x": X},), ({"x": X}, [X])]:
        px.ForwardHook(Whole(Part()), where="part:in")(*args)
        assert len(seen[-1]) == len(args)
        assert all(a is b for a, b in zip(seen[-1], args, strict=True))


def test_a_state_passes_by():
    norm, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "batch", mode="batch")
    xs = jr.normal(jr.key(2), (4, 3))

    def run(norm, xs):
        own = jax.tree.map(lambda x: x, state)  # it is used up
        one = lambda x: norm(x, own)[0]
        return jax.vmap(one, axis_name="batch")(xs)

    out, log = px.ForwardHook(norm, where=".:in", method=run)(xs)
    x, nothing = log[".:in"]
    assert nothing is None
    np.testing.assert_array_equal(x, xs)
    np.testing.assert_array_equal(out, run(norm, xs))


def test_further_calls():
    chain = Chain(linear(3, 3, 0))
    keys = ["cell:in", "cell", "cell:in#1", "cell#1", "cell:in#2", "cell#2"]
    _, log = px.ForwardHook(chain, where=["cell", "cell:in"])(X)
    assert list(log) == keys
    np.testing.assert_array_equal(log["cell:in#2"], jnp.tanh(log["cell#1"]))

    hooked = px.ForwardHook(chain, px.ZeroHook(), where="cell:in#1")
    out, only = hooked(X)
    assert list(only) == ["cell:in#1"] and not jnp.any(only["cell:in#1"])
    bias = chain.cell.bias
    assert_close(out, jnp.tanh(chain.cell(jnp.tanh(bias))))
    # Every key that is logged is a pattern.
    for key in keys[2:]:
        _, log_of_one = px.ForwardHook(chain, where=key)(X)
        assert list(log_of_one) == [key]
        np.testing.assert_array_equal(log_of_one[key], log[key])


class Embedding(eqx.Module):
    weight: jax.Array

    def __call__(self, i):
        return self.weight[i]

    def attend(self, x):
        return self.weight @ x


class Tied(eqx.Module):
    parts: dict
    embed: Embedding
    activation: object

    def __call__(self, i):
        x = self.activation(self.parts["a.b"](self.embed(i)))
        return self.embed.attend(x)


def tied():
    parts = {"a.b": linear(3, 3, 1), "a": {"b": linear(3, 3, 2)}}
    return Tied(parts, Embedding(jr.normal(jr.key(3), (5, 3))), jnp.tanh)


@pytest.mark.parametrize(
    "key", ["embed:in", "embed:attend:in", "activation:in", ".:in", 'parts."a.b":in']
)
def test_methods_functions_and_quoted_keys(key):
    model, i = tied(), jnp.array(2)
    hidden = model.parts["a.b"](model.embed(i))
    expected = {
        "embed:in": i,
        ".:in": i,
        "embed:attend:in": jnp.tanh(hidden),
        "activation:in": hidden,
        'parts."a.b":in': model.embed(i),
    }
    _, log = px.ForwardHook(model, where=key, log_fn={key: px.IdentityLog()})(i)
    assert list(log) == [key]
    assert_close(log[key], expected[key])
    report = px.report(model, i, where=key)
    assert list(report) == [key] and not report.missing


def test_patterns():
    keys = lambda where: list(px.ForwardHook(MODEL, where=where)(X)[1])
    assert keys("*:in") == ["linear1:in", "linear2:in"]
    assert keys("**:in") == [".:in", "linear1:in", "linear2:in"]
    assert keys(["**", "*1:in"]) == ["linear1:in", "linear1", "linear2", "."]
    with pytest.raises(px.SiteNotFoundError, match="'linear2:in/add'` matches no"):
        px.ForwardHook(MODEL, where="linear2:in/add")
    with pytest.raises(px.SiteNotFoundError, match="'linear3:in'` matches nothing"):
        px.ForwardHook(MODEL, where="linear3:in")


def test_pre_hook_is_the_same_with_other_keys_and_values():
    where = ["linear1", "linear2"]
    _, pre = px.ForwardHook(MODEL, where=where, pre_hook=True)(X)
    _, log = px.ForwardHook(MODEL, where=[f"{key}:in" for key in where])(X)
    assert list(pre) == where
    for key, args in pre.items():
        assert isinstance(args, tuple) and len(args) == 1
        np.testing.assert_array_equal(args[0], log[f"{key}:in"])
    # `":in"` is what it is beside a pre hook, too.
    _, both = px.ForwardHook(MODEL, where=BOTH, pre_hook=True)(X)
    assert set(both) == set(BOTH)
    assert both["linear2"] == (both["linear2:in"],)


def test_it_is_named_but_never_called():
    class Reads(eqx.Module):
        linear: eqx.nn.Linear

        def __call__(self, x):
            return self.linear.weight @ x

    message = "`where='linear:in'` was asked for, but nothing of it ran"
    with pytest.raises(px.SiteNotFiredError, match=message):
        px.ForwardHook(Reads(linear(3, 2, 0)), where="linear:in")(X)


class Recurrent(eqx.Module):
    cell: eqx.nn.Linear

    def __call__(self, xs):
        step = lambda h, x: (jnp.tanh(self.cell(h + x)), None)
        return jax.lax.scan(step, jnp.zeros(3), xs)[0]


XS = jr.normal(jr.key(4), (5, 3))


def test_patched_and_at_steps():
    model = Recurrent(linear(3, 3, 5))
    run = eqx.filter_jit(lambda hooked, xs: hooked(xs))
    clean, log = run(px.ForwardHook(model, where="cell:in"), XS)
    patched = px.ForwardHook(model, px.PatchHook(log), where="cell:in")
    assert_close(run(patched, 0 * XS)[0], clean)

    hook = px.AtStep(px.ZeroHook(), [1, -1])
    out, changed = run(px.ForwardHook(model, hook, where=["cell", "cell:in"]), XS)
    chosen = jnp.array([False, True, False, False, True])
    assert jnp.array_equal(jnp.all(changed["cell:in"] == 0, axis=1), chosen)
    assert jnp.array_equal(jnp.all(changed["cell"] == 0, axis=1), chosen)
    np.testing.assert_array_equal(out, 0)
    only_in = px.ForwardHook(model, {"cell:in": hook}, where=["cell", "cell:in"])
    assert_close(run(only_in, XS)[0], jnp.tanh(model.cell.bias))


def test_wrappers_around_each_other():
    inner = px.ForwardHook(MODEL, px.ScaleHook(2.0), where="linear2:in")
    outer = px.ForwardHook(inner, where=["linear2:in", "linear2"])
    (out, inner_log), log = outer(X)
    hidden = jax.nn.relu(MODEL.linear1(X))
    np.testing.assert_array_equal(log["linear2:in"], hidden)
    np.testing.assert_array_equal(inner_log["linear2:in"], 2 * hidden)
    np.testing.assert_array_equal(log["linear2"], out)

    hooked = px.BackwardHook(inner, where=["linear2:in"]).init(X)
    grads = eqx.filter_grad(lambda hooked: jnp.sum(hooked(X)[0]))(hooked)
    cotangent = 2 * jnp.ones(2) @ MODEL.linear2.weight
    assert_close(grads.log["linear2:in"], cotangent)


@pytest.mark.skipif(len(jax.devices()) < 4, reason="conftest.py asks for four devices")
@pytest.mark.parametrize("check_vma", [False, True])
def test_on_several_devices(check_vma):
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((4,), ("x",), axis_types=auto)

    class Sharded(eqx.Module):
        linear: eqx.nn.Linear

        def __call__(self, xs):
            run = ft.partial(
                jax.shard_map,
                mesh=mesh,
                in_specs=(P(), P("x")),
                out_specs=P("x"),
                check_vma=check_vma,
            )
            weights, static = eqx.partition(self.linear, eqx.is_array)
            combined = lambda w: eqx.combine(w, static)
            return run(lambda w, xs: jax.vmap(combined(w))(jnp.sin(xs)))(weights, xs)

    model = Sharded(linear(3, 2, 6))
    xs = jr.normal(jr.key(5), (8, 3))
    loss = lambda model, xs: jnp.sum(model(xs) ** 2)
    run = px.value_and_grad(
        loss,
        forward={"linear:in": px.IdentityLog()},
        backward={"linear": px.IdentityLog()},
    )
    (_, logs), grads = eqx.filter_jit(run)(model, xs)
    given, cotangent = logs.forward["linear:in"], logs.backward["linear"]
    assert_close(given, jnp.sin(xs).reshape(4, 2, 3))
    expected = 2 * jax.vmap(model.linear)(jnp.sin(xs))
    assert_close(cotangent, expected.reshape(4, 2, 2))
    weight = jnp.einsum("dbo,dbi->oi", cotangent, given)
    assert_close(grads.linear.weight, weight)


def test_report():
    where = {"given": "cell:in", "made": "cell", "second": "cell:in#1"}
    chain = Chain(linear(3, 3, 0))
    report = px.report(chain, X, where=where)
    _, log = px.ForwardHook(chain, where=where)(X)
    assert list(report.entries) == list(log)
    given = report["given"]
    assert given.class_name == "arguments" and given.is_inside
    assert given.site == "cell:in" and given.parameters == () and given.flops == 0
    for key, value in log.items():
        assert report[key].log.shape == value.shape
    assert [c.key for c in report["made"].children] == ["given"]
    scanned = px.report(Recurrent(linear(3, 3, 5)), XS, where=["cell", "cell:in"])
    assert [c.log.shape for c in scanned.entries.values()] == [(5, 3), (5, 3)]
