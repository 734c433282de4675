"""Training the last layer alone."""

from typing import assert_type

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import peex as px


class Classifier(eqx.Module):
    backbone: eqx.nn.MLP
    head: eqx.nn.Linear

    def __init__(self, key: jax.Array):
        key1, key2 = jax.random.split(key)
        self.backbone = eqx.nn.MLP(2, 4, 8, 1, key=key1)
        self.head = eqx.nn.Linear(4, 3, key=key2)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(jax.nn.relu(self.backbone(x)))


def loss(model: Classifier, x: jax.Array, label: int) -> jax.Array:
    return -jax.nn.log_softmax(model(x))[label]


model = Classifier(jax.random.key(0))
spec = jax.tree.map(lambda _: False, model)
spec = eqx.tree_at(lambda m: m.head, spec, True)
optim = optax.sgd(0.1)
state = optim.init(eqx.filter(model, spec))

(value, logs), grads = px.value_and_grad(loss, trainable=spec)(model, jnp.ones(2), 1)
updates, state = optim.update(grads, state)
model = eqx.apply_updates(model, updates)
assert_type(value, jax.Array)
print(logs.backward["backbone.layers.0"].shape)

px.value_and_grad(loss, trainable=eqx.is_inexact_array)
px.value_and_grad(loss, trainable=lambda leaf: eqx.is_array(leaf) and leaf.ndim > 1)
px.value_and_grad(loss, trainable=False)
