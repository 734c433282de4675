"""Trains a small transformer on repeated sequences, and finds the heads that repeat.

What repeats a sequence it has read is an induction head ([Olsson et al.,
2022](https://arxiv.org/abs/2209.11895)): it looks back at the token that came after the
last one like this, where a head in a layer below has put which token came before. This
trains two layers of attention on blocks of random tokens that are repeated, then looks
for these heads in two ways that share nothing:

1. a sweep: of each head by itself, what it gives in a run on a repeated block replaces
   what it gives in a run whose first half is another block, so that there is nothing to
   repeat. How much of the prediction comes back?
2. the attention pattern: of a token in the second half, how much goes to the token that
   came after it in the first?

    pip install -e ".[experiments]" && python examples/induction.py

It prints both for all heads, and saves a picture, `examples/induction.png`.
"""

import argparse
import pathlib
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray
from training import fit

import peex as px


try:
    from matplotlib.figure import Figure
except ModuleNotFoundError as e:
    raise ModuleNotFoundError(
        f"The experiments need the package `{e.name}`, which is not installed. Install "
        'it with: pip install -e ".[experiments]"'
    ) from e


PICTURE = pathlib.Path(__file__).with_suffix(".png")


class Attention(eqx.Module):
    """Causal attention. Positions speak in queries and keys alone: so what a head moves
    is tokens.
    """

    q_proj: eqx.nn.Linear
    k_proj: eqx.nn.Linear
    v_proj: eqx.nn.Linear
    o_proj: eqx.nn.Linear
    heads: int = eqx.field(static=True)

    def __init__(self, width: int, heads: int, *, key: PRNGKeyArray):
        linear = lambda key: eqx.nn.Linear(width, width, use_bias=False, key=key)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = map(
            linear, jr.split(key, 4)
        )
        self.heads = heads

    def __call__(
        self, x: Float[Array, "pos width"], positions: Float[Array, "pos width"]
    ) -> Float[Array, "pos width"]:
        split = lambda a: a.reshape(len(x), self.heads, -1)
        q = split(jax.vmap(self.q_proj)(x + positions))
        k = split(jax.vmap(self.k_proj)(x + positions))
        v = split(jax.vmap(self.v_proj)(x))
        scores = jnp.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
        seen = jnp.tri(len(x), dtype=bool)
        pattern = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
        z = jnp.einsum("hqk,khd->qhd", pattern, v).reshape(len(x), -1)
        return jax.vmap(self.o_proj)(z)


class Layer(eqx.Module):
    norm: eqx.nn.RMSNorm
    attn: Attention

    def __init__(self, width: int, heads: int, *, key: PRNGKeyArray):
        self.norm = eqx.nn.RMSNorm(width, use_bias=False)
        self.attn = Attention(width, heads, key=key)

    def __call__(
        self, x: Float[Array, "pos width"], positions: Float[Array, "pos width"]
    ) -> Float[Array, "pos width"]:
        return x + self.attn(jax.vmap(self.norm)(x), positions)


class Transformer(eqx.Module):
    """Two layers of attention, stacked, between an embedding and an output."""

    embedding: eqx.nn.Embedding
    positions: Float[Array, "length width"]
    layers: Layer
    norm: eqx.nn.RMSNorm
    unembedding: eqx.nn.Linear

    def __init__(
        self, vocab: int, width: int, heads: int, length: int, *, key: PRNGKeyArray
    ):
        ekey, pkey, lkey, ukey = jr.split(key, 4)
        self.embedding = eqx.nn.Embedding(vocab, width, key=ekey)
        self.positions = jr.normal(pkey, (length, width))
        layer = lambda key: Layer(width, heads, key=key)
        self.layers = eqx.filter_vmap(layer)(jr.split(lkey, 2))
        self.norm = eqx.nn.RMSNorm(width, use_bias=False)
        self.unembedding = eqx.nn.Linear(width, vocab, use_bias=False, key=ukey)

    def __call__(self, tokens: Int[Array, "pos"]) -> Float[Array, "pos vocab"]:
        arrays, static = eqx.partition(self.layers, eqx.is_array)
        step = lambda x, a: (eqx.combine(a, static)(x, self.positions), None)
        x, _ = jax.lax.scan(step, jax.vmap(self.embedding)(tokens), arrays)
        return jax.vmap(self.unembedding)(jax.vmap(self.norm)(x))


