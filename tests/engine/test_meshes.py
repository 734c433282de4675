"""What is on several devices, as far as that is part of the types of arrays: explicit
shardings, and what varies over the axes of a `shard_map`, inside and around.
"""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from pairs import pairs
from twin_case import linear

import peex as px


pytestmark = pytest.mark.skipif(
    len(jax.devices()) < 4, reason="tests/conftest.py asks XLA for four CPU devices"
)


close = ft.partial(assert_close, rtol=1e-5, atol=1e-6)


#
# Explicit shardings, as `jax.make_mesh` makes them.
#


class Layer(eqx.Module):
    weight: jax.Array

    def __call__(self, x):
        return x @ self.weight


def _while(m, xs):
    go = lambda s: s[0] < 3
    return lax.while_loop(go, lambda s: (s[0] + 1, jnp.tanh(m(s[1]))), (0, xs))[1]


def _cond(m, xs):
    return lax.cond(jnp.sum(xs) < 1e6, lambda x: m(x), lambda x: -x, xs)


def _scan(m, xs):
    return lax.scan(lambda x, _: (jnp.tanh(m(x)), None), xs, length=3)[0]


RUNS = {
    "call": lambda m, xs: m(xs),
    "vmap": lambda m, xs: jax.vmap(m)(xs),
    "scan": _scan,
    "scan in scan": lambda m, xs: lax.scan(
        lambda x, _: (_scan(m, x), None), xs, length=2
    )[0],
    "vmap of scan": lambda m, xs: jax.vmap(lambda x: _scan(m, x))(xs),
    "checkpoint": lambda m, xs: jax.checkpoint(lambda xs: m(xs))(xs),
    "cond": _cond,
    "inner grad": lambda m, xs: jax.grad(lambda xs: jnp.sum(m(xs) ** 2))(xs),
    "while": _while,
}
XS = jax.random.normal(jax.random.key(0), (8, 2))
LAYER = Layer(jax.random.normal(jax.random.key(1), (2, 2)))


def sharded():
    """The mesh and the input, its examples spread over it."""
    mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Explicit,))
    return mesh, jax.device_put(XS, NamedSharding(mesh, P("d")))


@pytest.mark.parametrize(
    "how, jit", [*((how, True) for how in RUNS), ("call", False), ("scan", False)]
)
def test_explicit_shardings_forward(how, jit):
    hooked = px.ForwardHook(LAYER, method=RUNS[how])
    expected = hooked(XS)
    mesh, xs = sharded()
    with jax.set_mesh(mesh):
        out, log = (eqx.filter_jit(hooked) if jit else hooked)(xs)
        spec = jax.typeof(log["."]).sharding.spec
    close(dict(log), dict(expected[1]))
    close(out, expected[0])
    # Steps in front, then the examples: nothing is gathered.
    assert spec[log["."].ndim - 2] == "d"


BACKWARD = {
    "log": {},
    "all": {
        "hook_fn": px.ScaleHook(2.0),
        "backward": px.NormLog(),
        "forward": px.IdentityLog(),
    },
    "new": {"hook_fn": lambda c: jnp.ones(c.shape)},
}


@pytest.mark.parametrize("kwargs", BACKWARD.values(), ids=BACKWARD)
@pytest.mark.parametrize("how", [h for h in RUNS if h != "while"])
def test_explicit_shardings_backward(how, kwargs):
    run = px.value_and_grad(lambda m, xs: jnp.sum(RUNS[how](m, xs) ** 2), **kwargs)
    (value, logs), grads = eqx.filter_jit(run)(LAYER, XS)
    mesh, xs = sharded()
    with jax.set_mesh(mesh):
        found = eqx.filter_jit(run)(LAYER, xs)
    close(found[0][0], value)
    close(found[0][1], logs)
    close(found[1], grads)


#
# `shard_map` with the sites inside: hooks that make values anew.
#


def mesh():
    return jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))


def spread(f, check_vma=True, out_specs=None):
    spec = P("d")
    return jax.shard_map(
        f,
        mesh=mesh(),
        in_specs=spec,
        out_specs=spec if out_specs is None else out_specs,
        check_vma=check_vma,
    )


