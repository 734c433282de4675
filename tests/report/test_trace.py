"""The calls of a model as a tree, replayed with some of them replaced."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from called_twice import BATCH, NET, XS
from closeness import assert_close
from jax import lax
from twin_case import linear

import peex as px


def test_the_tree():
    for x in (XS, jax.ShapeDtypeStruct(XS.shape, XS.dtype)):
        tree = px.trace(NET, x, method=BATCH)
        assert [call.key for call in tree.report.tree] == [
            *(".", "a", "b", "b.shared", "b.shared#1", "c")
        ]
        assert [c.key for c in tree["."].children] == ["a", "b", "c"]
        assert [c.key for c in tree["b"].children] == ["b.shared", "b.shared#1"]
        assert len(tree.report.parameters) == 6
        assert str(tree).splitlines()[3].strip().startswith("b.shared (Linear):")


@pytest.mark.parametrize("jit", (False, True))
def test_replaying(jit):
    tree = px.trace(NET, XS, method=BATCH)
    run = eqx.filter_jit if jit else lambda f: f
    call = run(lambda f, xs: f(xs))
    expected = run(BATCH)(NET, XS)
    np.testing.assert_array_equal(call(tree, XS), expected)
    loss = lambda tree, xs: jnp.sum(tree(xs) ** 2)
    grads = run(eqx.filter_grad(loss))(tree, XS).model
    by_hand = run(eqx.filter_grad(lambda net, xs: jnp.sum(BATCH(net, xs) ** 2)))(
        NET, XS
    )
    for got, want in zip(*map(jax.tree.leaves, (grads, by_hand)), strict=True):
        np.testing.assert_array_equal(got, want)


def test_replacing():
    tree = px.trace(NET, XS, method=BATCH)
    second = tree.replace("b.shared#1", lambda x: jnp.zeros(4))
    np.testing.assert_array_equal(second(XS), jnp.broadcast_to(NET.c.bias, (3, 2)))
    first = tree.replace("b.shared", px.ZeroHook())
    shared = NET.b.shared
    zero = NET.c(shared(jnp.zeros(4)))
    assert_close(first(XS), jnp.broadcast_to(zero, (3, 2)), rtol=1e-5)
    both = tree.replace({"b.shared": jnp.sin, "b.shared#1": jnp.cos})
    by_hand = lambda x: NET.c(jnp.cos(jnp.tanh(jnp.sin(NET.a(x)))))
    assert_close(both(XS), jax.vmap(by_hand)(XS), rtol=1e-5)
    again = second.replace("b.shared", jnp.sin).replace("b.shared#1", jnp.cos)
    assert_close(again(XS), both(XS), rtol=1e-6)
    assert_close(tree(XS), BATCH(NET, XS))  # as it was


def test_what_is_in_the_place_of_a_call_is_trained():
    other = linear(4, 4, 5)
    tree = px.trace(NET, XS[0]).replace("b.shared#1", other)
    grads = eqx.filter_grad(lambda tree: jnp.sum(tree(XS[0]) ** 2))(tree)

    def by_hand(other):
        return jnp.sum(NET.c(other(jnp.tanh(NET.b.shared(NET.a(XS[0]))))) ** 2)

    got = grads.changes["b.shared#1"].fn.weight
    assert_close(got, eqx.filter_grad(by_hand)(other).weight, rtol=1e-4)


def test_what_is_refused():
    tree = px.trace(NET, XS[0])
    with pytest.raises(px.SiteNotFoundError, match="'b.shard' is no call of this tree"):
        tree.replace("b.shard", jnp.sin)
    with pytest.raises(px.SiteNotFoundError, match="'b.shared#2' is no call .* 'b.sha"):
        tree.replace("b.shared#2", jnp.sin)
    with pytest.raises(TypeError, match="'a' was to be replaced by 3, which can't be"):
        tree.replace("a", 3)
    wrong = tree.replace("a", lambda x: x[:2])
    with pytest.raises(px.HookShapeError, match=r"site 'a', ReplaceCall, returned an"):
        wrong(XS[0])

    class Branching(eqx.Module):
        lin: eqx.nn.Linear

        def __call__(self, x):
            x = self.lin(x) if len(x) == 4 else x
            return self.lin(x[:4])

    branching = px.trace(Branching(linear(4, 4, 0)), XS[0])
    second = branching.replace("lin#1", jnp.sin)
    with pytest.raises(px.SiteNotFiredError, match="'lin' ran once"):
        second(jnp.ones(5))


def test_the_calls_of_a_parameter():
    report = px.trace(NET, XS[0]).report
    assert report.calls_of("b.shared.weight") == ("b.shared", "b.shared#1")
    assert report.owner("b.shared.weight") == "b"
    assert report.calls_of("a.bias") == ("a",)
    assert report.owner("a.bias") == "a"
    with pytest.raises(KeyError, match="'b.weight' isn't a parameter.*'b.shared.weigh"):
        report.calls_of("b.weight")


def test_the_gradient_of_a_shared_parameter():
    """`w * tanh(w * x)`, one layer at two places: 0.4199743 + 0.7615942."""

    class Scale(eqx.Module):
        w: jax.Array

        def __call__(self, x):
            return self.w * x

    class Two(eqx.Module):
        first: Scale
        second: Scale

        def __call__(self, x):
            return self.second(jnp.tanh(self.first(x)))

    scale = Scale(jnp.array(2.0))
    model, x = Two(scale, scale), jnp.array(0.5)
    report = px.report(model, x)
    (parameter,) = report.parameters
    assert parameter.uses == ("first.w", "second.w")
    assert report.calls_of("second.w") == ("first", "second")
    assert report.owner("first.w") == "."
    grads = eqx.filter_grad(lambda model: model(x))(model)
    assert_close(grads.first.w, 0.4199743, rtol=1e-6)
    assert_close(grads.second.w, 0.7615942, rtol=1e-6)
    assert_close(parameter.total(grads), 1.1815685, rtol=1e-6)
    with pytest.raises(KeyError, match="There is nothing at 'first.w' in what was"):
        parameter.total({})


def test_in_loops():
    def model(net, xs):
        step = jax.checkpoint(lambda xs, _: (jax.vmap(net.b)(xs), None))
        return lax.scan(step, xs, length=3)[0]

    tree = px.trace(NET, XS, method=model)
    xs = XS
    for _ in range(3):
        xs = jax.vmap(lambda x: jnp.sin(jnp.tanh(NET.b.shared(x))))(xs)
    assert_close(tree.replace("b.shared#1", jnp.sin)(XS), xs, rtol=1e-5)
