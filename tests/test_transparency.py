"""A wrapper that changes nothing costs nothing and changes nothing: bitwise the same
results, the same compiled program, all of JAX's transformations, no retracing.
"""

import collections
import functools as ft
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from closeness import assert_close
from jax import lax

import peex as px


pytestmark = pytest.mark.usefixtures("optimised")


class Model(eqx.Module):
    """Layers under each transformation, and a batch of tokens as input."""

    embed: eqx.nn.Linear
    blocks: eqx.nn.MLP
    cell: eqx.nn.Linear
    head: eqx.nn.Linear

    def __init__(self):
        keys = jax.random.split(jax.random.key(0), 4)
        self.embed = eqx.nn.Linear(3, 4, key=keys[0])
        make = lambda key: eqx.nn.MLP(4, 4, 5, 1, activation=jnp.tanh, key=key)
        self.blocks = eqx.filter_vmap(make)(jax.random.split(keys[1], 3))
        self.cell = eqx.nn.Linear(4, 4, key=keys[2])
        self.head = eqx.nn.Linear(4, 2, key=keys[3])

    def __call__(self, xs):
        xs = jax.vmap(self.embed)(xs)
        dynamic, static = eqx.partition(self.blocks, eqx.is_array)

        @jax.checkpoint
        def block(xs, layer):
            return xs + jax.vmap(eqx.combine(layer, static))(xs), None

        xs, _ = lax.scan(block, xs, dynamic)
        h, _ = lax.scan(lambda h, x: (jnp.tanh(self.cell(h) + x), None), xs[0], xs)
        h = lax.cond(h[0] > 0, lambda h: self.cell(h), lambda h: jnp.sin(h), h)
        return self.head(h)


MODEL = Model()
XS = jax.random.normal(jax.random.key(1), (4, 3))
KEYS = ["embed", "blocks.layers.0", "blocks.layers.1", "cell", "cell#1", "head"]


def loss(model, xs):
    return jnp.sum(model(xs) ** 2)


def forward_loss(hooked, xs):
    return jnp.sum(hooked(xs)[0] ** 2)


