"""Hooks and logs of one's own."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

import peex as px


class Clip(px.AbstractHook):
    bound: float

    def __call__(self, value: Array) -> Array:
        return jnp.clip(value, -self.bound, self.bound)


class Quantiles(px.AbstractLog):
    at: Array

    def __call__(self, value: Array) -> Array:
        return jnp.quantile(value, self.at)


def double(value: Array) -> Array:
    return 2 * value


model = eqx.nn.MLP(2, 1, 8, 1, key=jax.random.key(0))
log_fn = Quantiles(jnp.array([0.1, 0.9]))
output, log = px.ForwardHook(model, Clip(1.0), log_fn)(jnp.ones(2))
print(log["layers.0"].shape)
output, log = px.ForwardHook(model, {"layers.0": Clip(1.0), "**": double})(jnp.ones(2))
hooked = px.BackwardHook(model, Clip(1.0), {"layers.*": log_fn}).init(jnp.ones(2))
print(output.shape, hooked(jnp.ones(2)))
