"""Without any annotation, as in a notebook."""

import equinox as eqx
import jax
import jax.numpy as jnp

import peex as px


def loss(model, batch, *, weight=1.0):
    xs, ys = batch
    predicted = jax.vmap(model)(xs)
    return weight * jnp.mean((predicted - ys) ** 2)


def loss_and_outputs(model, xs, key=None):
    out = jax.vmap(model)(xs)
    return out.sum(), {"out": out}


model = eqx.nn.MLP(2, 1, 8, 1, key=jax.random.key(0))
batch = jnp.ones((4, 2)), jnp.zeros((4, 1))
(value, logs), grads = px.value_and_grad(loss)(model, batch, weight=2.0)
print(value.item(), grads.layers[0].bias, logs.backward["layers.0"][0, 1])
(value, logs), grads = px.value_and_grad(
    lambda model, x: jnp.sum(model(x)), forward=px.IdentityLog(), where="layers.*"
)(model, jnp.ones(2))
for (key, activation), (_, cotangent) in zip(
    logs.forward.items(), logs.backward.items(), strict=True
):
    print(key, jnp.vdot(activation, cotangent))

step = eqx.filter_jit(px.value_and_grad(loss_and_outputs, has_aux=True))
((value, aux), logs), grads = step(model, batch[0])
print(value, aux["out"].shape, jax.tree.map(jnp.shape, logs.backward))
