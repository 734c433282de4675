"""The models in Flax Linen, with the parameters of the Equinox models. Each value can
be perturbed where `perturbed` is set: Linen's `perturb` is written into the model.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..models import AbstractChain, attend, BLOCK_KEYS, Case, GRU, Transformer, Values


class FlaxBlock(nn.Module):
    width: int
    heads: int
    perturbed: bool

    @nn.compact
    def __call__(self, x: Array) -> Array:
        def layer(name: str, x: Array) -> Array:
            if name.startswith("norm"):
                x = nn.LayerNorm(epsilon=1e-5, name=name)(x)
            else:
                width = self.width * (4 if name == "up" else 1)
                x = nn.Dense(width, name=name)(x)
            return self.perturb(f"{name}_", x) if self.perturbed else x

        y = layer("norm1", x)
        q, k, v = (layer(name, y) for name in "qkv")
        x = x + layer("o", attend(q, k, v, self.heads))
        y = layer("norm2", x)
        return x + layer("down", nn.gelu(layer("up", y)))


class FlaxTransformer(nn.Module):
    width: int
    heads: int
    depth: int
    perturbed: bool

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for i in range(self.depth):
            name = f"layers_{i}"
            x = FlaxBlock(self.width, self.heads, self.perturbed, name=name)(x)
        return x


class FlaxChain(nn.Module):
    width: int
    names: tuple[str, ...]
    perturbed: bool

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for name in self.names:
            x = nn.Dense(self.width, name=name)(x)
            if self.perturbed:
                x = self.perturb(f"{name}_", x)
            x = jnp.tanh(x)
        return x


class FlaxCell(nn.Module):
    """The equations of `eqx.nn.GRUCell`."""

    width: int
    perturbed: bool

    @nn.compact
    def __call__(self, state: Array, x: Array) -> tuple[Array, None]:
        zeros = nn.initializers.zeros
        weight_ih = self.param("weight_ih", zeros, (3 * self.width, self.width))
        weight_hh = self.param("weight_hh", zeros, (3 * self.width, self.width))
        bias = self.param("bias", zeros, (3 * self.width,))
        bias_n = self.param("bias_n", zeros, (self.width,))
        from_input = jnp.split(weight_ih @ x + bias, 3)
        from_state = jnp.split(weight_hh @ state, 3)
        reset = nn.sigmoid(from_input[0] + from_state[0])
        update = nn.sigmoid(from_input[1] + from_state[1])
        new = nn.tanh(from_input[2] + reset * (from_state[2] + bias_n))
        state = new + update * (state - new)
        return (self.perturb("state", state) if self.perturbed else state), None


class FlaxGRU(nn.Module):
    width: int
    perturbed: bool

    @nn.compact
    def __call__(self, xs: Array) -> Array:
        scanned = nn.scan(
            FlaxCell,
            variable_broadcast="params",
            variable_axes={"intermediates": 0, "perturbations": 0},
            split_rngs={"params": False},
        )
        init = jnp.zeros(self.width)
        return scanned(self.width, self.perturbed, name="cell")(init, xs)[0]


def in_flax(case: Case, perturbed: bool) -> tuple[nn.Module, Any]:
    """The case's model in Flax, and its parameters."""
    model: Any = case.model
    if isinstance(model, Transformer):
        first = model.layers[0]
        width, heads, depth = len(first.q.bias), first.heads, len(model.layers)
        params = {
            f"layers_{i}": {name: _layer(getattr(layer, name)) for name in BLOCK_KEYS}
            for i, layer in enumerate(model.layers)
        }
        return FlaxTransformer(width, heads, depth, perturbed), {"params": params}
    if isinstance(model, AbstractChain):
        params = {name: _layer(getattr(model, name)) for name in model.names}
        width = len(case.x)
        return FlaxChain(width, model.names, perturbed), {"params": params}
    assert isinstance(model, GRU)
    names = ("weight_ih", "weight_hh", "bias", "bias_n")
    params = {"cell": {name: getattr(model.cell, name) for name in names}}
    return FlaxGRU(model.cell.hidden_size, perturbed), {"params": params}


def _layer(layer: Any) -> dict[str, Array]:
    if layer.weight.ndim == 1:
        return {"scale": layer.weight, "bias": layer.bias}
    return {"kernel": layer.weight.T, "bias": layer.bias}


def by_key(collection: Any, leaf: str) -> Values:
    """A Flax collection with the keys of the Equinox model. `leaf` is what Flax has
    put below the name of the layer.
    """
    values = {}
    for path, value in jax.tree_util.tree_flatten_with_path(collection)[0]:
        names = [k.key for k in path if isinstance(k, jax.tree_util.DictKey)]
        key = ".".join(names).removesuffix(leaf)
        values[key.replace("layers_", "layers.")] = value
    return values
