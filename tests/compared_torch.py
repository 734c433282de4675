"""The block of `compared_models` in PyTorch, and how its weights are taken over."""

import equinox as eqx
import jax
import jax.numpy as jnp
import torch
from compared_models import Block, INNER, SIZE
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(SIZE, SIZE) for _ in range(3))

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(-1, -2)
        return scores.softmax(-1) @ self.value(x)


class TorchBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(SIZE), nn.LayerNorm(SIZE)
        self.self_attn = Attention()
        self.linear1, self.linear2 = nn.Linear(SIZE, INNER), nn.Linear(INNER, SIZE)
        self.activation = nn.GELU()
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        x = x + self.dropout(self.self_attn(self.norm1(x)))
        return x + self.linear2(self.activation(self.linear1(self.norm2(x))))


def array(tensor):
    return jnp.asarray(tensor.detach().numpy())


def linear(theirs):
    """A layer of Equinox with the weights of one of PyTorch."""
    mine = eqx.nn.Linear(theirs.in_features, theirs.out_features, key=jax.random.key(0))
    weights = array(theirs.weight), array(theirs.bias)
    return eqx.tree_at(lambda m: (m.weight, m.bias), mine, weights)


def ported(theirs):
    """The block with the weights of PyTorch's."""
    attn = theirs.self_attn
    parts = [attn.query, attn.key, attn.value, theirs.linear1, theirs.linear2]
    at = lambda m: (m.attn.query, m.attn.key, m.attn.value, m.up, m.down)
    return eqx.tree_at(at, Block(key=jax.random.key(0)), [linear(p) for p in parts])


def block():
    torch.manual_seed(0)
    return TorchBlock().eval()
