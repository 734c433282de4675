"""Figures of tracing: what hooks add to it, and how that grows."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array

import peex as px

from . import models
from .contestants import Call, Contestant
from .rows import Bench, compare, duration, Figure, Outcome
from .timing import race


def forward(bench: Bench, case: str) -> Outcome:
    return _ratio(bench, case, "logged", "plain")


def backward(bench: Bench, case: str) -> Outcome:
    return _ratio(bench, case, "step", "plain_step")


def _ratio(bench: Bench, case: str, hooked: str, plain: str) -> Outcome:
    def lower(contestant: Contestant, name: str) -> Callable[[], Any] | None:
        call = getattr(contestant, name)
        return call.lower() if contestant.staged and call is not None else None

    comparison = compare(bench.contestants(case), hooked, plain, lower, bench.effort)
    return Outcome(
        comparison.cells,
        comparison.ratio("peex"),
        comparison.against_peers(),
        comparison.data,
    )


def both_logs(bench: Bench, case: str) -> Outcome:
    """A step with the logs of activations and of cotangents, of a whole batch."""
    log_fn = {"values": px.IdentityLog(), "statistics": px.MeanStdLog()}[case]
    steps = vit_steps(bench.sizes, log_fn)
    times = race({name: call.lower() for name, call in steps.items()}, bench.effort)
    ratio = times.ratio("value_and_grad", "unhooked")
    return Outcome(
        {
            "unhooked": duration(times.median("unhooked")),
            "value_and_grad": f"{ratio:.2f}",
        },
        ratio,
        {},
        {"seconds": {name: times.median(name) for name in steps}},
    )


def vit_steps(sizes: models.Sizes, log_fn: px.AbstractLog) -> dict[str, Call]:
    """A step of training a ViT: the loss, and its gradient."""
    model = models.ViT(sizes, key=jr.key(0))
    images = jr.normal(jr.key(1), (sizes.batch, 3, 16, 16))
    args = (model, images, jnp.arange(sizes.batch) % 10)
    step = px.value_and_grad(_cross_entropy, backward=log_fn, forward=log_fn)
    return {
        "unhooked": Call(eqx.filter_value_and_grad(_cross_entropy), args),
        "value_and_grad": Call(step, args),
    }


def _cross_entropy(model: models.ViT, images: Array, labels: Array) -> Array:
    logits = jax.nn.log_softmax(jax.vmap(model)(images))
    return -jnp.mean(jnp.take_along_axis(logits, labels[:, None], 1))


def scanned_depth(bench: Bench, case: str) -> Outcome:
    """64 layers against 4: the parameters are larger, the program is the same."""
    del case
    calls = {}
    for depth in (4, 16, 64):
        sizes = bench.sizes._replace(layers=depth)
        model = models.ScannedTransformer(sizes, key=jr.key(0))
        x = jnp.zeros((sizes.tokens, sizes.width))
        calls[f"unhooked {depth}"] = _run(model, x).lower()
        calls[f"peex {depth}"] = _run(px.ForwardHook(model), x).lower()
    times = race(calls, bench.effort)
    growth = {name: times.ratio(f"{name} 64", f"{name} 4") for name in _NAMES}
    cells = {name: f"x {growth[name]:.2f}" for name in _NAMES}
    seconds = {name: times.median(name) for name in calls}
    return Outcome(cells, growth["peex"], {}, {"seconds": seconds, "growth": growth})


def unrolled_depth(bench: Bench, case: str) -> Outcome:
    """1000 Linears; and, for the growth, 250."""
    del case
    calls = {}
    for depth in (250, 500, 1000):
        model = models.ListedChain(models.linears(depth, 4))
        x = jnp.zeros(4)
        calls[f"unhooked {depth}"] = _run(model, x).lower()
        calls[f"peex {depth}"] = _run(px.ForwardHook(model), x).lower()
    times = race(calls, bench.effort)
    growth = {n: times.ratio(f"{n} 1000", f"{n} 250") / 4 for n in _NAMES}
    ratio = times.ratio("peex 1000", "unhooked 1000")
    return Outcome(
        {
            "unhooked": duration(times.median("unhooked 1000")),
            "peex": f"{ratio:.2f}, growth {growth['peex']:.2f}",
        },
        ratio,
        {"linear from 250 to 1000 sites": growth["peex"] <= 1.2 * growth["unhooked"]},
        {"seconds": {name: times.median(name) for name in calls}, "growth": growth},
    )


def report(bench: Bench, case: str) -> Outcome:
    """`px.report` next to a trace of the model alone, without lowering."""
    model = models.Transformer(bench.sizes, key=jr.key(0))
    x = jnp.zeros((bench.sizes.tokens, bench.sizes.width))

    def trace() -> None:
        # A new function in each round, which JAX hasn't traced before.
        eqx.filter_make_jaxpr(lambda model, x: model(x))(model, x)

    calls = {"unhooked": trace, "peex": lambda: px.report(model, x) and None}
    times = race(calls, bench.effort)
    ratio = times.ratio("peex", "unhooked")
    return Outcome(
        {"unhooked": duration(times.median("unhooked")), "peex": f"{ratio:.2f}"},
        ratio,
        {},
        {"seconds": {name: times.median(name) for name in calls}},
    )


_NAMES = ("unhooked", "peex")


def _run(model: eqx.Module, x) -> Call:
    return Call(lambda model, x: model(x), (model, x))


_EVERY = tuple(models.CASES)

FIGURES = (
    Figure(
        "trace and lower, forward",
        _EVERY,
        "1.25, ahead of every peer",
        1.25,
        forward,
    ),
    Figure(
        "trace and lower, gradient",
        _EVERY,
        "1.5, ahead of every peer",
        1.5,
        backward,
    ),
    Figure(
        "trace and lower, gradient of a ViT of 30 blocks, both logs",
        ("values", "statistics"),
        "4",
        4.0,
        both_logs,
    ),
    Figure(
        "trace and lower, scan of 64 layers / of 4",
        ("scanned transformer",),
        "constant",
        1.1,
        scanned_depth,
    ),
    Figure(
        "trace and lower, 1000 sites",
        ("unrolled chain",),
        "1.3, linear",
        1.3,
        unrolled_depth,
    ),
    Figure("px.report / one trace", ("transformer",), "2", 2.0, report),
)
