"""Figures of a sparse autoencoder at one layer of a scanned language model."""

import equinox as eqx
import jax
import jax.random as jr
from jaxtyping import Array, Float

import peex as px

from . import models
from .contestants import assert_same
from .rows import Bench, duration, Figure, Outcome
from .timing import race


class Autoencoder(eqx.Module):
    up: Float[Array, "d f"]
    down: Float[Array, "f d"]

    def __init__(self, width: int, features: int, *, key: Array):
        up, down = jr.split(key)
        self.up = jr.normal(up, (width, features)) / width**0.5
        self.down = jr.normal(down, (features, width)) / features**0.5

    def encode(self, x: Float[Array, "t d"]) -> Float[Array, "t f"]:
        return jax.nn.relu(x @ self.up)

    def decode(self, z: Float[Array, "t f"]) -> Float[Array, "t d"]:
        return z @ self.down


def splice_time(bench: Bench, case: str) -> Outcome:
    """Of a call with an autoencoder at one layer, next to the model without it."""
    tokens = int(case.split()[0])
    layers = 3 * bench.sizes.lm_layers  # 30
    sizes = bench.sizes.of_lm()._replace(layers=layers)
    model = models.ScannedTransformer(sizes, key=jr.key(0))
    sae = Autoencoder(sizes.width, 43 * sizes.width, key=jr.key(1))
    x = jr.normal(jr.key(2), (tokens, sizes.width))
    at = layers // 2
    hook = px.AtStep(px.SpliceHook(sae), at)
    hooked = px.ForwardHook(model, hook, None, where="layers")

    @eqx.filter_jit
    def plain(model: models.ScannedTransformer, x: Array) -> Array:
        return model(x)

    @eqx.filter_jit
    def spliced(hooked: px.ForwardHook, x: Array) -> Array:
        return hooked(x)[0]

    def by_hand(x: Array) -> Array:
        for i in range(layers):
            take = lambda leaf, i=i: leaf[i] if eqx.is_array(leaf) else leaf
            x = jax.tree.map(take, model.layers)(x)
            x = sae.decode(sae.encode(x)) if i == at else x
        return x

    assert_same("peex", {"out": by_hand(x)}, {"out": spliced(hooked, x)})
    calls = {
        "unhooked": lambda: jax.block_until_ready(plain(model, x)),
        "peex": lambda: jax.block_until_ready(spliced(hooked, x)),
    }
    calls["unhooked"]()
    times = race(calls, bench.effort)
    ratio = times.ratio("peex", "unhooked")
    return Outcome(
        {"peex": f"{ratio:.2f} of {duration(times.median('unhooked'))}"},
        ratio,
        {},
        {"seconds": {name: times.median(name) for name in calls}},
    )


FIGURES = (Figure("splice at one layer of 30", ("5 tokens",), "1.2", 1.2, splice_time),)
