"""Activations: all, some, and statistics of them."""

from typing import Any, assert_type

import equinox as eqx
import jax
import jax.numpy as jnp

import peex as px


model = eqx.nn.MLP(2, 1, 8, 2, key=jax.random.key(0))
x = jnp.ones(2)
hooked = px.ForwardHook(model)
assert_type(hooked.model, eqx.nn.MLP)
output, log = hooked(x)
assert_type(log, px.Log)
assert_type(log["layers.0"], Any)
print(output.shape, log["layers.0"].mean(), {key: v.shape for key, v in log.items()})

names = ["layers.0", "layers.1"]
px.ForwardHook(model, where=names)
px.ForwardHook(model, where=tuple(names))
px.ForwardHook(model, where=set(names))
px.ForwardHook(model, where=[eqx.nn.Linear, "layers.0"])
px.ForwardHook(model, where=eqx.nn.Linear)
px.ForwardHook(model, where=lambda m: m.layers[0])
px.ForwardHook(model, where=lambda m: [m.layers[0], m.layers[1]])

_, log = px.ForwardHook(model, log_fn=px.MeanStdLog())(x)
statistics: px.MeanStd = log["layers.0"]
print(statistics.mean, statistics.std)
_, log = px.ForwardHook(model, log_fn={"layers.0": jnp.mean, "layers.*": None})(x)
_, log = px.ForwardHook(model, log_fn=lambda value: {"max": value.max()})(x)
print(log["layers.0"]["max"], log.counts.get("layers.0"), len(log), "a" in log)
stacked = jax.tree.map(lambda *values: jnp.stack(values), log, log)
print(list(stacked))

assert_type(log.map(jnp.mean), px.Log)
assert_type(log.map(lambda a, b: a + b, dict(log)) - log, px.Log)
assert_type(log.select("layers.*").select(["layers.0", "layers.1"]), px.Log)
assert_type(log.select({"layers.0"}).stack(("layers.*",)), Any)
numbers: dict[str, float] = log.map(jnp.mean).scalars("act/")
print(numbers, log, repr(log))