def repeated(
    key: PRNGKeyArray, vocab: int, length: int, period: Int[Array, ""]
) -> Int[Array, "length"]:
    """Different tokens in random order, the first `period` of which are repeated."""
    return jr.permutation(key, vocab)[jnp.arange(length) % period]


def log_likelihood(
    model: Transformer, tokens: Int[Array, "pos"], start: Int[Array, ""]
) -> Float[Array, ""]:
    """The mean log-probability, in nats, of the tokens behind position `start`."""
    logits = jax.nn.log_softmax(model(tokens)[:-1])
    right = jnp.take_along_axis(logits, tokens[1:, None], axis=-1)[:, 0]
    return jnp.mean(right, where=jnp.arange(1, len(tokens)) > start)


def loss(
    model: Transformer, batch: int, vocab: int, key: PRNGKeyArray
) -> Float[Array, ""]:
    """Minus the log-likelihood of what is repeated. Periods are random, so that no
    distance is always the right one.
    """
    pkey, tkey = jr.split(key)
    length = len(model.positions)
    periods = jr.randint(pkey, (batch,), length // 5, length // 2 + 1)
    make = lambda key, period: repeated(key, vocab, length, period)
    tokens = jax.vmap(make)(jr.split(tkey, batch), periods)
    return -jnp.mean(jax.vmap(log_likelihood, (None, 0, 0))(model, tokens, periods))


# What each head gives, side by side: what the output projection is given.
HEADS = "layers.attn.o_proj:in"
PATTERN = "layers.attn/softmax"


def batched(
    model: Transformer, tokens: Int[Array, "batch pos"]
) -> Float[Array, "batch"]:
    """The log-likelihood of the second half of each example."""
    start = jnp.array(tokens.shape[1] // 2)
    return jax.vmap(log_likelihood, (None, 0, None))(model, tokens, start)


def get_patterns(
    model: Transformer, tokens: Int[Array, "batch pos"]
) -> Float[Array, "layer batch head pos pos"]:
    hooked = px.ForwardHook(model, where=PATTERN, method=batched)
    return eqx.filter_jit(hooked)(tokens)[1][PATTERN]


def score(
    patterns: Float[Array, "layer batch head pos pos"], distance: int, start: int
) -> Float[Array, "layer head"]:
    """How much of a head's attention goes `distance` back, from position `start` on."""
    diagonal = jnp.diagonal(patterns, -distance, axis1=-2, axis2=-1)
    return jnp.mean(diagonal[..., max(0, start - distance) :], axis=(1, 3))


class Result(NamedTuple):
    """For each layer and head: the share that comes back by it alone, and how much of
    its attention goes to the token after the last one like this, and to the one before.
    """

    losses: list[float]
    recovered: Float[Array, "layer head"]
    induction: Float[Array, "layer head"]
    previous: Float[Array, "layer head"]
    correlation: float
    pattern: Float[Array, "pos pos"]


def main(
    *,
    vocab: int = 32,
    width: int = 64,
    heads: int = 4,
    length: int = 40,
    steps: int = 800,
    batch: int = 64,
    rate: float = 3e-3,
    seed: int = 0,
    out: pathlib.Path = PICTURE,
) -> Result:
    mkey, tkey, akey, bkey = jr.split(jr.key(seed), 4)
    model = Transformer(vocab, width, heads, length, key=mkey)
    model, losses = fit(
        model,
        lambda model, key: loss(model, batch, vocab, key),
        steps=steps,
        rate=rate,
        name="Training",
        key=tkey,
    )

    half = length // 2
    blocks = lambda key: jax.vmap(
        lambda key: repeated(key, vocab, length, jnp.array(half))
    )(jr.split(key, batch))
    clean, others = blocks(akey), blocks(bkey)
    corrupted = jnp.concatenate([others[:, :half], clean[:, half:]], axis=1)

    effects = px.patching.sweep(
        model,
        clean,
        corrupted,
        jnp.mean,
        method=batched,
        where=HEADS,
        axes=f"layer _ _ (head={heads} _)",  # examples and positions are patched whole
    )
    recovered = effects.normalised()[HEADS]
    patterns = get_patterns(model, clean)
    induction = score(patterns, half - 1, half)
    previous = score(patterns, 1, 0)
    correlation = float(jnp.corrcoef(recovered.ravel(), induction.ravel())[0, 1])
    layer, head = np.unravel_index(int(jnp.argmax(recovered)), recovered.shape)
    pattern = patterns[layer, 0, head]
    result = Result(losses, recovered, induction, previous, correlation, pattern)
    draw(out, result, f"{layer}.{head}", clean[0])
    show(result, out)
    return result


def show(result: Result, out: pathlib.Path) -> None:
    first, last = result.losses[0], result.losses[-1]
    print(f"Loss, in nats: {first:.3f} before, {last:.3f} after")
    print("head  comes back  to the token after  to the one before")
    for (layer, head), share in np.ndenumerate(np.asarray(result.recovered)):
        other = (result.induction[layer, head], result.previous[layer, head])
        print(f"{layer}.{head}   {share:10.3f}  {other[0]:18.3f}  {other[1]:17.3f}")
    found = [f"{i}.{j}" for i, j in np.argwhere(np.asarray(result.recovered) > 0.25)]
    print(f"Induction heads, by which more than a quarter comes back: {found}")
    print(f"Correlation of the first two columns: {result.correlation:.3f}")
    print(f"Saved the picture as {out}")


def draw(
    out: pathlib.Path, result: Result, head: str, tokens: Int[Array, "pos"]
) -> None:
    figure = Figure(figsize=(13, 5.5), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1, 1.15])
    titles = {
        "recovered": "Sweep: what share of the prediction\ncomes back by a head alone",
        "induction": "Pattern: attention to the token\nafter the last one like this",
        "previous": "Pattern: attention to the token before",
    }
    panels = left.subplots(3, 1)
    for ax, (name, title) in zip(panels, titles.items(), strict=True):
        values = np.asarray(getattr(result, name))
        image = ax.imshow(values, cmap="cividis", vmin=0, vmax=1, aspect="auto")
        for (i, j), value in np.ndenumerate(values):
            colour = "black" if value > 0.5 else "white"
            ax.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour)
        ax.set(title=title, ylabel="layer")
        ax.set_xticks(range(values.shape[1]))
        ax.set_yticks(range(values.shape[0]))
    panels[-1].set_xlabel("head")
    left.colorbar(image, ax=list(panels), shrink=0.6)
    ax = right.subplots()
    image = ax.imshow(result.pattern, cmap="cividis", vmin=0, vmax=1)
    ax.set_title(f"Attention of head {head} on a block that is repeated once")
    ax.set(xlabel="looked at (token)", ylabel="from (token)")
    ax.set_xticks(range(len(tokens)), [str(t) for t in tokens.tolist()], fontsize=6)
    ax.set_yticks(range(len(tokens)), [str(t) for t in tokens.tolist()], fontsize=6)
    right.colorbar(image, ax=ax, shrink=0.8)
    figure.savefig(out, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Finds induction heads by a sweep.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=PICTURE,
        help="where to save the picture (default: next to this script)",
    )
    main(**vars(parser.parse_args()))
