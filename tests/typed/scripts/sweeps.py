"""Patching at all places, and what comes back."""

import equinox as eqx
import jax
import jax.numpy as jnp

import peex as px


cell = eqx.nn.GRUCell(2, 4, key=jax.random.key(0))
clean = jax.random.normal(jax.random.key(1), (5, 2))


def run(cell: eqx.nn.GRUCell, xs: jax.Array) -> jax.Array:
    def step(state: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        return cell(x, state), None

    return jax.lax.scan(step, jnp.zeros(4), xs)[0]


def metrics(state: jax.Array) -> dict[str, jax.Array]:
    return {"first": state[0], "all": state}


effects = px.patching.sweep(
    cell,
    clean,
    (-clean,),
    metrics,
    method=run,
    where={"state": "."},
    axes={"**": "time unit"},
    source="zero",
    direction="noising",
    windows={"time": 2},
    progress=False,
)
print(effects["state"]["first"].shape, list(effects), effects.axes["state"])
one = effects.map(lambda metric: metric["first"])
for site, at, value in one.normalised().top(2):
    print(site, at["time"], value + 1)
log = px.ForwardHook(cell, method=run)(clean)[1]
effects = px.patching.sweep(
    cell, clean, -clean, jnp.sum, method=run, where=".", axes="time unit", source=log
)
