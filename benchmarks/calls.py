"""Figures of calls from Python: eager ones, dispatch, construction and import."""

import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.random as jr

import peex as px

from . import models
from .contestants import by_hand, Contestant, peex, unhooked
from .rows import Bench, compare, duration, Figure, Outcome
from .timing import compilations, Effort, race


def eager(bench: Bench, case: str) -> Outcome:
    def call(contestant: Contestant, name: str) -> Callable[[], Any] | None:
        if name == "logged" and contestant.eager is not None:
            return contestant.eager
        return getattr(contestant, name)

    comparison = compare(bench.contestants(case), "logged", "plain", call, bench.effort)
    return Outcome(
        comparison.cells,
        comparison.ratio("peex"),
        comparison.against_peers(),
        comparison.data,
    )


_STAGED_INSIDE = {
    "scanned transformer": models.ScannedTransformer,
    "transformer, jitted blocks": models.JittedTransformer,
}


def eager_staged_inside(bench: Bench, case: str) -> Outcome:
    model = _STAGED_INSIDE[case](bench.sizes, key=jr.key(0))
    x = jr.normal(jr.key(1), (bench.sizes.tokens, bench.sizes.width))
    hooked = px.ForwardHook(model)
    calls = {"unhooked": lambda: model(x), "peex": lambda: hooked(x)}
    for call in calls.values():
        jax.block_until_ready(call())
    compiled = {name: compilations(call) for name, call in calls.items()}
    times = race(calls, bench.effort)
    ratio = times.ratio("peex", "unhooked")
    return Outcome(
        {"unhooked": duration(times.median("unhooked")), "peex": f"{ratio:.2f}"},
        ratio,
        {"nothing compiled anew": compiled["peex"] == 0},
        {
            "seconds": {name: times.median(name) for name in calls},
            "compilations_in_second_call": compiled,
        },
    )


def _many_parameters() -> models.Case:
    """250 Linears of one number each: 500 parameters and hardly anything to compute."""
    sizes = models.TINY._replace(chain_width=1)
    return models.chain(250)(sizes)


def dispatch(bench: Bench, case: str) -> Outcome:
    """`eqx.filter_jit(lambda model, x: model(x))`, without a log."""
    made = _many_parameters()
    hooked = px.ForwardHook(made.model, log_fn=None)
    if case == "filter_jit(fn)(model, x)":
        jitted = eqx.filter_jit(lambda model, x: model(x))
        calls = {
            "unhooked": lambda: jitted(made.model, made.x),
            "peex": lambda: jitted(hooked, made.x),
        }
    else:
        plain, wrapped = eqx.filter_jit(made.model), eqx.filter_jit(hooked)
        calls = {"unhooked": lambda: plain(made.x), "peex": lambda: wrapped(made.x)}
    return _dispatch(calls, "unhooked", bench.effort)


def dispatch_logged(bench: Bench, case: str) -> Outcome:
    """The same, with 250 logged values."""
    del case
    made = _many_parameters()
    jitted = eqx.filter_jit(lambda call: call.fn(*call.args))
    contestants = {"unhooked": unhooked(made), "peex": peex(made)}
    calls = {
        name: lambda c=c: jitted(c.plain if c.logged is None else c.logged)
        for name, c in (contestants | {"by hand": by_hand(made)}).items()
    }
    return _dispatch(calls, "by hand", bench.effort)


def _dispatch(
    calls: dict[str, Callable[[], Any]], base: str, effort: Effort
) -> Outcome:
    times = race(calls, effort)
    ratios = {n: times.ratio(n, "unhooked") for n in calls if n != "unhooked"}
    return Outcome(
        {"unhooked": duration(times.median("unhooked"))}
        | {name: f"{ratio:.2f}" for name, ratio in ratios.items()},
        times.ratio("peex", base),
        {},
        {"seconds": {n: times.median(n) for n in calls}, "ratios": ratios},
    )


def _modules(count: int) -> models.ListedChain:
    """Distinct modules that share their arrays, which would take long to make."""
    linear = models.linears(1, 4)[0]
    return models.ListedChain([jax.tree.map(lambda x: x, linear) for _ in range(count)])


def construct(bench: Bench, case: str) -> Outcome:
    """In milliseconds."""
    wrapper = {"ForwardHook": px.ForwardHook, "BackwardHook": px.BackwardHook}[case]
    small, large = _modules(500), _modules(5000)
    calls = {"500": lambda: wrapper(small), "5000": lambda: wrapper(large)}
    times = race(calls, bench.effort)
    growth = times.ratio("5000", "500") / 10
    return Outcome(
        {"peex": f"{duration(times.median('500'))}, growth {growth:.2f}"},
        times.median("500") * 1e3,
        {"nothing quadratic up to 5000": growth < 2},
        {"seconds": {name: times.median(name) for name in calls}, "growth": growth},
    )


_IMPORT = """
import time
import equinox
start = time.perf_counter()
import peex
print(time.perf_counter() - start)
"""


def import_time(bench: Bench, case: str) -> Outcome:
    """In milliseconds, in fresh processes (of which the first may write byte code)."""
    del case
    run = lambda: subprocess.run(
        [sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=True
    )
    run()
    seconds = [float(run().stdout) for _ in range(bench.effort.least)]
    median = statistics.median(seconds)
    return Outcome({"peex": duration(median)}, median * 1e3, {}, {"seconds": seconds})


FIGURES = (
    Figure(
        "eager call",
        ("chain 32", "chain 128"),
        "1.5, ahead of every peer",
        1.5,
        eager,
    ),
    Figure("eager call", ("transformer", "GRU"), "", None, eager),
    Figure(
        "eager, second call, scan or jit inside",
        tuple(_STAGED_INSIDE),
        "1.5, no compilation",
        1.5,
        eager_staged_inside,
    ),
    Figure(
        "dispatch of a jitted call, 500 parameters",
        ("filter_jit(fn)(model, x)", "filter_jit(model)(x)"),
        "1.1",
        1.1,
        dispatch,
    ),
    Figure(
        "dispatch of a jitted call, 250 values logged",
        ("filter_jit(fn)(model, x)",),
        "",
        None,
        dispatch_logged,
    ),
    Figure(
        "constructing a wrapper over 500 modules",
        ("ForwardHook", "BackwardHook"),
        "5 ms; to 5000 nothing quadratic",
        5.0,
        construct,
    ),
    Figure("import peex after equinox", ("",), "100 ms", 100.0, import_time),
)
