"""One call of a model, made again by itself."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from called_twice import BATCH, NET, XS
from closeness import assert_close
from jax import lax
from twin_case import linear

import peex as px


KEYS = (".", "a", "b", "b.shared", "b.shared#1", "c")


def equal(got, want):
    """Bitwise, of any pytrees."""
    got, want = map(jax.tree.leaves, (got, want))
    assert len(got) == len(want) > 0
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(x, y)


def kinds(call):
    return [tuple(axis) for axis in call.axes]


def steps(net, xs):
    """Three steps of a checkpointed `b`, mapped over the batch, then `c`."""
    step = jax.checkpoint(lambda xs, _: (jax.vmap(net.b)(xs), None))
    xs, _ = lax.scan(step, xs, length=3)
    return jax.vmap(net.c)(xs)


@pytest.mark.parametrize("method, keys", ((BATCH, KEYS), (steps, KEYS[2:])))
def test_each_call_alone_is_as_in_the_model(method, keys):
    tree = px.trace(NET, XS, method=method)
    where = ["**"] if method is BATCH else ["b.**", "c"]

    @eqx.filter_jit
    def run(tree, xs):
        calls = {key: tree.isolate(key, xs) for key in keys}
        _, log = px.ForwardHook(tree.model, where=where, method=method)(xs)
        return calls, log

    calls, log = run(tree, XS)
    again = eqx.filter_jit(lambda calls: {key: calls[key]() for key in keys})(calls)
    for key, call in calls.items():
        equal(call.output, log[key])
        equal(again[key], log[key])
        assert call.axes == log.axes[key]
        assert call.key == key
        assert call.state == (None, None)
    assert type(calls["b"].module) is type(NET.b)
    eager = tree.isolate("b.shared#1", XS)
    assert eager.module.weight is NET.b.shared.weight
    assert_close(eager.output, log["b.shared#1"])
    step = [("step", 3)] if method is steps else []
    assert kinds(eager) == [*step, ("batch", 3)]
    if method is BATCH:
        by_hand = jnp.tanh(jax.vmap(lambda x: NET.b.shared(NET.a(x)))(XS))
        assert_close(eager.args[0], by_hand)


class Stateful(eqx.Module):
    norm: eqx.nn.BatchNorm
    drop: eqx.nn.Dropout
    lin: eqx.nn.Linear

    def __call__(self, x, state, key, inference=False):
        x, state = self.norm(self.lin(x), state, inference=inference)
        return self.drop(x, key=key, inference=inference), state


def test_state_keys_and_what_is_no_array():
    """`BatchNorm` sums over a named axis, which the call alone has too."""
    norm = eqx.nn.BatchNorm(4, "batch", mode="batch")
    model = Stateful(norm, eqx.nn.Dropout(0.5), linear(4, 4, 0))
    state = eqx.nn.State(model)

    def batch(model, xs, state, key, inference=False):
        keys = jr.split(key, len(xs))
        one = lambda x, key: model(x, state, key, inference)
        return jax.vmap(one, axis_name="batch", out_axes=(0, None))(xs, keys)

    args = XS, state, jr.key(1)
    tree = px.trace(model, *args, method=batch)
    drop = tree.isolate("drop", *args)
    assert drop.kwargs["inference"] is False
    assert jnp.issubdtype(drop.kwargs["key"].dtype, jax.dtypes.prng_key)
    equal(drop(), drop.output)

    norm = tree.isolate("norm", *args)
    equal(norm(), norm.output)
    equal(norm(), norm.output)  # its State is there once more
    before, after = norm.state
    still = tree.isolate("norm", *args, inference=True)
    assert still.kwargs == {"inference": True}
    equal(still(), still.output)

    stacked = lambda state: jax.tree.map(lambda x: jnp.stack([x] * 3), state)
    equal(before, stacked(state))
    out, new = batch(model, *args)
    assert_close(drop.output, out)
    for got, want in zip(*map(jax.tree.leaves, (after, stacked(new))), strict=True):
        assert_close(got, want)
    ys = jax.vmap(model.lin)(XS)
    by_hand = (ys - ys.mean(0)) / jnp.sqrt(ys.var(0) + 1e-5)
    assert_close(norm.output[0], by_hand, rtol=1e-4)


class Table(eqx.Module):
    weight: jax.Array

    def __call__(self, i):
        return self.weight[i]

    def attend(self, x, *, how):
        return {"logits": self.weight @ x, "how": how}


class Tied(eqx.Module):
    table: Table
    lin: eqx.nn.Linear

    def __call__(self, i):
        x = self.table(i)
        return self.table.attend(eqx.filter_jit(self.lin)(x), how="dot")["logits"]


TIED = Tied(Table(jr.normal(jr.key(3), (5, 4))), linear(4, 4, 1))


def test_another_method_and_a_layer_handed_into_a_jit():
    i = jnp.array(2)
    tree = px.trace(TIED, i)
    call = tree.isolate("lin", i)
    # Its arrays came as arguments of the jit, so they are those of the call.
    equal(eqx.filter(call.module, eqx.is_array), TIED.lin)
    equal(call(), TIED.lin(TIED.table(i)))
    assert call.axes == ()


def test_in_the_place_of_other_calls():
    """What is replaced changes what later calls are given."""
    tree = px.trace(NET, XS[0]).replace("a", jnp.sin)
    call = tree.isolate("b.shared", XS[0])
    equal(call.args, (jnp.sin(XS[0]),))
    equal(tree.isolate(".", XS[0]).output, tree(XS[0]))
    batched = px.trace(NET, XS, method=BATCH).replace("a", jnp.sin)
    equal(batched.isolate(".", XS).output, batched(XS))
    with pytest.raises(TypeError, match="'a' isn't made: in this tree something else"):
        tree.isolate("a", XS[0])


def test_scanned_layers():
    """The module is that of all layers, with the axis of the steps."""
    make = lambda key: eqx.nn.Linear(4, 4, key=key)
    layers = eqx.filter_vmap(make)(jr.split(jr.key(0), 3))

    def model(layers, x):
        dynamic, static = eqx.partition(layers, eqx.is_array)
        step = lambda x, layer: (eqx.combine(layer, static)(x), None)
        return lax.scan(step, x, dynamic)[0]

    call = px.trace(layers, XS[0], method=model).isolate(".", XS[0])
    equal(call.module.weight, layers.weight)
    assert kinds(call) == [("step", 3)]
    equal(call(), call.output)
    equal(call.output[-1], eqx.filter_jit(model)(layers, XS[0]))
    gradient = eqx.filter_grad(lambda call: jnp.sum(call()[1]))(call)
    equal(gradient.args[0], jnp.stack([0 * XS[0], layers.weight[1].sum(0), 0 * XS[0]]))


def test_branches_and_while_loops():
    class Either(eqx.Module):
        lin: eqx.nn.Linear
        other: eqx.nn.Linear

        def __call__(self, x, flag):
            x = lax.while_loop(lambda x: x[0] < 1, lambda x: self.other(x) + 5, x)
            lin, other = (lambda x: self.lin(x)), (lambda x: self.other(x))
            return lax.cond(flag, lin, other, x)

    x = jnp.zeros(4)
    model = Either(linear(4, 4, 0), linear(4, 4, 1))
    tree = px.trace(model, x, True)
    call = tree.isolate("lin", x, True)
    equal(call(), model(x, True))
    equal(tree.isolate("other", x, True).args, (x,))
    with pytest.raises(
        px.SiteNotFiredError, match="'lin' wasn't made: it is in a bran"
    ):
        tree.isolate("lin", x, False)

    class Unlike(eqx.Module):
        drop: eqx.nn.Dropout

        def __call__(self, x, flag):
            branches = [lambda x, i=i: self.drop(x, inference=i) for i in (True, None)]
            return lax.cond(flag, *branches, x)

    unlike = px.trace(Unlike(eqx.nn.Dropout(inference=True)), x, True)
    with pytest.raises(px.PeexError, match="'drop' can't be told from others of its"):
        unlike.isolate("drop", x, True)


def test_what_is_refused():
    tree = px.trace(NET, XS[0])
    with pytest.raises(px.SiteNotFoundError, match="'b.shard' is no call of this tree"):
        tree.isolate("b.shard", XS[0])

    class Summed(eqx.Module):
        lin: eqx.nn.Linear

        def __call__(self, x):
            return lax.psum(self.lin(jnp.ones(4)), "batch") + x

    def run(model, xs):
        return jax.vmap(model.sum, axis_name="batch")(xs)

    class Outer(eqx.Module):
        sum: Summed

    model = Outer(Summed(linear(4, 4, 0)))
    tree = px.trace(model, XS, method=run)
    equal(tree.isolate("sum", XS)(), run(model, XS))
    assert tree.isolate("sum.lin", XS).axes == ()

    def once(model, xs):
        return jax.vmap(lambda x: x + model.sum(jnp.ones(4)), axis_name="batch")(xs)

    call = px.trace(model, XS, method=once).isolate("sum", XS)
    with pytest.raises(
        px.PeexError, match="'sum' can't be made alone: it uses a named"
    ):
        call()
