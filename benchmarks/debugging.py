"""Figures of looking for what isn't finite, in a training step and once."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.experimental import checkify
from jaxtyping import Array

import peex as px
from peex.debug.recorded import Question, record_compiled

from . import models
from .contestants import Call
from .rows import Bench, duration, Figure, Outcome
from .timing import Program, race


MODELS = {
    "transformer": models.Transformer,
    "scanned transformer": models.ScannedTransformer,
}


def loss(model: Any, xs: Array) -> Array:
    return jnp.mean(jax.vmap(model)(xs) ** 2)


def made(bench: Bench, case: str) -> tuple[Any, Array]:
    sizes = bench.sizes
    model = MODELS[case](sizes, key=jr.key(0))
    return model, jr.normal(jr.key(1), (sizes.batch, sizes.tokens, sizes.width))


def _watched(model: Any, xs: Array, on: Array) -> Any:
    watch = px.debug.FiniteLog(on)
    step = px.value_and_grad(loss, forward=watch, backward=watch)
    (value, logs), grads = step(model, xs)
    return value, grads, px.debug.first_nonfinite(logs)


def watch(bench: Bench, case: str, on: bool) -> Outcome:
    """A step of which all sites are watched, in both passes."""
    model, xs = made(bench, case)
    calls = {
        "unhooked": Call(eqx.filter_value_and_grad(loss), (model, xs)).compiled(),
        "peex": Call(_watched, (model, xs, jnp.array(on))).compiled(),
    }
    assert calls["peex"].result()[2] == -1
    return _outcome(calls, bench)


def watch_on(bench: Bench, case: str) -> Outcome:
    return watch(bench, case, True)


def watch_off(bench: Bench, case: str) -> Outcome:
    return watch(bench, case, False)


def _question(model: Any, xs: Array) -> Question:
    calls = px.report(model, xs, where="**", method=loss)
    keys = tuple(key for site in calls for key in (site, f"{site}:in"))
    return Question(loss, keys, keys, True)


def _checked(model: Any, xs: Array) -> Any:
    step = checkify.checkify(
        eqx.filter_value_and_grad(loss), errors=checkify.float_checks
    )
    return step(model, xs)


def one_run(bench: Bench, case: str) -> Outcome:
    """The compiled program of `find_nonfinite`, without the search for an operation."""
    model, xs = made(bench, case)
    question = _question(model, xs)
    recorded = lambda model, xs: record_compiled(question, model, (xs,))
    checked = lambda model, xs: _checked(model, xs)
    calls = {
        "unhooked": Call(eqx.filter_value_and_grad(loss), (model, xs)).compiled(),
        "peex": Call(recorded, (model, xs)).compiled(),
        "checkify": Call(checked, (model, xs)).compiled(),
    }
    return _outcome(calls, bench, check_bytes=False)


def _outcome(calls: dict[str, Any], bench: Bench, check_bytes: bool = True) -> Outcome:
    for call in calls.values():
        jax.block_until_ready(call())
    times = race(calls, bench.effort)
    bytes_ = {n: Program(c.program).temporary_bytes for n, c in calls.items()}
    ratios = {n: times.ratio(n, "unhooked") for n in calls if n != "unhooked"}
    checks = {"temporary bytes": bytes_["peex"] <= 1.05 * bytes_["unhooked"]}
    return Outcome(
        {"unhooked": duration(times.median("unhooked"))}
        | {name: f"{ratio:.2f}" for name, ratio in ratios.items()},
        ratios["peex"],
        checks if check_bytes else {},
        {
            "seconds": {n: times.median(n) for n in calls},
            "ratios": ratios,
            "temporary_bytes": bytes_,
        },
    )


def first_call(bench: Bench, case: str) -> Outcome:
    """Tracing, compiling and running, of `find_nonfinite` and of the step itself; each
    time of another function, of which nothing is kept.
    """
    model, xs = made(bench, case)

    def fresh() -> Callable[..., Any]:
        return lambda model, xs: loss(model, xs)

    def unhooked() -> Any:
        return eqx.filter_jit(eqx.filter_value_and_grad(fresh()))(model, xs)

    def peex() -> Any:
        return px.debug.find_nonfinite(model, xs, method=fresh())

    def seconds(call: Callable[[], Any]) -> float:
        start = time.perf_counter()
        jax.block_until_ready(jax.tree.leaves(call()))
        return time.perf_counter() - start

    calls = {"unhooked": unhooked, "peex": peex}
    for call in calls.values():
        call()
    rounds = [
        {name: seconds(call) for name, call in calls.items()}
        for _ in itertools.repeat(None, bench.effort.least)
    ]
    ratios = sorted(r["peex"] / r["unhooked"] for r in rounds)
    ratio = ratios[len(ratios) // 2]
    plain = sorted(r["unhooked"] for r in rounds)[len(rounds) // 2]
    return Outcome(
        {"unhooked": duration(plain), "peex": f"{ratio:.2f}"},
        ratio,
        {},
        {"ratios": ratios, "seconds": {"unhooked": plain}},
    )


_EVERY = tuple(MODELS)

FIGURES = (
    Figure(
        "a step watched by FiniteLog, on",
        _EVERY,
        "1.05, temporary bytes too",
        1.05,
        watch_on,
    ),
    Figure(
        "a step watched by FiniteLog, off",
        _EVERY,
        "1.02, temporary bytes x 1.05",
        1.02,
        watch_off,
    ),
    Figure("find_nonfinite, the compiled run", _EVERY, "1.3", 1.3, one_run),
    Figure("find_nonfinite, the first call", _EVERY, "2", 2.0, first_call),
)
