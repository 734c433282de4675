"""Another run's values, and hooks at some steps alone."""

import equinox as eqx
import jax
import jax.numpy as jnp

import peex as px


model = eqx.nn.Linear(2, 2, key=jax.random.key(0))


def rollout(model: eqx.nn.Linear, x: jax.Array, steps: int) -> jax.Array:
    def step(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        x = jnp.tanh(model(x))
        return x, x

    return jax.lax.scan(step, x, length=steps)[1]


_, clean = px.ForwardHook(model, method=rollout)(jnp.ones(2), 5)
patched = px.ForwardHook(model, px.PatchHook(clean), method=rollout)
outputs, _ = patched(jnp.zeros(2), 5)
print(outputs.shape, clean["."].shape)
once = px.AtStep(px.ZeroHook(), [2])
outputs, log = px.ForwardHook(model, once, method=rollout)(jnp.zeros(2), 5)
own = px.Log({".": jnp.zeros((5, 2))})
outputs, log = px.ForwardHook(model, px.PatchHook(own), method=rollout)(jnp.ones(2), 5)
