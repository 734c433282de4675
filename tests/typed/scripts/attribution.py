"""Estimates of patching, edges and paths."""

import equinox as eqx
import jax
import jax.numpy as jnp

import peex as px


class Residual(eqx.Module):
    layers: list[eqx.nn.MLP]

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = x + layer(x)
        return x


keys = jax.random.split(jax.random.key(0), 3)
model = Residual([eqx.nn.MLP(2, 2, 4, 1, key=key) for key in keys])
clean, corrupted = jnp.ones(2), jnp.zeros(2)


def metric(out: jax.Array) -> jax.Array:
    return out[0] - out[1]


effects = px.patching.attribution(
    model, clean, corrupted, metric, where="layers.*", axes="unit"
)
closer = px.patching.attribution(
    model,
    (clean,),
    (corrupted,),
    metric,
    where={"mlp": "layers.*"},
    axes={"mlp.*": "unit"},
    source="zero",
    direction="noising",
    steps=2,
    path="activation",
)
print(effects.stack("layers.*").shape, closer.top(1)[0].site)
edges = px.patching.edges(
    model,
    clean,
    corrupted,
    metric,
    senders=[".:in", "layers.*"],
    receivers="layers.*:in",
    axes="unit",
    steps=2,
)
print(list(edges), edges.changes().normalised().axes)
paths = px.patching.path(
    model,
    clean,
    corrupted,
    metric,
    senders="layers.0",
    receivers="layers.2:in",
    freeze=["layers.1"],
    axes="unit",
)
print(paths["layers.0"].shape)
