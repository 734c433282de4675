"""Accumulators of cotangents: of a loss that is linear in what its part returns, whose
cotangents are known.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close
from jax import lax
from parts import Chain

import peex as px


ITSELF = eqx.nn.Identity()
C = jnp.array([[1.0, -3], [2, 0], [3, 5], [4, 2]])
XS = jnp.ones((4, 2))


def by_steps(part, xs, c):
    step = lambda total, xc: (total + jnp.sum(part(xc[0]) * xc[1]), None)
    return lax.scan(step, 0.0, (xs, c))[0]


def by_examples(part, xs, c):
    return jnp.sum(jax.vmap(jax.checkpoint(part))(xs) * c)


def by_both(part, xs, c):
    halves = lambda x: x.reshape(2, 2, 2)
    return jnp.sum(jax.vmap(lambda *xc: by_steps(part, *xc))(halves(xs), halves(c)))


def in_python(part, xs, c):
    return sum(jnp.sum(part(x) * each) for x, each in zip(xs, c, strict=True))


def in_branches(part, xs, c):
    """Twice as many, of which the others aren't taken."""

    def one(x, c, taken):
        return jnp.sum(lax.cond(taken, part, lambda x: x, x) * c)

    twice = lambda x: jnp.concatenate([x, x])
    taken = jnp.array([True] * 4 + [False] * 4)
    return jnp.sum(jax.vmap(one)(twice(xs), twice(c), taken))


WAYS = [by_steps, by_examples, by_both, in_python, in_branches]


@pytest.mark.parametrize("way", WAYS, ids=[way.__name__ for way in WAYS])
def test_each_way(way):
    def loss(part, xs, c):
        return way(part, xs, c)

    log_fns = px.Moments(), px.Sum(lambda c: (c, jnp.sum(c > 0)))
    for i, log_fn in enumerate(log_fns):
        step = px.value_and_grad(loss, backward=log_fn)
        (_, logs), _ = step(ITSELF, XS, C)
        # The same by the wrapper.
        hooked = px.BackwardHook(ITSELF, None, log_fn, method=loss).init(XS, C)
        log = eqx.filter_grad(lambda hooked: hooked(XS, C))(hooked).log
        assert_close(jax.tree.leaves(log), jax.tree.leaves(logs.backward))
        assert list(log) == ["."]
        assert log.axes == {".": ()}
        if i == 0:
            assert log["."].count == 4
            assert_close(log["."].mean, jnp.array([2.5, 1]))
            assert_close(log["."].m2, jnp.array([5.0, 34]))
        else:
            assert_close(log["."], (jnp.array([10.0, 4]), jnp.array(6)))


def test_shifted():
    """Of cotangents far from zero, a sum of squares keeps no variance."""
    c = 1e4 + np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)

    def var(shift):
        step = px.value_and_grad(by_examples, backward=px.Moments(shift=shift))
        (_, logs), _ = step(ITSELF, jnp.ones((64, 2)), jnp.asarray(c))
        return logs.backward["."].var

    expected = np.var(np.asarray(c, np.float64), 0)
    np.testing.assert_allclose(var(9.999e3), expected, 1e-3)
    np.testing.assert_allclose(var(jnp.array([1e4, 1e4 + 1])), expected, 1e-3)
    assert not np.allclose(var(0.0), expected, 0.1)


def test_more_integers_than_floating_point_parts_hold():
    """They are summed over the examples of a `vmap` before they become cotangents."""
    n = 2**17 + 1
    log_fn = px.Sum(px.HistogramLog([0.0]))
    step = eqx.filter_jit(px.value_and_grad(by_examples, backward=log_fn))
    c = jnp.ones((n, 2)).at[:, 1].set(-1)
    (_, logs), _ = step(ITSELF, jnp.ones((n, 2)), c)
    assert_close(logs.backward["."], jnp.array([n, n], jnp.int32))


def test_around_the_wrapper():
    """A `vmap` with one log sums; one over logs has one for each."""
    hooked = px.BackwardHook(ITSELF, None, px.Moments(), method=lambda m, x: m(x))
    hooked = hooked.init(XS[0])

    def loss(hooked, xs, c):
        return jnp.sum(jax.vmap(lambda x: hooked(x))(xs) * c)

    one = eqx.filter_grad(loss)(hooked, XS, C).log["."]
    assert (one.count, one.mean[0]) == (4, 2.5)

    def each(hooked, x, c):
        return jnp.sum(hooked(x) * c)

    found = eqx.filter_vmap(eqx.filter_grad(each), in_axes=(None, 0, 0))(hooked, XS, C)
    assert_close(found.log["."].mean, C)
    assert found.log["."].count.tolist() == [1, 1, 1, 1]
    many = jax.tree.map(lambda x: jnp.stack([x] * 4), eqx.filter(hooked, eqx.is_array))
    many = eqx.combine(many, hooked)

    def all_of(many):
        return jnp.sum(eqx.filter_vmap(each)(many, XS, C))

    assert_close(eqx.filter_grad(all_of)(many).log["."].mean, C)


def test_one_call_of_several():
    """Its buffer is its own: what the other calls log is no part of the log."""
    chain = Chain(eqx.nn.Linear(2, 2, key=jax.random.key(0)))
    loss = lambda chain, x: jnp.sum(chain(x) ** 2)
    (_, logs), _ = px.value_and_grad(loss)(chain, XS[0])
    for where in ("cell#1", "cell#2"):
        (_, one), _ = px.value_and_grad(loss, where=where)(chain, XS[0])
        assert_close(dict(one.backward), {where: logs.backward[where]})
    (_, total), _ = px.value_and_grad(loss, backward=px.Sum())(chain, XS[0])
    assert_close(dict(total.backward), {"cell": sum(logs.backward.values())})


@pytest.mark.parametrize("log_fn", [px.Max(), px.At(px.Min(), True)], ids=["max", "at"])
def test_what_can_not_be_added_up(log_fn):
    wanted = (
        r"accumulator, M.., whose results.*`px.accumulate\(log, px.Max\(\)\)` of .* "
        "one of your own with `to_sums`"
    )
    with pytest.raises(TypeError, match=wanted):
        px.BackwardHook(ITSELF, None, {"**": log_fn})
    with pytest.raises(TypeError, match="`log_fn` of a BackwardHook is an accumulator"):
        px.value_and_grad(by_steps, backward=log_fn)(ITSELF, XS, C)


def test_at_some_steps():
    steps = px.AtStep(px.Moments(), [0, 2])
    (_, logs), _ = px.value_and_grad(by_steps, backward=steps)(ITSELF, XS, C)
    assert logs.backward["."].count == 2
    assert_close(logs.backward["."].mean, (C[0] + C[2]) / 2)
