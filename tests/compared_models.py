"""A small transformer in several forms, and ways to get one of its parts wrong."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp


SIZE, INNER, LAYERS = 4, 8, 4


class Attention(eqx.Module):
    query: eqx.nn.Linear
    key: eqx.nn.Linear
    value: eqx.nn.Linear

    def __init__(self, *, key):
        keys = jax.random.split(key, 3)
        linears = [eqx.nn.Linear(SIZE, SIZE, key=k) for k in keys]
        self.query, self.key, self.value = linears

    def __call__(self, x):
        q, k, v = (jax.vmap(f)(x) for f in (self.query, self.key, self.value))
        return jax.nn.softmax(q @ k.T) @ v


class Gelu(eqx.Module):
    approximate: bool = False

    def __call__(self, x):
        return jax.nn.gelu(x, approximate=self.approximate)


class Block(eqx.Module):
    norm1: eqx.nn.LayerNorm
    attn: Attention
    norm2: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    act: Any
    down: eqx.nn.Linear

    def __init__(self, *, key):
        keys = jax.random.split(key, 3)
        self.norm1, self.norm2 = (eqx.nn.LayerNorm(SIZE) for _ in range(2))
        self.attn = Attention(key=keys[0])
        self.up = eqx.nn.Linear(SIZE, INNER, key=keys[1])
        self.act = Gelu()
        self.down = eqx.nn.Linear(INNER, SIZE, key=keys[2])

    def __call__(self, x):
        x = x + self.attn(jax.vmap(self.norm1)(x))
        hidden = self.act(jax.vmap(self.up)(jax.vmap(self.norm2)(x)))
        return x + jax.vmap(self.down)(hidden)


class Listed(eqx.Module):
    """Its layers in a list, with other names."""

    embed: eqx.nn.Linear
    blocks: list[Block]

    def __init__(self, *, key=None, layers=LAYERS):
        key = jax.random.key(0) if key is None else key
        embed, *keys = jax.random.split(key, layers + 1)
        self.embed = eqx.nn.Linear(SIZE, SIZE, key=embed)
        self.blocks = [Block(key=k) for k in keys]

    def __call__(self, x):
        x = jax.vmap(self.embed)(x)
        for block in self.blocks:
            x = block(x)
        return x


class Stacked(eqx.Module):
    """The same, with a scan over the layers."""

    embed: eqx.nn.Linear
    layers: Block

    def __init__(self, listed):
        stack = lambda *arrays: jnp.stack(arrays)
        self.embed = listed.embed
        blocks = [eqx.filter(block, eqx.is_array) for block in listed.blocks]
        arrays = jax.tree.map(stack, *blocks)
        self.layers = eqx.combine(arrays, listed.blocks[0])

    def __call__(self, x):
        step = lambda x, block: (block(x), None)
        arrays, static = eqx.partition(self.layers, eqx.is_array)
        body = lambda x, arrays: step(x, eqx.combine(arrays, static))
        return jax.lax.scan(body, jax.vmap(self.embed)(x), arrays)[0]


def tokens(n=3):
    return jax.random.normal(jax.random.key(1), (n, SIZE))


def replaced(model, **parts):
    """With other parts; a dot in a name is written `__`."""
    for name, part in parts.items():
        at = lambda m, name=name: functools.reduce(getattr, name.split("__"), m)
        model = eqx.tree_at(at, model, part)
    return model


def wrong_norm():
    return eqx.nn.LayerNorm(SIZE, eps=0.1)
