"""Figures of sweeps: one program for all places, next to the same written by hand."""

import importlib
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int

import peex as px

from . import models
from .contestants import assert_same
from .rows import Bench, duration, Figure, Outcome
from .timing import compilations, race


Model = models.ScannedTransformer
_BATCH_SIZE = 32


def metric(out: Float[Array, "t d"]) -> Float[Array, ""]:
    return jnp.sum(out[-1, : out.shape[1] // 2])


@eqx.filter_jit
def _logged(model: Model, x: Array) -> tuple[Array, Array]:
    """The metric, and what each layer returns, by hand."""

    def body(x: Array, layer: models.Block) -> tuple[Array, Array]:
        x = layer(x)
        return x, x

    out, values = jax.lax.scan(body, x, model.layers)
    return metric(out), values


def _patched(model: Model, values: Array, x: Array, place: Int[Array, ""]) -> Array:
    """The metric where one layer returns something else at one token, by hand."""
    at_layer, at_token = jnp.divmod(place, len(x))

    def body(x: Array, step: Any) -> tuple[Array, None]:
        layer, value, i = step
        mask = (i == at_layer) & (jnp.arange(len(x)) == at_token)
        return jnp.where(mask[:, None], value, layer(x)), None

    steps = model.layers, values, jnp.arange(len(values))
    return metric(jax.lax.scan(body, x, steps)[0])


_one_at_a_time = eqx.filter_jit(_patched)


@eqx.filter_jit
def _some_at_a_time(model: Model, values: Array, x: Array, places: Array) -> Array:
    return jax.vmap(lambda place: _patched(model, values, x, place))(places)


def sweeps(sizes: models.Sizes, tokens: int) -> dict[str, Callable[[], Any]]:
    """The same sweep, over layers and tokens: by peex, with a vmap by hand, and with a
    jitted forward for each.
    """
    model = Model(sizes, key=jr.key(0))
    clean, corrupted = jr.normal(jr.key(1), (2, tokens, sizes.width))
    shape = sizes.layers, tokens
    n = math.prod(shape)

    def runs() -> Array:
        _logged(model, corrupted)
        return _logged(model, clean)[1]

    def by_hand() -> np.ndarray:
        values = runs()
        chunks = math.ceil(n / _BATCH_SIZE)
        size = math.ceil(n / chunks)
        places = np.minimum(np.arange(chunks * size), n - 1).astype(np.int32)
        made = [
            jax.device_get(_some_at_a_time(model, values, corrupted, jnp.asarray(some)))
            for some in places.reshape(chunks, size)
        ]
        return np.concatenate(made)[:n].reshape(shape)

    def loop() -> np.ndarray:
        values = runs()
        places = np.arange(n, dtype=np.int32)
        made = [_one_at_a_time(model, values, corrupted, place) for place in places]
        return np.array(made).reshape(shape)

    def peex() -> Array:
        return px.patching.sweep(
            model,
            clean,
            corrupted,
            metric,
            where="layers",
            axes="layer token _",
            batch_size=_BATCH_SIZE,
            progress=False,
        )["layers"]

    made = {"peex": peex, "by hand": by_hand, "loop": loop}
    results = {name: {"metric": sweep()} for name, sweep in made.items()}
    for name, result in results.items():
        assert_same(name, results["by hand"], result)
    return made


def sweep_time(bench: Bench, case: str) -> Outcome:
    """Of one like it by hand."""
    calls = sweeps(bench.sizes, int(case.split()[0]))
    del calls["loop"]
    compiled = compilations(calls["peex"])
    times = race(calls, bench.effort)
    ratio = times.ratio("peex", "by hand")
    return Outcome(
        {"peex": f"{ratio:.2f} of", "by hand": duration(times.median("by hand"))},
        ratio,
        {"nothing compiled anew": compiled == 0},
        {"seconds": {name: times.median(name) for name in calls}},
    )


def loop_time(bench: Bench, case: str) -> Outcome:
    """Next to as many calls of a jitted forward, of a language model."""
    calls = sweeps(bench.sizes.of_lm(), int(case.split()[0]))
    del calls["by hand"]
    times = race(calls, bench.effort._replace(least=min(bench.effort.least, 3)))
    ratio = times.ratio("peex", "loop")
    loop = f"a loop takes {duration(times.median('loop'))}"
    return Outcome(
        {"peex": f"{1 / ratio:.1f} times as fast", "by hand": loop},
        ratio,
        {},
        {"seconds": {name: times.median(name) for name in calls}},
    )


def peer_time(bench: Bench, case: str) -> Outcome:
    """Next to TransformerLens's own loop, of a language model with equal weights."""
    try:
        peer: Any = importlib.import_module(
            f"{__package__}.peers.transformer_lens_sweep"
        )
    except ImportError as error:
        cells = {"peex": "not measured", "by hand": f"not here: {error}"}
        return Outcome(cells, 0.0, {"measured": False}, {})
    sizes, tokens = bench.sizes.of_lm(), int(case.split()[0])
    calls = sweeps(sizes, tokens)
    stacked, model = (
        Model(sizes, key=jr.key(0)),
        models.Transformer(sizes, key=jr.key(0)),
    )
    layers = [
        jax.tree.map(lambda x, i=i: x[i] if eqx.is_array(x) else x, stacked.layers)
        for i in range(sizes.layers)
    ]
    model = eqx.tree_at(lambda m: m.layers, model, layers)
    clean, corrupted = jr.normal(jr.key(1), (2, tokens, sizes.width))
    theirs = peer.sweep(model, clean, corrupted, metric_of_torch)
    assert_same("TransformerLens", {"metric": calls["peex"]()}, {"metric": theirs()})
    effort = bench.effort._replace(least=min(bench.effort.least, 3))
    times = race({"peex": calls["peex"], "TransformerLens": theirs}, effort)
    ratio = times.ratio("peex", "TransformerLens")
    loop = f"its loop takes {duration(times.median('TransformerLens'))}"
    return Outcome(
        {"peex": f"{1 / ratio:.1f} times as fast", "TransformerLens": loop},
        ratio,
        {},
        {"seconds": {name: times.median(name) for name in times.rounds}},
    )


def metric_of_torch(out: Any) -> Any:
    """That of the others, of a tensor."""
    return out[-1, : out.shape[1] // 2].sum()


_CASES = ("5 tokens", "14 tokens")

FIGURES = (
    Figure("sweep over layers and tokens", _CASES, "by hand x 1.05", 1.05, sweep_time),
    Figure(
        "sweep next to a loop of jitted forwards",
        _CASES[:1],
        "7 times as fast",
        1 / 7,
        loop_time,
    ),
    Figure(
        "sweep next to a loop of jitted forwards",
        _CASES[1:],
        "3.5 times as fast",
        1 / 3.5,
        loop_time,
    ),
    Figure(
        "sweep next to TransformerLens's own loop",
        _CASES[:1],
        "10 times as fast",
        1 / 10,
        peer_time,
    ),
)
