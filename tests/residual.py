"""A small transformer whose layers add to a stream, under a scan or in a list, with a
hand-written twin in which values can be changed; for tests of what gradients and paths
say.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from swept import Attention, LAYERS, mixed, WIDTH


class Fn(eqx.Module):
    """A function that is a module."""

    fn: Callable[[Any], Any] = eqx.field(static=True)

    def __call__(self, x):
        return self.fn(x)


class Layer(eqx.Module):
    norm1: Fn
    attn: Attention
    norm2: Fn
    linear: eqx.nn.Linear
    out: Fn

    def __init__(self, *, key):
        key1, key2 = jr.split(key)
        self.norm1, self.norm2, self.out = Fn(jnp.sin), Fn(jnp.sin), Fn(jnp.tanh)
        self.attn = Attention(key=key1)
        self.linear = eqx.nn.Linear(WIDTH, WIDTH, key=key2)

    def __call__(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.out(jax.vmap(self.linear)(self.norm2(x)))


class Scanned(eqx.Module):
    embed: eqx.nn.Linear
    layers: Layer
    head: eqx.nn.Linear

    def __call__(self, x):
        x = jax.vmap(self.embed)(x)
        x, _ = jax.lax.scan(lambda x, layer: (layer(x), None), x, self.layers)
        return self.head(x[-1])


class Unrolled(eqx.Module):
    embed: eqx.nn.Linear
    layers: list[Layer]
    head: eqx.nn.Linear

    def __call__(self, x):
        x = jax.vmap(self.embed)(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x[-1])


def models():
    """The same, scanned and unrolled."""
    layers = eqx.filter_vmap(lambda key: Layer(key=key))(jr.split(jr.key(0), LAYERS))
    embed = eqx.nn.Linear(WIDTH, WIDTH, use_bias=False, key=jr.key(4))
    head = eqx.nn.Linear(WIDTH, 3, key=jr.key(1))
    each = [jax.tree.map(lambda x: x[i], layers) for i in range(LAYERS)]  # noqa: B023
    return Scanned(embed, layers, head), Unrolled(embed, each, head)


# Where the scanned model has the values of the twin; the arguments of the norms are
# what is read of the stream.
WHERE = {
    "embed": "embed",
    "norm1": "layers.norm1:in",
    "z": "layers.attn.o:in",
    "attn": "layers.attn",
    "norm2": "layers.norm2:in",
    "out": "layers.out",
}


def metric(out):
    return out[1] ** 2 - out[0]


def twin(model: Scanned, x: Any, change: Any = None):
    """The metric, and the values by name and layer.

    - `change`: from names and layers to functions of what is there.
    """
    values = {}

    def see(name, layer, value):
        value = (change or {}).get((name, layer), lambda value: value)(value)
        values[name, layer] = value
        return value

    x = see("embed", 0, x @ model.embed.weight.T)
    for i in range(LAYERS):
        layer = jax.tree.map(lambda leaf: leaf[i], model.layers)  # noqa: B023
        z = see("z", i, mixed(layer.attn, jnp.sin(see("norm1", i, x))))
        x = x + see("attn", i, z @ layer.attn.o.weight.T)
        y = jnp.sin(see("norm2", i, x)) @ layer.linear.weight.T
        x = x + see("out", i, jnp.tanh(y + layer.linear.bias[None]))
    return metric(x[-1] @ model.head.weight.T + model.head.bias), values


def gradient(model: Scanned, x: Any, place: Any, value: Any = None):
    """Of the metric with respect to zeros that are added to a value there, which is
    another one if that is given.
    """

    def run(zeros):
        put = lambda mine: (mine if value is None else value) + zeros
        return twin(model, x, {place: put})[0]

    return jax.grad(run)(jnp.zeros_like(twin(model, x)[1][place]))


def gradients(model: Scanned, x: Any):
    """The same by place, of all of them, from one pass."""

    def run(zeros):
        put = lambda place: lambda mine: mine + zeros[place]
        return twin(model, x, {place: put(place) for place in zeros})[0]

    return jax.grad(run)(jax.tree.map(jnp.zeros_like, twin(model, x)[1]))


def layers_of(name):
    return range(1 if name == "embed" else LAYERS)
