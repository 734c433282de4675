"""Changing activations, and training what changes them."""

import equinox as eqx
import jax
import jax.numpy as jnp

import peex as px


model = eqx.nn.MLP(2, 1, 8, 1, key=jax.random.key(0))
x = jnp.ones(2)
steered = px.ForwardHook(model, px.AddHook(jnp.zeros(8)), None, where="layers.0")


@eqx.filter_grad
def grad(hooked: px.ForwardHook[eqx.nn.MLP], x: jax.Array) -> jax.Array:
    output, _ = hooked(x)
    return jnp.sum(output)


print(grad(steered, x).hook_fn.offset.shape)

hooks = {"layers.0": px.ScaleHook(0.5), "layers.1": None}
output, _ = px.ForwardHook(model, hook_fn=hooks)(x)
chain = px.Chain(px.ScaleHook(2.0), lambda value: value + 1)
output, _ = px.ForwardHook(model, hook_fn=chain, where="layers.0")(x)
output, _ = px.ForwardHook(model, lambda value: jnp.tanh(value))(x)
print(output.shape)
