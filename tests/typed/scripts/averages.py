"""Averaged weights, initial weights and halves as arguments."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

import peex as px


def loss(model: eqx.nn.Linear, average: eqx.nn.Linear, x: Array) -> Array:
    squares = jax.tree.map(lambda a, b: jnp.sum((a - b) ** 2), model, average)
    return jnp.sum(model(x)) + sum(jax.tree.leaves(squares), jnp.zeros(()))


def of_halves(trained: PyTree, frozen: PyTree, x: Array) -> Array:
    return jnp.sum(eqx.combine(trained, frozen)(x))


model = eqx.nn.Linear(2, 2, key=jax.random.key(0))
x = jnp.ones(2)
(value, logs), grads = px.value_and_grad(loss)(model, model, x)
average = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, model, grads)
print(value.shape, average.weight.shape, list(logs.backward))

spec = eqx.tree_at(lambda m: m.weight, jax.tree.map(lambda _: False, model), True)
trained, frozen = eqx.partition(model, spec)
(value, logs), grads = px.value_and_grad(of_halves)(trained, frozen, x)
print(value, grads.bias)
