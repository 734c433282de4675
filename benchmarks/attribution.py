"""The figure of attribution: two forward passes and a backward one, for all places."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

import peex as px

from . import models
from .contestants import assert_same
from .patching import metric, Model
from .rows import Bench, duration, Figure, Outcome
from .timing import race


def _forward(
    model: Model, x: Float[Array, "t d"], zeros: Float[Array, "layers t d"]
) -> tuple[Array, Array]:
    """The metric, and what each layer returns, with zeros added to that."""

    def body(x: Array, step: Any) -> tuple[Array, Array]:
        layer, zero = step
        x = layer(x) + zero
        return x, x

    out, values = jax.lax.scan(body, x, (model.layers, zeros))
    return metric(out), values


def _by_hand(model: Model, clean: Array, corrupted: Array, zeros: Array) -> Array:
    _, given = _forward(model, clean, zeros)
    run = jax.value_and_grad(_forward, argnums=2, has_aux=True)
    (base, values), gradient = run(model, corrupted, zeros)
    return base + jnp.sum((given - values) * gradient, -1)


def _by_peex(model: Model, clean: Array, corrupted: Array) -> Array:
    return px.patching.attribution(
        model, clean, corrupted, metric, where="layers", axes="layer token _"
    )["layers"]


def contestants(sizes: models.Sizes, tokens: int) -> dict[str, Callable[[], Any]]:
    """One forward pass, attribution by hand, and by peex: all compiled, of flat arrays.

    They are asserted to agree.
    """
    leaves, structure = jax.tree.flatten(Model(sizes, key=jr.key(0)))
    clean, corrupted = jr.normal(jr.key(1), (2, tokens, sizes.width))
    zeros = jnp.zeros((sizes.layers, tokens, sizes.width))

    def compiled(fn: Callable[..., Any], *args: Array) -> Callable[[], Any]:
        run = lambda leaves, *args: fn(structure.unflatten(leaves), *args)
        made = jax.jit(run).lower(leaves, *args).compile()
        return lambda: made(leaves, *args)

    made = {
        "unhooked": compiled(lambda model, x: metric(model(x)), clean),
        "by hand": compiled(_by_hand, clean, corrupted, zeros),
        "peex": compiled(_by_peex, clean, corrupted),
    }
    results = {name: {"metric": made[name]()} for name in ("by hand", "peex")}
    assert_same("peex", results["by hand"], results["peex"])
    return made


def in_forwards(bench: Bench, case: str) -> Outcome:
    """Of one forward pass."""
    return _measured(bench, case, "unhooked")


def next_to_by_hand(bench: Bench, case: str) -> Outcome:
    """Of the same written by hand."""
    return _measured(bench, case, "by hand")


def _measured(bench: Bench, case: str, base: str) -> Outcome:
    calls = contestants(bench.sizes, int(case.split()[0]))
    times = race(calls, bench.effort)
    ratios = {name: times.ratio(name, "unhooked") for name in ("peex", "by hand")}
    return Outcome(
        {
            "unhooked": duration(times.median("unhooked")),
            **{name: f"{ratio:.2f}" for name, ratio in ratios.items()},
        },
        times.ratio("peex", base),
        {},
        {"seconds": {name: times.median(name) for name in calls}},
    )


_NAME = "attribution over layers and tokens"

FIGURES = (
    Figure(_NAME, ("5 tokens", "14 tokens"), "3 forwards", 3.0, in_forwards),
    # The backward pass of longer inputs takes longer than a forward one, by hand too.
    Figure(_NAME, ("64 tokens",), "by hand x 1.05", 1.05, next_to_by_hand),
)
