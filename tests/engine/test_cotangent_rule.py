"""Backward hooks and logs under all transformations around the wrapper: the model is
itself in forward mode, and its derivatives of any order are those of a rule by hand.
"""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from closeness import assert_close

import peex as px


MLP = eqx.nn.MLP(3, 2, 4, 1, activation=jnp.tanh, key=jax.random.key(0))
XS = jax.random.normal(jax.random.key(1), (5, 3))
X = XS[0]


close = ft.partial(assert_close, rtol=1e-5, atol=1e-6)


NOTHING = {
    "log": {},
    "norm": {"log_fn": px.NormLog()},
    "steps": {"log_fn": lambda c: jnp.sign(c).astype(int)},
    "hook": {"hook_fn": lambda c: 1.0 * c},
    "trained hook": {"hook_fn": px.AddHook(jnp.zeros(4)), "where": "layers.0"},
    "pre": {"hook_fn": lambda cs: cs, "log_fn": px.NormLog(), "pre_hook": True},
}
TRANSFORMED = {
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (jnp.cos(x),)),
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](jnp.cos(x)),
    "jacfwd": jax.jacfwd,
    "jacrev": jax.jacrev,
    "hessian": jax.hessian,
    "jacrev of jacrev": lambda f: jax.jacrev(jax.jacrev(f)),
    "jacrev of jacfwd": lambda f: jax.jacrev(jax.jacfwd(f)),
    "jacfwd of jit": lambda f: jax.jacfwd(jax.jit(f)),
    "jacfwd of checkpoint": lambda f: jax.jacfwd(jax.checkpoint(f)),
    "vmap of jacfwd": lambda f: (
        lambda x: jax.vmap(jax.jacfwd(f))(jnp.stack([x, 2 * x]))
    ),
    "jacfwd of vmap": lambda f: jax.jacfwd(
        lambda x: jax.vmap(f)(jnp.stack([x, jnp.cos(x)]))
    ),
}


@ft.cache
def unhooked(transform):
    return jax.jit(transform(lambda x: MLP(x)))(X)


@pytest.mark.parametrize("transform", TRANSFORMED.values(), ids=TRANSFORMED)
@pytest.mark.parametrize("kwargs", NOTHING.values(), ids=NOTHING)
def test_a_hook_that_changes_nothing(kwargs, transform):
    hooked = px.BackwardHook(MLP, **kwargs).init(X)
    close(jax.jit(transform(lambda x: hooked(x)))(X), unhooked(transform))


@pytest.mark.parametrize("how", ["jvp", "jacrev"])
@pytest.mark.parametrize("kwargs", NOTHING.values(), ids=NOTHING)
def test_a_hook_that_changes_nothing_eagerly(kwargs, how):
    hooked = px.BackwardHook(MLP, **kwargs).init(X)
    close(TRANSFORMED[how](hooked)(X), TRANSFORMED[how](MLP)(X))


def test_forward_mode_sees_the_identity():
    hooked = px.BackwardHook(MLP, px.ScaleHook(3.0), None)
    tangents = jnp.cos(X)
    close(jax.jvp(hooked, (X,), (tangents,)), jax.jvp(MLP, (X,), (tangents,)))


# The first layer's cotangent goes through `jnp.sin(scale * c)`.


@jax.custom_vjp
def bent(value, scale):
    return value


bent.defvjp(
    lambda value, scale: (value, scale),
    lambda scale, c: (jnp.sin(scale * c), jnp.zeros_like(scale)),
)


class Bend(eqx.Module):
    scale: jax.Array

    def __call__(self, cotangent):
        return jnp.sin(self.scale * cotangent)


def bent_mlp(scale):
    def run(x):
        first, second = MLP.layers
        return second(jnp.tanh(bent(first(x), scale)))

    return run


ORDERS = {
    "gradient": lambda f: jax.grad(lambda x: jnp.sum(f(x) ** 2)),
    "of a gradient": lambda f: jax.jacrev(jax.grad(lambda x: jnp.sum(f(x) ** 2))),
    "forward over reverse": lambda f: jax.hessian(lambda x: jnp.sum(f(x) ** 2)),
    "three times": lambda f: jax.jacfwd(jax.hessian(lambda x: jnp.sum(f(x) ** 2))),
}


@pytest.mark.parametrize("transform", ORDERS.values(), ids=ORDERS)
def test_derivatives_of_a_hook(transform):
    scale = jnp.array(0.7)
    hooked = px.BackwardHook(MLP, Bend(scale), None, where="layers.0")
    close(jax.jit(transform(hooked))(X), transform(bent_mlp(scale))(X))


def test_a_hook_is_trained_by_what_it_does_to_gradients():
    def penalty(run, x):
        return jnp.sum(jax.grad(lambda x: jnp.sum(run(x) ** 2))(x) ** 2)

    scale = jnp.array(0.7)
    hooked = px.BackwardHook(MLP, Bend(scale), None, where="layers.0")
    grads = eqx.filter_jit(eqx.filter_grad(penalty))(hooked, X)
    expected = jax.grad(lambda scale: penalty(bent_mlp(scale), X))(scale)
    close(grads.hook_fn.scale, expected)


def test_a_batch_of_hooks():
    # One wrapper for each: the arrays of the hook have a batch axis, the log too.
    scales = jnp.array([0.5, 1.0, 2.0, -1.0, 0.0])
    log_fn = lambda c: (c, jnp.ones(2))  # part of it doesn't depend on the cotangent

    def run(scale, x):
        hooked = px.BackwardHook(MLP, Bend(scale), log_fn, where="layers.0").init(x)
        grads = eqx.filter_grad(lambda h: jnp.sum(h(x) ** 2))(hooked)
        return grads.log["layers.0"], grads.model.layers[0].weight

    (cotangents, ones), weights = jax.jit(jax.vmap(run))(scales, XS)
    close(ones, jnp.ones((5, 2)))
    for i in range(5):
        (cotangent, _), weight = run(scales[i], XS[i])
        close(cotangents[i], cotangent)
        close(weights[i], weight)
        expected = jax.grad(lambda x, i=i: jnp.sum(bent_mlp(scales[i])(x) ** 2))
        close(MLP.layers[0].weight.T @ cotangent, expected(XS[i]))


def test_a_hook_sees_the_axis_name():
    # A `vmap` around and one inside of the wrapper, with a collective over each.
    def batched(m, xs):
        return jax.vmap(m, axis_name="inside")(xs)

    def total(c):
        return jax.lax.psum(jax.lax.psum(c, "inside"), "outside")

    hooked = px.BackwardHook(MLP, total, None, where="layers.1", method=batched)

    def grad(xs):
        return jax.grad(lambda xs: jnp.sum(hooked(xs) ** 2))(xs)

    xs = jnp.stack([XS, 2 * XS, XS + 1])
    found = jax.jit(jax.vmap(grad, axis_name="outside"))(xs)
    out, vjp = jax.vjp(lambda xs: jax.vmap(jax.vmap(MLP))(xs), xs)
    summed = jnp.broadcast_to(jnp.sum(2 * out, (0, 1)), out.shape)
    close(found, vjp(summed)[0])
