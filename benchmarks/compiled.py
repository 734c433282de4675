"""Figures of compiled programs: that hooks cost nothing, and logs what their values
cost.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.random as jr

import peex as px

from . import models
from .contestants import assert_same, Call, Compiled, Contestant, loss_of
from .rows import Bench, compare, Comparison, Figure, Outcome
from .timing import Program, race, Times


def identity_forward(bench: Bench, case: str) -> Outcome:
    unhooked = bench.contestants(case)["unhooked"]
    model, x = unhooked.plain.args
    hooked = px.ForwardHook(model, log_fn=None)
    call = Call(lambda hooked, x: hooked(x)[0], (hooked, x))
    return _identical(unhooked.ready("plain"), call.compiled())


def identity_backward(bench: Bench, case: str) -> Outcome:
    unhooked = bench.contestants(case)["unhooked"]
    model, x = unhooked.plain.args
    hooked = px.BackwardHook(model, log_fn=None)
    step = eqx.filter_value_and_grad(lambda hooked, x: loss_of(hooked(x)))
    call = Call(step, (hooked, x))
    return _identical(unhooked.ready("plain_step"), call.compiled())


def _identical(plain: Any, hooked: Any) -> Outcome:
    a, b = Program(plain.program), Program(hooked.program)
    same = a.text == b.text
    cells = {"unhooked": f"{a.ops} ops", "peex": "same" if same else f"{b.ops} ops"}
    data = {"ops": {"unhooked": a.ops, "peex": b.ops}}
    return Outcome(cells, b.ops / a.ops, {"the HLO is identical": same}, data)


def run_time(bench: Bench, case: str) -> Outcome:
    def ready(contestant: Contestant, name: str) -> Any:
        # What can't be compiled has a row of its own, that of eager calls.
        return contestant.ready(name) if contestant.staged else None

    comparison = compare(
        bench.contestants(case), "logged", "plain", ready, bench.effort
    )
    ops = {name: p.ops for name, p in _programs(comparison).items()}
    sizes = {name: p.temporary_bytes for name, p in _programs(comparison).items()}
    return Outcome(
        comparison.cells,
        comparison.ratio("peex", "by hand"),
        {
            "as many ops as by hand": ops["peex"] == ops["by hand"],
            "as many temporary bytes": sizes["peex"] == sizes["by hand"],
        },
        comparison.data | {"ops": ops, "temporary_bytes": sizes},
    )


def step_time(bench: Bench, case: str) -> Outcome:
    comparison = compare(
        bench.contestants(case), "step", "plain_step", Contestant.ready, bench.effort
    )
    ops = {name: p.ops for name, p in _programs(comparison).items()}
    sizes = {name: p.temporary_bytes for name, p in _programs(comparison).items()}
    one_call = comparison.ratio("value_and_grad", "by hand")
    return Outcome(
        comparison.cells,
        comparison.ratio("peex", "by hand"),
        {
            "temporary bytes": sizes["peex"] <= 1.05 * sizes["by hand"],
            "value_and_grad's time": one_call <= 1.05,
            "value_and_grad's bytes": (
                sizes["value_and_grad"] <= 1.05 * sizes["by hand"]
            ),
        },
        comparison.data | {"ops": ops, "temporary_bytes": sizes},
    )


def _programs(comparison: Comparison) -> dict[str, Program]:
    return {
        name: Program(call.program)
        for name, call in comparison.calls.items()
        if isinstance(call, Compiled)
    }


_STATISTICS = {
    "MeanStdLog": (px.MeanStdLog(), models.mean_std),
    "HistogramLog": (px.HistogramLog(models.EDGES), models.histogram),
}


def statistics_in_scan(bench: Bench, case: str) -> Outcome:
    log_fn, statistics = _STATISTICS[case]
    sizes = bench.sizes
    model = models.ScannedTransformer(sizes, key=jr.key(0))
    xs = jr.normal(jr.key(1), (sizes.batch, sizes.tokens, sizes.width))
    batched = lambda model, xs: jax.vmap(model)(xs)
    hooked = px.ForwardHook(model, log_fn=log_fn, method=batched)
    by_hand = jax.vmap(
        lambda model, x: models.statistics_by_hand(model, x, statistics),
        (None, 0),
        (0, 1),
    )
    calls = {
        "unhooked": Call(batched, (model, xs)).compiled(),
        "peex": Call(lambda hooked, xs: hooked(xs), (hooked, xs)).compiled(),
        "by hand": Call(lambda *args: by_hand(*args), (model, xs)).compiled(),
    }
    out, log = calls["peex"].result()
    as_tuple = lambda value: tuple(value) if isinstance(value, px.MeanStd) else value
    log = {key: as_tuple(value) for key, value in log.items()}
    assert_same("statistics", (out, log), calls["by hand"].result())

    programs = {name: Program(call.program) for name, call in calls.items()}
    whole = whole_buffers(programs["peex"], programs["unhooked"], sizes)
    return _statistics(race(calls, bench.effort), programs, whole)


def whole_buffers(
    hooked: Program, unhooked: Program, sizes: models.Sizes
) -> list[tuple[int, ...]]:
    """The shapes that a hooked program alone has, and that are large enough to be the
    values of a site at all layers: `[layers, batch, tokens, width]`, for some width.
    """
    size = sizes.layers * sizes.batch * sizes.tokens * sizes.width
    added = hooked.shapes - unhooked.shapes
    return [s for s in added if s[0] == sizes.layers and math.prod(s) >= size]


def _statistics(
    times: Times, programs: dict[str, Program], whole: list[tuple[int, ...]]
) -> Outcome:
    bytes_ = {name: p.temporary_bytes for name, p in programs.items()}
    ratio = lambda name: bytes_[name] / bytes_["unhooked"]
    names = ("peex", "by hand")
    return Outcome(
        {"unhooked": f"{bytes_['unhooked'] / 2**20:.2f} MiB"}
        | {name: f"{ratio(name):.2f}" for name in names},
        ratio("peex"),
        {"no buffer of all values": not whole},
        {
            "temporary_bytes": bytes_,
            "whole_buffers": whole,
            "ratios": {name: times.ratio(name, "unhooked") for name in names},
        },
    )


_EVERY = tuple(models.CASES)

FIGURES = (
    Figure(
        "identity hooks, no log, forward: ops",
        _EVERY,
        "identical HLO, metadata apart",
        1.0,
        identity_forward,
    ),
    Figure(
        "identity hooks, no log, gradient: ops",
        _EVERY,
        "identical HLO, metadata apart",
        1.0,
        identity_backward,
    ),
    Figure(
        "run time, all sites logged",
        _EVERY,
        "by hand x 1.02; same ops and bytes",
        1.02,
        run_time,
    ),
    Figure(
        "run time of a step, all cotangents logged",
        _EVERY,
        "by hand x 1.05, temporary bytes too",
        1.05,
        step_time,
    ),
    Figure(
        "temporary bytes, statistics in a scan",
        tuple(_STATISTICS),
        "1.05; no buffer of all values",
        1.05,
        statistics_in_scan,
    ),
)