def equal(a, b):
    """Bitwise."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if eqx.is_array(x):
            np.testing.assert_array_equal(x, y)
        else:
            assert x == y or x is y


close = ft.partial(assert_close, rtol=1e-5, atol=1e-6)


# The same results


def test_forward_outputs_and_gradients_are_bitwise_equal():
    hooked = px.ForwardHook(MODEL, log_fn=None)
    equal(eqx.filter_jit(hooked)(XS)[0], eqx.filter_jit(MODEL)(XS))
    grads = eqx.filter_jit(eqx.filter_grad(forward_loss))(hooked, XS)
    equal(grads.model, eqx.filter_jit(eqx.filter_grad(loss))(MODEL, XS))


def test_backward_outputs_and_gradients_are_bitwise_equal():
    hooked = px.BackwardHook(MODEL, log_fn=None)
    equal(eqx.filter_jit(hooked)(XS), eqx.filter_jit(MODEL)(XS))
    grads = eqx.filter_jit(eqx.filter_grad(loss))(hooked, XS)
    equal(grads.model, eqx.filter_jit(eqx.filter_grad(loss))(MODEL, XS))


def test_eager_outputs_are_bitwise_equal():
    mlp = eqx.nn.MLP(3, 2, 4, 2, key=jax.random.key(0))
    out, _ = px.ForwardHook(mlp)(XS[0])
    equal(out, mlp(XS[0]))
    equal(px.BackwardHook(mlp).init(XS[0])(XS[0]), mlp(XS[0]))


def op_counts(f, *args):
    """The operations of the optimised program, without names and metadata."""
    dynamic, static = eqx.partition(args, eqx.is_array)
    jitted = jax.jit(lambda dynamic: f(*eqx.combine(dynamic, static)))
    text = jitted.lower(dynamic).compile().as_text()
    text = re.sub(r"metadata=\{[^}]*\}", "", text)
    return collections.Counter(re.findall(r"= \S+ ([a-z][\w\-]*)\(", text))


@ft.cache
def unhooked_op_counts(plain):
    return op_counts(plain, MODEL, XS)


PROGRAMS = {
    "forward": (px.ForwardHook, lambda h, xs: h(xs)[0], lambda m, xs: m(xs)),
    "forward grad": (
        px.ForwardHook,
        lambda h, xs: eqx.filter_grad(forward_loss)(h, xs).model,
        lambda m, xs: eqx.filter_grad(loss)(m, xs),
    ),
    "backward": (px.BackwardHook, lambda h, xs: h(xs), lambda m, xs: m(xs)),
    "backward grad": (
        px.BackwardHook,
        lambda h, xs: eqx.filter_grad(loss)(h, xs).model,
        lambda m, xs: eqx.filter_grad(loss)(m, xs),
    ),
}


@pytest.mark.parametrize("where", [None, "**"])
@pytest.mark.parametrize(
    ("wrap", "hooked", "plain"), PROGRAMS.values(), ids=list(PROGRAMS)
)
def test_compiled_program_is_the_same(wrap, hooked, plain, where):
    expected = unhooked_op_counts(plain)
    assert sum(expected.values()) > 10
    assert op_counts(hooked, wrap(MODEL, log_fn=None, where=where), XS) == expected


def test_log_that_is_not_used_is_compiled_away():
    run = lambda h, xs: h(xs)[0]
    expected = op_counts(lambda m, xs: m(xs), MODEL, XS)
    assert (
        op_counts(run, px.ForwardHook(MODEL, where=["embed", "head"]), XS) == expected
    )


@pytest.mark.usefixtures("standard_promotion")
def test_training_is_bitwise_equal():
    optimiser = optax.adam(1e-2)
    ys = jnp.array([1.0, -1.0])

    def mse(model, xs):
        return jnp.mean((model(xs) - ys) ** 2)

    def train(model, make, pick):
        state = optimiser.init(eqx.filter(model, eqx.is_array))

        @eqx.filter_jit
        def step(model, state, xs):
            grads = pick(eqx.filter_grad(mse)(make(model), xs))
            updates, state = optimiser.update(grads, state)
            return eqx.apply_updates(model, updates), state

        for i in range(20):
            model, state = step(model, state, XS * (1 + i))
        return model

    plain = train(MODEL, lambda m: m, lambda g: g)
    hooked = train(MODEL, lambda m: px.BackwardHook(m, log_fn=None), lambda g: g.model)
    equal(hooked, plain)
    # A log that isn't used is compiled away.
    logged = train(MODEL, lambda m: px.BackwardHook(m).init(XS), lambda g: g.model)
    equal(logged, plain)


# Forward mode and higher order, through a forward wrapper

FORWARD = {"no log": None, "log": px.IdentityLog(), "norm": px.NormLog()}
forward_logs = pytest.mark.parametrize("log_fn", FORWARD.values(), ids=FORWARD)


@forward_logs
def test_jvp(log_fn):
    hooked = px.ForwardHook(MODEL, log_fn=log_fn)
    (out, log), (out_dot, log_dot) = jax.jvp(lambda xs: hooked(xs), (XS,), (XS,))
    expected, expected_dot = jax.jvp(MODEL, (XS,), (XS,))
    close(out, expected)
    close(out_dot, expected_dot)
    assert isinstance(log_dot, px.Log) and list(log_dot) == list(log)
    if isinstance(log_fn, px.IdentityLog):
        # The tangents of the log are the tangents of the values.
        assert list(log) == KEYS
        close(log_dot["embed"], XS @ MODEL.embed.weight.T)
        close(log_dot["head"], expected_dot)


TRANSFORMED = {
    "jacfwd": jax.jacfwd,
    "jacrev": jax.jacrev,
    "hessian": jax.hessian,
    "jacfwd of jit": lambda f: jax.jacfwd(jax.jit(f)),
    "jacfwd of jacfwd": lambda f: jax.jacfwd(jax.jacfwd(f)),
    "vmap": lambda f: lambda xs: jax.vmap(f)(jnp.stack([xs, 2 * xs])),
    "checkpoint of grad": lambda f: jax.grad(jax.checkpoint(lambda xs: f(xs)[0])),
    "linearize": lambda f: lambda xs: jax.linearize(f, xs)[1](xs),
}


@pytest.mark.parametrize("log_fn", [None, px.IdentityLog()], ids=["no log", "log"])
@pytest.mark.parametrize("transform", TRANSFORMED.values(), ids=TRANSFORMED)
def test_transformed(transform, log_fn):
    hooked = px.ForwardHook(MODEL, log_fn=log_fn)
    got = jax.jit(transform(lambda xs: hooked(xs)[0]))(XS)
    close(got, unhooked(transform))


@ft.cache
def unhooked(transform):
    return jax.jit(transform(lambda xs: MODEL(xs)))(XS)


@pytest.mark.parametrize("transform", [jax.jacfwd, jax.jacrev])
def test_transformed_eagerly(transform):
    hooked = px.ForwardHook(MODEL)
    got = transform(lambda xs: hooked(xs)[0])(XS)
    close(got, transform(lambda xs: MODEL(xs))(XS))


def test_hessian_of_a_logged_value():
    hooked = px.ForwardHook(MODEL, where="head")
    got = jax.jit(jax.hessian(lambda xs: hooked(xs)[1]["head"]))(XS)
    close(got, unhooked(jax.hessian))


# Reverse mode twice, through a backward wrapper


def test_second_order_through_a_backward_hook():
    mlp = eqx.nn.MLP(3, 2, 4, 1, activation=jnp.tanh, key=jax.random.key(0))
    x = XS[0]

    def penalty(model, x):
        grad = jax.grad(lambda x: jnp.sum(jnp.sin(model(x))))(x)
        return jnp.sum(grad**2)

    expected = eqx.filter_grad(penalty)(mlp, x)
    for log_fn in (None, px.IdentityLog()):
        hooked = px.BackwardHook(mlp, log_fn=log_fn)
        hooked = hooked if log_fn is None else hooked.init(x)
        close(eqx.filter_grad(penalty)(hooked, x).model, expected)
        close(eqx.filter_jit(eqx.filter_grad(penalty))(hooked, x).model, expected)
        twice = lambda f: jax.jacrev(jax.jacrev(lambda x: jnp.sum(jnp.sin(f(x)))))
        close(twice(hooked)(x), twice(mlp)(x))


def test_second_order_of_a_backward_log():
    # A cotangent in the loss: the penalty is on what `layers.0` receives.
    mlp = eqx.nn.MLP(3, 2, 4, 1, activation=jnp.tanh, key=jax.random.key(0))
    hooked = px.BackwardHook(mlp, where="layers.0").init(XS[0])
    first, second = mlp.layers

    def penalty(hooked, x):
        grads = eqx.filter_grad(lambda h: jnp.sum(jnp.sin(h(x))))(hooked)
        return jnp.sum(grads.log["layers.0"] ** 2)

    def twin(layers, x):
        first, second = layers
        tail = lambda a: jnp.sum(jnp.sin(second(jnp.tanh(a))))
        return jnp.sum(jax.grad(tail)(first(x)) ** 2)

    close(
        eqx.filter_grad(penalty)(hooked, XS[0]).model.layers,
        eqx.filter_grad(twin)((first, second), XS[0]),
    )


def test_vjp_called_twice():
    hooked = px.BackwardHook(MODEL).init(XS)
    dynamic, static = eqx.partition(hooked, eqx.is_inexact_array)
    out, vjp = jax.vjp(lambda h: eqx.combine(h, static)(XS), dynamic)
    ct1, ct2 = jnp.array([1.0, 0.0]), jnp.array([-2.0, 3.0])
    (a,), (b,), (again,) = vjp(ct1), vjp(ct2), vjp(ct1)
    equal(a, again)
    close(a.log["head"], ct1)
    close(b.log["head"], ct2)
    (both,) = vjp(ct1 + ct2)
    close(jax.tree.map(jnp.add, a, b), both)
    close(both.log["embed"].sum(0), both.model.embed.bias)


def test_vjp_under_vmap():
    # A Jacobian's rows: the log has one for each.
    hooked = px.BackwardHook(MODEL).init(XS)
    out, vjp = eqx.filter_vjp(lambda h: h(XS), hooked)
    (rows,) = jax.vmap(vjp)(jnp.eye(2))
    for i in range(2):
        (one,) = vjp(jnp.eye(2)[i])
        close(jax.tree.map(lambda x, i=i: x[i], dict(rows.log)), dict(one.log))
