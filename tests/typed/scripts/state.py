"""A running average, kept in a state that goes through a loop."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

import peex as px


class Average(eqx.Module):
    mean: px.StateEntry | px.StateKey

    def __init__(self, size: int):
        self.mean = px.StateEntry(jnp.zeros(size))

    def __call__(
        self, x: jax.Array, state: dict[Any, Any]
    ) -> tuple[jax.Array, dict[str, Any]]:
        mean = 0.9 * state[self.mean] + 0.1 * x
        return mean, px.update_state(state, {self.mean: mean})


average, state = px.export_state(Average(2))


def step(state: dict[str, Any], x: jax.Array) -> tuple[dict[str, Any], jax.Array]:
    mean, state = average(x, state)
    return state, mean


state, means = jax.lax.scan(step, state, jnp.ones((4, 2)))
full = px.import_state(average, state)
print(full.mean.value, means.shape)

norm, eqx_state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(2, "batch", mode="ema")
bare, named = px.export_state(norm, eqx_state)
norm, eqx_state = px.import_state(bare, named, eqx_state)
print(eqx_state.get(norm.ema_state_index))
