"""`BackwardHook`, with and without jit, and together with a forward log."""

from typing import assert_type

import equinox as eqx
import jax
import jax.numpy as jnp

import peex as px


model = eqx.nn.MLP(2, 1, 8, 1, key=jax.random.key(0))
x = jnp.ones(2)
hooked = px.BackwardHook(model, log_fn=px.MaxAbsLog(), where="layers.*").init(x)
assert_type(hooked, px.BackwardHook[eqx.nn.MLP])


@eqx.filter_jit
@eqx.filter_value_and_grad
def loss(hooked: px.BackwardHook[eqx.nn.MLP], x: jax.Array) -> jax.Array:
    return jnp.sum(hooked(x) ** 2)


value, grads = loss(hooked, x)
print(value.shape, grads.log["layers.0"].shape, grads.model.layers[0].weight.shape)
again = px.BackwardHook(model, log_fn=px.MaxAbsLog(), log=grads.log)
shape = jax.ShapeDtypeStruct((2,), jnp.float32)
print(px.BackwardHook(model).init(shape)(x).shape)


def with_activations(both, x):
    output, log = both(x)
    return jnp.sum(output), log


both = px.BackwardHook(px.ForwardHook(model)).init(x)
(value, log), grads = eqx.filter_value_and_grad(with_activations, has_aux=True)(both, x)
print(value, log["layers.0"].shape, grads.log["layers.0"].shape)