INSIDE = {
    "call": lambda m, x: jax.vmap(m)(x) * x,
    "scan": lambda m, x: lax.scan(lambda x, _: (jax.vmap(m)(x), None), x, length=3)[0],
    "vmap of scan": lambda m, x: jax.vmap(
        lambda x: lax.scan(lambda x, _: (m(x), None), x, length=3)[0]
    )(x),
    "cond": lambda m, x: lax.cond(True, lambda x: jax.vmap(m)(x), lambda x: -x, x),
}
LIN = linear(2, 2, 0)


@pytest.mark.parametrize(
    ("how", "masked", "check_vma"), pairs(INSIDE, [False, True], [False, True])
)
def test_a_patch_in_a_shard_map(how, masked, check_vma):
    run = lambda m, xs: spread(lambda x: INSIDE[how](m, x), check_vma)(xs)
    _, source = px.ForwardHook(LIN, method=run)(XS + 1)
    patch = px.PatchHook(source)
    patch = px.At(patch, jnp.array(True)) if masked else patch
    patched = px.ForwardHook(LIN, patch, method=run)
    out, log = patched(XS)
    expected = jax.vmap(lambda v, x: v * x)(jax.vmap(LIN)(XS + 1), XS)
    close(out, expected if how == "call" else run(LIN, XS + 1))
    close(dict(log), dict(source))


@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.parametrize("how", ["call", "scan", "vmap of scan"])
def test_a_mask_over_devices(how, check_vma):
    run = lambda m, xs: spread(lambda x: INSIDE[how](m, x), check_vma)(xs)
    _, plain = px.ForwardHook(LIN, method=run)(XS)
    mask = (jnp.arange(4) == 2).reshape(4, *(1,) * (plain["."].ndim - 1))
    hooked = px.ForwardHook(LIN, px.At(px.ZeroHook(), mask), method=run)
    for call in (lambda f: f, eqx.filter_jit):
        _, log = call(hooked)(XS)
        expected = plain["."] if how == "call" else None
        zero = np.all(np.asarray(log["."]) == 0, axis=tuple(range(1, log["."].ndim)))
        np.testing.assert_array_equal(zero, [False, False, True, False])
        if expected is not None:
            close(log["."], jnp.where(mask, 0, expected))


@pytest.mark.parametrize("how", INSIDE)
def test_a_new_value_in_a_shard_map(how):
    run = lambda m, xs: spread(lambda x: INSIDE[how](m, x))(xs)
    ones = lambda value: jnp.ones(value.shape)
    out, _ = px.ForwardHook(LIN, ones, method=run)(XS)
    close(out, XS if how == "call" else jnp.ones_like(XS))
    hooked = px.BackwardHook(LIN, ones, method=run).init(XS)
    grads = eqx.filter_grad(lambda h: jnp.sum(h(XS) ** 2))(hooked)
    close(dict(grads.log), jax.tree.map(jnp.ones_like, dict(grads.log)))


#
# `shard_map` around the wrapper.
#


def loss(m, xs):
    return jnp.sum(jax.vmap(m)(xs) ** 2)


OUTPUTS = jax.vmap(LIN)(XS)


@pytest.mark.parametrize("check_vma", [False, True])
def test_a_shard_map_around(check_vma):
    def cotangents(xs):
        return px.value_and_grad(loss)(LIN, xs)[0][1].backward["."]

    def by_init(xs):
        hooked = px.BackwardHook(LIN, method=loss).init(xs)
        return eqx.filter_grad(lambda h: h(xs))(hooked).log["."]

    def norms(xs):
        run = px.value_and_grad(loss, backward=px.NormLog(), forward=px.IdentityLog())
        logs = run(LIN, xs)[0][1]
        return logs.backward["."], logs.forward["."]

    close(spread(cotangents, check_vma)(XS), 2 * OUTPUTS)
    close(spread(by_init, check_vma)(XS), 2 * OUTPUTS)
    expected = jnp.linalg.norm(2 * OUTPUTS, axis=-1), OUTPUTS
    close(spread(norms, check_vma)(XS), expected)


def test_a_log_that_is_the_same_on_all_devices_is_summed():
    # As JAX does with the gradient of whatever comes from outside of a `shard_map`.
    hooked = px.BackwardHook(LIN, method=loss).init(XS[:2])
    grad = lambda xs: eqx.filter_grad(lambda h: h(xs))(hooked).log["."]
    expected = jnp.sum((2 * OUTPUTS).reshape(4, 2, 2), axis=0)
    close(spread(grad, out_specs=P())(XS), expected)
