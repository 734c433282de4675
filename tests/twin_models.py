"""Twins without loops and branches: calls, vmap, checkpoint, jit, inner derivatives."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from twin_case import apply


# Two layers, one after the other.


class MLP(eqx.Module):
    linear1: eqx.nn.Linear
    linear2: eqx.nn.Linear

    def __init__(self, i, h, o, *, key):
        key1, key2 = jr.split(key, 2)
        self.linear1 = eqx.nn.Linear(i, h, key=key1)
        self.linear2 = eqx.nn.Linear(h, o, key=key2)

    def __call__(self, x):
        return self.linear2(jax.nn.relu(self.linear1(x)))


def mlp_twin(m, x, eps):
    a = apply(m.linear1, x) + eps["linear1"]
    b = apply(m.linear2, jax.nn.relu(a)) + eps["linear2"]
    return b, {"linear1": a, "linear2": b}


# A layer over tokens, by vmap.


class Tokens(eqx.Module):
    proj: eqx.nn.Linear
    out_axis: int = eqx.field(static=True)

    def __call__(self, x):
        y = jax.vmap(self.proj, out_axes=self.out_axis)(x)
        return jnp.tanh(y) if self.out_axis == 0 else jnp.tanh(y.T)


def tokens_twin(m, x, eps):
    a = x @ m.proj.weight.T + m.proj.bias + eps["proj"]
    return jnp.tanh(a), {"proj": a}


# vmap in vmap.


class Grid(eqx.Module):
    proj: eqx.nn.Linear

    def __call__(self, x):
        return jnp.sin(jax.vmap(jax.vmap(self.proj, in_axes=1), in_axes=1)(x))


def grid_twin(m, x, eps):
    # x: (features, rows, columns), mapped over axis 1, then over what is left of it.
    a = jnp.einsum("of,frc->rco", m.proj.weight, jnp.transpose(x, (0, 1, 2)))
    a = a + m.proj.bias + eps["proj"]
    return jnp.sin(a), {"proj": a}


# Checkpointed layers.


class Checkpointed(eqx.Module):
    mlp: MLP
    head: eqx.nn.Linear
    policy: Any = eqx.field(static=True)

    def __call__(self, x):
        x = eqx.filter_checkpoint(self.mlp, policy=self.policy)(x)
        return self.head(jnp.tanh(x))


def checkpointed_twin(m, x, eps):
    y, values = mlp_twin(m.mlp, x, {k: eps[f"mlp.{k}"] for k in ("linear1", "linear2")})
    z = apply(m.head, jnp.tanh(y)) + eps["head"]
    return z, {**{f"mlp.{k}": v for k, v in values.items()}, "head": z}


# One layer, called often: in Python, and through a jitted helper that JAX has cached.


@eqx.filter_jit
def _jitted(layer, x):
    return jnp.tanh(layer(x))


class Repeated(eqx.Module):
    layer: eqx.nn.Linear
    jit: bool = eqx.field(static=True)

    def __call__(self, x):
        for _ in range(3):
            x = _jitted(self.layer, x) if self.jit else jnp.tanh(self.layer(x))
        return x


def repeated_twin(m, x, eps):
    values = {}
    for i in range(3):
        key = "layer" if i == 0 else f"layer#{i}"
        values[key] = apply(m.layer, x) + eps[key]
        x = jnp.tanh(values[key])
    return x, values


# Layers passed one by one to one jitted helper keep their own names.


class OneByOne(eqx.Module):
    layers: list[eqx.nn.Linear]

    def __call__(self, x):
        for layer in self.layers:
            x = _jitted(layer, x)
        return x


def one_by_one_twin(m, x, eps):
    values = {}
    for i, layer in enumerate(m.layers):
        key = f"layers.{i}"
        values[key] = apply(layer, x) + eps[key]
        x = jnp.tanh(values[key])
    return x, values


# One layer at two places.


def tied_twin(m, x, eps):
    a = apply(m.first, x) + eps["first"]
    b = apply(m.second, jnp.tanh(a)) + eps["second"]
    return b, {"first": a, "second": b}


# A force: the gradient of an energy, inside the model.


class Force(eqx.Module):
    energy: MLP
    head: eqx.nn.Linear
    how: str = eqx.field(static=True)

    def __call__(self, x):
        energy = lambda x: jnp.sum(jnp.tanh(self.energy(x)) ** 2)
        if self.how == "grad":
            force = jax.grad(energy)(x)
        elif self.how == "jitted grad":
            force = jax.jit(jax.grad(energy))(x)
        elif self.how == "checkpointed grad":
            force = jax.grad(jax.checkpoint(energy))(x)
        elif self.how == "jvp":
            force = jax.jvp(energy, (x,), (x,))[1] * x
        else:
            value, lin = jax.linearize(energy, x)
            force = lin(x) * x + value
        return self.head(force)


def force_twin(m, x, eps):
    parts = {k: eps[f"energy.{k}"] for k in ("linear1", "linear2")}

    def energy(x):
        y, values = mlp_twin(m.energy, x, parts)
        return jnp.sum(jnp.tanh(y) ** 2), values

    if "grad" in m.how:
        force, values = jax.grad(energy, has_aux=True)(x)
    elif m.how == "jvp":
        _, tangent = jax.jvp(lambda x: energy(x)[0], (x,), (x,))
        force, values = tangent * x, energy(x)[1]
    else:
        value, tangent = jax.jvp(lambda x: energy(x)[0], (x,), (x,))
        force, values = tangent * x + value, energy(x)[1]
    out = apply(m.head, force) + eps["head"]
    return out, {**{f"energy.{k}": v for k, v in values.items()}, "head": out}
