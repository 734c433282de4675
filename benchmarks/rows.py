"""What a figure is, and how contestants are compared: the parts of every row."""

from collections.abc import Callable
from typing import Any, NamedTuple

from . import models
from .contestants import Contestant, line_up, LineUp
from .timing import Effort, race, Times


class Outcome(NamedTuple):
    """What a measurement found.

    - `cells`: what is shown, by column.
    - `value`: what is compared with the limit; `checks`: what must hold besides.
    - `data`: numbers for the JSON: times in seconds, and sizes in bytes.
    """

    cells: dict[str, str]
    value: float
    checks: dict[str, bool]
    data: dict[str, Any]


class Figure(NamedTuple):
    """A row of the table for each of `cases`. `value` in what `measure` returns must
    be at most `limit` (`None`: it is only shown).
    """

    name: str
    cases: tuple[str, ...]
    target: str
    limit: float | None
    measure: Callable[["Bench", str], Outcome]


class Bench:
    """What the measurements share."""

    def __init__(self, effort: Effort, sizes: models.Sizes):
        self.effort = effort
        self.sizes = sizes
        self.line_ups: dict[str, LineUp] = {}

    def contestants(self, case: str) -> dict[str, Contestant]:
        """Those of a case, made and checked when they are first asked for."""
        if case not in self.line_ups:
            self.line_ups[case] = line_up(models.CASES[case](self.sizes))
        return self.line_ups[case].contestants


class Comparison(NamedTuple):
    """Times of contestants, each next to its own model without hooks.

    - `own`: those whose own model isn't the unhooked one.
    - `calls`: what was timed.
    """

    times: Times
    own: set[str]
    calls: dict[str, Any]

    def ratio(self, name: str, base: str | None = None) -> float:
        if base is None:
            base = f"{name}, plain" if name in self.own else "unhooked"
        return self.times.ratio(name, base)

    @property
    def ratios(self) -> dict[str, float]:
        names = [n for n in self.times.rounds if not n.endswith(", plain")]
        return {name: self.ratio(name) for name in names if name != "unhooked"}

    @property
    def cells(self) -> dict[str, str]:
        cells = {"unhooked": duration(self.times.median("unhooked"))}
        for name, ratio in self.ratios.items():
            cells[name] = f"{ratio:.2f}"
            if name in self.own:
                cells[name] += f" of {duration(self.times.median(f'{name}, plain'))}"
        return cells

    @property
    def data(self) -> dict[str, Any]:
        names = self.times.rounds
        return {
            "seconds": {name: self.times.median(name) for name in names},
            "rounds": len(self.times.rounds["unhooked"]),
            "ratios": self.ratios,
        }

    def against_peers(self) -> dict[str, bool]:
        """For each peer whether peex's ratio is at most that of the peer."""
        ours = ("peex", "value_and_grad", "by hand")
        return {
            f"behind {name}": self.ratio("peex") <= ratio
            for name, ratio in self.ratios.items()
            if name not in ours
        }


def compare(
    contestants: dict[str, Contestant],
    hooked: str,
    plain: str,
    prepare: Callable[[Contestant, str], Callable[[], Any] | None],
    effort: Effort,
) -> Comparison:
    """Races the calls in the field `hooked` of the contestants against those in the
    field `plain`.

    **Arguments:**

    - `prepare`: what is timed, for a contestant and a field; `None` for nothing.
    """
    calls: dict[str, Any] = {}
    own = set()
    for name, contestant in contestants.items():
        ready = prepare(contestant, plain if name == "unhooked" else hooked)
        if ready is None:
            continue
        calls[name] = ready
        if contestant.own:
            own.add(name)
            calls[f"{name}, plain"] = prepare(contestant, plain)
    return Comparison(race(calls, effort), own, calls)


def duration(seconds: float) -> str:
    for unit, scale in (("s", 1), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
