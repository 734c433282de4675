"""Batches and ensembles, outside and inside."""

import equinox as eqx
import jax
import jax.numpy as jnp

import peex as px


def make(key: jax.Array) -> eqx.nn.MLP:
    return eqx.nn.MLP(2, 1, 8, 1, key=key)


xs = jnp.ones((4, 2))
model = make(jax.random.key(0))
outputs, log = jax.vmap(px.ForwardHook(model))(xs)
print(outputs.shape, log["layers.0"].shape)
outputs, log = px.ForwardHook(eqx.filter_vmap(model))(xs)
hooked = px.BackwardHook(eqx.filter_vmap(model)).init(xs)
grads = eqx.filter_grad(lambda hooked, xs: jnp.sum(hooked(xs)))(hooked, xs)
print(grads.log["layers.0"].shape)

members = eqx.filter_vmap(make)(jax.random.split(jax.random.key(0), 3))
run = eqx.filter_vmap(
    lambda member, x: px.ForwardHook(member)(x), in_axes=(eqx.if_array(0), None)
)
outputs, log = run(members, xs[0])
print(outputs.shape, log["layers.0"].shape)

values, _ = jax.vmap(px.value_and_grad(lambda m, x: jnp.sum(m(x))), (None, 0))(
    eqx.nn.Linear(2, 2, key=jax.random.key(0)), xs
)
print(values[0].shape)
