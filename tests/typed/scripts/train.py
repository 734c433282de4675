"""Training, with the norms of each layer's cotangents."""

from typing import assert_type

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

import peex as px


def loss(model: eqx.nn.MLP, xs: Array, ys: Float[Array, " n"]) -> Float[Array, ""]:
    return jnp.mean((jax.vmap(model)(xs)[:, 0] - ys) ** 2)


model = eqx.nn.MLP(2, 1, 8, 1, key=jax.random.key(0))
optim = optax.sgd(1e-2, momentum=0.9)
state = optim.init(eqx.filter(model, eqx.is_inexact_array))
step = eqx.filter_jit(px.value_and_grad(loss, backward=px.NormLog()))
xs, ys = jnp.ones((4, 2)), jnp.zeros(4)
for _ in range(2):
    (value, logs), grads = step(model, xs, ys=ys)
    updates, state = optim.update(grads, state)
    model = eqx.apply_updates(model, updates)
    assert_type(value, Array)
    assert_type(logs, px.Logs)
    print(f"{value.item():.3f}", grads.layers[0].weight.shape)
    for key, norms in logs.backward.items():
        print(key, norms.mean())
    print(len(logs.forward))
