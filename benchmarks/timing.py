"""How things are measured: times side by side, and what a compiled program holds."""

import gc
import math
import re
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax


class Effort(NamedTuple):
    """How long a measurement may take: as many rounds as fit into `seconds` for each
    contestant, but at least `least` and at most `most`.
    """

    seconds: float
    least: int
    most: int


FULL = Effort(0.8, 7, 200)
QUICK = Effort(0.2, 3, 20)

# A call that takes less is repeated within a round, so that the clock can resolve it.
_SHORTEST = 2e-4


class Times(NamedTuple):
    """Seconds for each contestant in each round."""

    rounds: Mapping[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.rounds[name])

    def ratio(self, name: str, base: str) -> float:
        """The median over the rounds of the ratio within a round: what slows the
        machine down for a while, slows both.
        """
        pairs = zip(self.rounds[name], self.rounds[base], strict=True)
        return statistics.median(a / b for a, b in pairs)


def race(calls: Mapping[str, Callable[[], Any]], effort: Effort) -> Times:
    """Times each call once in every round, in an order that changes from round to
    round. Each has been called before, to warm up.
    """
    repeats = {name: _repeats(call) for name, call in calls.items()}
    names, rounds = list(calls), {name: [] for name in calls}
    gc.collect()
    gc.disable()
    try:
        end = time.perf_counter() + effort.seconds * len(calls)
        for i in range(effort.most):
            if i >= effort.least and time.perf_counter() > end:
                break
            shift = i % len(names)
            order = names[shift:] + names[:shift]
            for name in order if i % 2 else reversed(order):
                rounds[name].append(_time(calls[name], repeats[name]))
            if i % 10 == 9:
                gc.collect()
    finally:
        gc.enable()
    return Times(rounds)


def _time(call: Callable[[], Any], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        jax.block_until_ready(call())
    return (time.perf_counter() - start) / repeats


def _repeats(call: Callable[[], Any]) -> int:
    _time(call, 1)
    return max(1, math.ceil(_SHORTEST / _time(call, 1)))


_METADATA = re.compile(r", metadata=\{[^{}]*\}")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = ", re.MULTILINE)
_ARRAY = re.compile(r"\b[a-z]+\d+\[([\d,]+)\]")


class Program(NamedTuple):
    """A compiled program."""

    compiled: Any

    @property
    def text(self) -> str:
        """Its optimized HLO without metadata: the names of functions, and where in the
        source something comes from.
        """
        text = _METADATA.sub("", self.compiled.as_text())
        # Tables of the same, which newer versions put in front.
        text = re.sub(r"^HloModule [^\s,]+", "HloModule", text)
        return re.sub(
            r"^(FileNames|FunctionNames|FileLocations|StackFrames)\n(.+\n)*\n?",
            "",
            text,
            flags=re.MULTILINE,
        )

    @property
    def ops(self) -> int:
        """How many instructions, in all of its computations."""
        return len(_INSTRUCTION.findall(self.text))

    @property
    def temporary_bytes(self) -> int:
        return self.compiled.memory_analysis().temp_size_in_bytes

    @property
    def shapes(self) -> set[tuple[int, ...]]:
        """The shapes of all arrays in it."""
        found = _ARRAY.findall(self.text)
        return {tuple(map(int, dims.split(","))) for dims in found}


_COMPILED = "/jax/core/compile/backend_compile_duration"


def compilations(call: Callable[[], Any]) -> int:
    """How many programs are compiled in a call."""
    count = 0

    def listen(event: str, duration_secs: float, **kwargs: Any) -> None:
        del duration_secs, kwargs
        nonlocal count
        count += event == _COMPILED

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        jax.block_until_ready(call())
        seen = count
        jax.jit(lambda: 0)()
        assert count > seen, "JAX doesn't tell of compilations by this name"
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return seen
