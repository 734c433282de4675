"""Hooks and logs that hold arrays: trained, changed, and never baked into a program."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from closeness import assert_close
from hooked_mlp import (
    eager_and_jit,
    loss,
    MLP,
    MODEL,
    OFFSET,
    run,
    twin,
    X,
)
from jax import lax

import peex as px


class Steer(px.AbstractHook):
    offset: jax.Array

    def __call__(self, value):
        return value + self.offset


def scanned(model, xs):
    def step(carry, x):
        carry = model(x + carry[0])
        return carry, carry

    return lax.scan(step, jnp.zeros(2), xs)[1]


@eqx.filter_jit
def jitted(model, x):
    return model(x)


# The model is called as this says, in the hooked program and in its twin.
PROGRAMS = {
    "once": lambda call, x: call(x),
    "scan": lambda call, x: jnp.sum(scanned(call, jnp.stack([x, 2 * x, -x])), 0),
    "vmap": lambda call, x: jnp.sum(jax.vmap(call)(jnp.stack([x, 2 * x, -x])), 0),
    "jit": lambda call, x: jax.jit(call)(x),
    "checkpoint": lambda call, x: jax.checkpoint(call)(x),
    "cond": lambda call, x: lax.cond(x[0] > 0, call, lambda x: call(2 * x), x),
    "two calls": lambda call, x: call(x) + call(-x),
    "scan of jit": lambda call, x: jnp.sum(scanned(jax.jit(call), x[None]), 0),
}


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_training_a_hook(program, direction):
    def method(model, x):
        return program(lambda x: model(x), x)

    if direction == "forward":
        hooked = px.ForwardHook(MODEL, Steer(OFFSET), where="linear1", method=method)
        grads = eqx.filter_jit(eqx.filter_grad(lambda h, x: loss(h(x)[0])))(hooked, X)

        def twin_loss(offset, model):
            call = lambda x: twin(model, x, lambda a: a + offset)
            return loss(program(call, X))

        offset, model = jax.grad(twin_loss, (0, 1))(OFFSET, MODEL)
        assert_close(grads.hook_fn.offset, offset, 2e-6)
        assert_close(grads.model, model, 2e-6)
    else:
        # Its gradient is a second-order one: of what it does to the cotangents.
        hooked = px.BackwardHook(
            MODEL, Steer(OFFSET), None, where="linear1", method=method
        )

        def upstream(hook, x):
            h = eqx.tree_at(lambda h: h.hook_fn, hooked, hook)
            return jnp.sum(jax.grad(lambda x: loss(h(x)))(x) ** 2)

        grads = eqx.filter_grad(upstream)(Steer(OFFSET), X)

        @jax.custom_vjp
        def edit(a, offset):
            return a

        edit.defvjp(lambda a, o: (a, o), lambda o, ct: (ct + o, jnp.zeros_like(o)))

        def twin_upstream(offset, x):
            call = lambda x: twin(MODEL, x, lambda a: edit(a, offset))
            return jnp.sum(jax.grad(lambda x: loss(program(call, x)))(x) ** 2)

        assert_close(grads.offset, jax.grad(twin_upstream)(OFFSET, X), 2e-6)


class Inner(eqx.Module):
    mlp: MLP

    @eqx.filter_jit
    def inner(self, x):
        return self.mlp(x)

    def __call__(self, x):
        return self.inner(x)


@eager_and_jit
def test_arrays_are_not_baked_into_a_cached_program(outside):
    model = Inner(MODEL)
    for offset in (OFFSET, 2 * OFFSET, OFFSET):
        edit = lambda a, offset=offset: a + offset
        expected = twin(MODEL, X, edit)
        hooked = px.ForwardHook(model, Steer(offset), where="mlp.linear1")
        assert_close(outside(run)(hooked, X)[0], expected)
        assert_close(outside(jitted)(hooked, X)[0], expected)

        grads = eqx.filter_grad(lambda h: loss(h(X)[0]))(hooked)
        plain = jax.grad(lambda o: loss(twin(MODEL, X, lambda a: a + o)))(offset)
        assert_close(grads.hook_fn.offset, plain)


@eager_and_jit
def test_backward_arrays_are_not_baked_into_a_cached_program(outside):
    model = Inner(MODEL)
    plain = jax.grad(lambda m: loss(m(X)))(MODEL).linear1.bias
    for offset in (OFFSET, 2 * OFFSET, OFFSET):
        hooked = px.BackwardHook(model, Steer(offset), where="mlp.linear1").init(X)
        grads = outside(eqx.filter_grad(lambda h, x: loss(h(x))))(hooked, X)
        assert_close(grads.log["mlp.linear1"], plain + offset)
        assert_close(grads.model.mlp.linear1.bias, plain + offset)


def test_arrays_in_logs_and_closures():
    class Project(px.AbstractLog):
        direction: jax.Array

        def __call__(self, value):
            return value @ self.direction

    log_fn = Project(jnp.arange(4.0))

    @jax.jit
    def f(direction):
        log_fn = Project(direction)
        hooked = px.ForwardHook(Inner(MODEL), None, log_fn, where="mlp.linear1")
        # A plain callable that closes over a traced array.
        hook = lambda a: a + direction
        _, closed = px.ForwardHook(MODEL, hook, where="linear1")(X)
        return hooked(X)[1]["mlp.linear1"], closed["linear1"]

    for direction in (log_fn.direction, 2 * log_fn.direction):
        a = MODEL.linear1(X)
        assert_close(f(direction), (a @ direction, a + direction))


def test_steering_vectors_are_dynamic():
    @eqx.filter_jit
    @eqx.debug.assert_max_traces(max_traces=1)
    def f(hooked, x):
        return hooked(x)

    for offset in (OFFSET, 2 * OFFSET, jnp.zeros(4)):
        hooked = px.ForwardHook(MODEL, px.AddHook(offset), where="linear1")
        assert_close(f(hooked, X)[0], twin(MODEL, X, lambda a, o=offset: a + o))


def test_only_the_dict_entry_changes():
    @eqx.filter_jit
    @eqx.debug.assert_max_traces(max_traces=1)
    @eqx.filter_grad
    def f(hooked, x):
        return loss(hooked(x))

    for scale in (1.0, 2.0):
        hooks = {"linear1": px.ScaleHook(jnp.array(scale)), "linear2": None}
        grads = f(px.BackwardHook(MODEL, hooks).init(X), X)
        plain = jax.grad(lambda m: loss(m(X)))(MODEL)
        assert_close(grads.log["linear1"], scale * plain.linear1.bias)
        assert_close(grads.log["linear2"], plain.linear2.bias)
