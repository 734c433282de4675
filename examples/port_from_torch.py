"""Ports a model from PyTorch to Equinox, with a mistake in it, and finds the mistake.

The model is a small transformer, whose weights are taken over one by one. The port
computes nearly the same; but `jax.nn.gelu` is an approximation by default, while
PyTorch's `nn.GELU` is exact. All that comes behind the first of them differs a little,
so the output doesn't say what is wrong. `px.debug.compare` gives each module of PyTorch
what its counterpart was given, and names those that differ by themselves.

    pip install -e ".[experiments]" torch && python examples/port_from_torch.py

It prints both comparisons, with the mistake and without, and draws the first in
`examples/port_from_torch.png`.
"""

import argparse
import functools
import pathlib
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

import peex as px


try:
    import torch
    from torch import nn
except ModuleNotFoundError as e:
    raise ModuleNotFoundError(
        f"This example needs the package `{e.name}`, which is not installed. Install "
        f"it with: pip install {e.name}"
    ) from e


PICTURE = pathlib.Path(__file__).with_suffix(".png")
WORDS, WIDTH, HEADS, LAYERS = 50, 32, 4, 4


class TorchBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q_proj, self.k_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.v_proj, self.o_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.gelu, self.dropout = nn.GELU(), nn.Dropout(0.1)

    def forward(self, x):
        y = self.norm1(x)
        split = lambda y: y.unflatten(-1, (HEADS, -1)).transpose(-2, -3)
        q, k, v = split(self.q_proj(y)), split(self.k_proj(y)), split(self.v_proj(y))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.o_proj(attended.transpose(-2, -3).flatten(-2)))
        return x + self.dropout(self.fc2(self.gelu(self.fc1(self.norm2(x)))))


class TorchModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(TorchBlock() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Attention(eqx.Module):
    query: eqx.nn.Linear
    key: eqx.nn.Linear
    value: eqx.nn.Linear
    output: eqx.nn.Linear

    def __init__(self, *, key: PRNGKeyArray):
        linear = lambda key: eqx.nn.Linear(WIDTH, WIDTH, key=key)
        linears = [linear(k) for k in jax.random.split(key, 4)]
        self.query, self.key, self.value, self.output = linears

    def __call__(self, x: Float[Array, "n width"]) -> Float[Array, "n width"]:
        split = lambda layer: jax.vmap(layer)(x).reshape(len(x), HEADS, -1)
        q, k, v = map(split, (self.query, self.key, self.value))
        attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        return jax.vmap(self.output)(attended.reshape(x.shape))


class Block(eqx.Module):
    norm1: eqx.nn.LayerNorm
    attn: Attention
    norm2: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    act: Callable[[Array], Array]
    down: eqx.nn.Linear

    def __init__(self, act: Callable[[Array], Array], *, key: PRNGKeyArray):
        key1, key2, key3 = jax.random.split(key, 3)
        self.norm1, self.norm2 = eqx.nn.LayerNorm(WIDTH), eqx.nn.LayerNorm(WIDTH)
        self.attn = Attention(key=key1)
        self.up = eqx.nn.Linear(WIDTH, 4 * WIDTH, key=key2)
        self.act = act
        self.down = eqx.nn.Linear(4 * WIDTH, WIDTH, key=key3)

    def __call__(self, x: Float[Array, "n width"]) -> Float[Array, "n width"]:
        x = x + self.attn(jax.vmap(self.norm1)(x))
        hidden = self.act(jax.vmap(self.up)(jax.vmap(self.norm2)(x)))
        return x + jax.vmap(self.down)(hidden)


class Model(eqx.Module):
    """The port: its layers are stacked, and it is of one sentence."""

    tokens: eqx.nn.Embedding
    layers: Block
    head: eqx.nn.Linear

    def __call__(self, ids: Int[Array, "n"]) -> Float[Array, "n words"]:
        x = jax.vmap(self.tokens)(ids)
        arrays, static = eqx.partition(self.layers, eqx.is_array)
        step = lambda x, arrays: (eqx.combine(arrays, static)(x), None)
        x, _ = jax.lax.scan(step, x, arrays)
        return jax.vmap(self.head)(x)


def port(theirs: TorchModel, act: Callable[[Array], Array]) -> Model:
    """Equinox's model with the weights of PyTorch's. What has the same shape there goes
    here by its name.
    """
    arrays = {name: jnp.asarray(x.numpy()) for name, x in theirs.state_dict().items()}

    def filled(layer: eqx.Module, name: str) -> eqx.Module:
        at = lambda layer: [x for x in (layer.weight, layer.bias) if x is not None]
        new = [arrays[f"{name}.weight"], arrays[f"{name}.bias"]]
        return eqx.tree_at(at, layer, new)

    def block(i: int) -> Block:
        made, name = Block(act, key=jax.random.key(0)), f"blocks.{i}"
        places = {
            "norm1": lambda m: m.norm1,
            "q_proj": lambda m: m.attn.query,
            "k_proj": lambda m: m.attn.key,
            "v_proj": lambda m: m.attn.value,
            "o_proj": lambda m: m.attn.output,
            "norm2": lambda m: m.norm2,
            "fc1": lambda m: m.up,
            "fc2": lambda m: m.down,
        }
        for part, at in places.items():
            made = eqx.tree_at(at, made, filled(at(made), f"{name}.{part}"))
        return made

    blocks = [block(i) for i in range(LAYERS)]
    stack = lambda *arrays: jnp.stack(arrays)
    stacked = jax.tree.map(stack, *(eqx.filter(b, eqx.is_array) for b in blocks))
    head = eqx.nn.Linear(WIDTH, WORDS, key=jax.random.key(0))
    return Model(
        eqx.nn.Embedding(weight=arrays["tokens.weight"]),
        eqx.combine(stacked, blocks[0]),
        filled(head, "head"),
    )


def compare(act: Callable[[Array], Array]) -> px.debug.Comparison:
    """The port with this activation, next to the original, on a batch."""
    torch.manual_seed(0)
    theirs = TorchModel().eval()
    ids = jax.random.randint(jax.random.key(1), (2, 12), 0, WORDS)
    batched = lambda model, ids: jax.vmap(model)(ids)
    return px.debug.compare(port(theirs, act), theirs, ids, method=batched, grad=True)


def main(out: pathlib.Path) -> None:
    wrong = compare(jax.nn.gelu)
    print(wrong)
    wrong.plot().figure.savefig(out, dpi=150)
    right = compare(functools.partial(jax.nn.gelu, approximate=False))
    print(f"\nWith the exact one:\n{right!r}")
    right.assert_close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default=PICTURE)
    main(parser.parse_args().out)
