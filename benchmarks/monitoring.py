"""Figures of a training step whose statistics are kept."""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array

import peex as px

from .contestants import Call
from .debugging import loss, made, MODELS
from .rows import Bench, duration, Figure, Outcome
from .timing import Program, race


def monitored(bench: Bench, case: str, on: bool) -> Outcome:
    """A step of which the usual statistics of all sites are kept, and those of the
    cotangents that tell whether gradients vanish or explode.
    """
    model, xs = made(bench, case)
    monitor = px.monitoring.Monitor(loss, backward=px.monitoring.Stats("rms", "max"))
    state = monitor.init(model, xs)

    def step(model: Any, state: Any, xs: Array, on: Array) -> Any:
        return monitor(model, state, xs, on=on)

    given = (model, state, xs, jax.numpy.array(on))
    calls = {
        "unhooked": Call(eqx.filter_value_and_grad(loss), (model, xs)).compiled(),
        "peex": Call(step, given).compiled(),
    }
    for call in calls.values():
        jax.block_until_ready(call())
    (_, seen), _ = calls["peex"].result()
    assert int(seen.steps) == on
    times = race(calls, bench.effort)
    bytes_ = {n: Program(c.program).temporary_bytes for n, c in calls.items()}
    ratio = times.ratio("peex", "unhooked")
    return Outcome(
        {"unhooked": duration(times.median("unhooked")), "peex": f"{ratio:.2f}"},
        ratio,
        {},
        {
            "seconds": {n: times.median(n) for n in calls},
            "ratios": {"peex": ratio},
            "temporary_bytes": bytes_,
            "state_bytes": sum(x.nbytes for x in jax.tree.leaves(state)),
        },
    )


def monitored_on(bench: Bench, case: str) -> Outcome:
    return monitored(bench, case, True)


def monitored_off(bench: Bench, case: str) -> Outcome:
    return monitored(bench, case, False)


_EVERY = tuple(MODELS)

FIGURES = (
    Figure("a step watched by Monitor, on", _EVERY, "1.10", 1.10, monitored_on),
    Figure("a step watched by Monitor, off", _EVERY, "1.02", 1.02, monitored_off),
)
