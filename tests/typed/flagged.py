"""Lines that a type checker must flag, each with the rules of pyright that do so. Not
to be run.
"""

from typing import assert_type

import equinox as eqx
import jax
import jax.numpy as jnp

import peex as px


model = eqx.nn.MLP(2, 1, 8, 1, key=jax.random.key(0))
x = jnp.ones(2)


def loss(model: eqx.nn.MLP, x: jax.Array, weight: float = 1.0) -> jax.Array:
    return weight * jnp.sum(model(x) ** 2)


def with_aux(model: eqx.nn.MLP, x: jax.Array) -> tuple[jax.Array, dict[str, int]]:
    return loss(model, x), {"a": 1}


# Options

px.ForwardHook(model, where=3)  # reportArgumentType
px.BackwardHook(model, where=["layers.0", 3])  # reportArgumentType
px.value_and_grad(loss, where=3)  # reportArgumentType
px.ForwardHook(model, hook_fn=3)  # reportArgumentType
px.ForwardHook(model, hook_fn={"layers.0": 3})  # reportArgumentType
px.ForwardHook(model, log_fn="mean")  # reportArgumentType
px.ForwardHook(model, pre_hook="yes")  # reportArgumentType
px.ForwardHook(model, max_bytes="1 kB")  # reportArgumentType
px.ForwardHook(model, method=3)  # reportArgumentType
px.ForwardHook(model, were="layers.0")  # reportCallIssue
px.value_and_grad(loss, forward=3)  # reportArgumentType
px.value_and_grad(loss, forwards=px.NormLog())  # reportCallIssue
px.value_and_grad(3)  # reportArgumentType
px.value_and_grad(with_aux)  # reportArgumentType
px.value_and_grad(loss, has_aux=True)  # reportArgumentType reportCallIssue

# Calls

step = eqx.filter_jit(px.value_and_grad(loss))
step(model)  # reportCallIssue
step(model, x, 1.0, 2.0)  # reportCallIssue
step(model, x, weights=2.0)  # reportCallIssue
step(model, "x")  # reportArgumentType
step(x, model)  # reportArgumentType reportArgumentType

# Results

(value, logs), grads = step(model, x)
assert_type(value, float)  # reportAssertTypeFailure
value.means()  # reportAttributeAccessIssue
print(logs.forwards)  # reportAttributeAccessIssue
logs.backward["layers.0", 0]  # reportArgumentType
value, logs, grads = step(model, x)  # reportAssignmentType
((value, aux), logs), grads = px.value_and_grad(with_aux, has_aux=True)(model, x)
aux["a"].upper()  # reportAttributeAccessIssue
output = px.ForwardHook(model)(x).mean()  # reportAttributeAccessIssue
