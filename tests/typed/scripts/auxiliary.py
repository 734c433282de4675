"""A loss with another output, and a stateful layer."""

from typing import assert_type

import equinox as eqx
import jax
import jax.numpy as jnp

import peex as px


class Model(eqx.Module):
    linear: eqx.nn.Linear
    norm: eqx.nn.BatchNorm

    def __init__(self, key: jax.Array):
        self.linear = eqx.nn.Linear(2, 3, key=key)
        self.norm = eqx.nn.BatchNorm(3, "batch", mode="batch")

    def __call__(
        self, x: jax.Array, state: eqx.nn.State
    ) -> tuple[jax.Array, eqx.nn.State]:
        return self.norm(self.linear(x), state)


def loss(
    model: Model, state: eqx.nn.State, xs: jax.Array
) -> tuple[jax.Array, eqx.nn.State]:
    run = jax.vmap(model, in_axes=(0, None), out_axes=(0, None), axis_name="batch")
    out, state = run(xs, state)
    return jnp.mean(out**2), state


model, state = eqx.nn.make_with_state(Model)(jax.random.key(0))
step = eqx.filter_jit(px.value_and_grad(loss, has_aux=True, forward=px.MeanStdLog()))
((value, state), logs), grads = step(model, state, jnp.ones((4, 2)))
assert_type(value, jax.Array)
assert_type(state, eqx.nn.State)
assert_type(logs.forward, px.Log)
print(value, logs.forward["norm"].mean.shape, grads.linear.weight.shape)
