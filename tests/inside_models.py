"""Models with values inside that have names, for the tests of these."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.ad_checkpoint import checkpoint_name
from parts import Two


class Block(eqx.Module):
    attn: eqx.nn.MultiheadAttention
    norm: eqx.nn.LayerNorm

    def __init__(self, key):
        self.attn = eqx.nn.MultiheadAttention(2, 8, key=key)
        self.norm = eqx.nn.LayerNorm(8)

    def __call__(self, x):
        return x + self.attn(*(jax.vmap(self.norm)(x),) * 3)


BLOCK = Block(jr.key(0))
X = jr.normal(jr.key(1), (5, 8))
XS = jr.normal(jr.key(2), (3, 5, 8))


def probabilities(block, x):
    """The attention probabilities of a block, by hand: heads, queries, keys."""
    attn, x = block.attn, jax.vmap(block.norm)(x)
    q = (x @ attn.query_proj.weight.T).reshape(5, 2, 4)
    k = (x @ attn.key_proj.weight.T).reshape(5, 2, 4)
    logits = jnp.einsum("shd,Shd->hsS", q, k) / 2.0
    p = jnp.exp(logits - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def output(block, x, probs):
    """What a block makes of its attention probabilities, by hand."""
    attn = block.attn
    normed = jax.vmap(block.norm)(x)
    v = (normed @ attn.value_proj.weight.T).reshape(5, 2, 4)
    mixed = jnp.einsum("hsS,Shd->shd", probs, v).reshape(5, 8)
    return x + mixed @ attn.output_proj.weight.T


def shared(x):
    return jnp.tanh(helper(x))


def helper(x):
    return 2 * x + 1


class Scaled(eqx.Module):
    scale: float

    def __call__(self, x):
        return shared(self.scale * x) + helper(x)


TWO = Two(Scaled(0.5), Scaled(0.3))
V = jnp.array([0.5, -1.0])


class Marked(eqx.Module):
    def __call__(self, x):
        return checkpoint_name(jnp.sin(x), "wave") + jax.nn.relu(x)


class Twice(eqx.Module):
    cell: eqx.nn.GRUCell

    def __call__(self, x):
        return self.cell(x, self.cell(x, jnp.zeros(4)))


GRU = Twice(eqx.nn.GRUCell(3, 4, key=jr.key(5)))


class Weighted(eqx.Module):
    weight: jax.Array

    def __call__(self, x):
        return jnp.tanh(self.weight * x)
