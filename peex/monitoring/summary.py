"""What a window has come to: numbers by name."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._hooks.moments import MomentsEntry
from .._log.keys import leaf_name
from .._show.shown import AbstractShown
from .._table import Column, html, Table, text
from .._text import plural
from .state import ARGUMENTS, MonitorState, Part, Slot
from .windows import Window


class Histogram(NamedTuple):
    """How many elements lie between edges, as a [`peex.HistogramLog`][] counts them:
    one count more than there are edges.
    """

    counts: tuple[int, ...]
    edges: tuple[float, ...]


class Summary(AbstractShown, dict[str, Any]):
    """What a [`peex.monitoring.Monitor`][] has seen in a window: a dict from names to
    Python numbers (and [`peex.monitoring.Histogram`][]s). Printed, it is a table for
    all sites with the same statistics.

    A name is the key of the site and that of the statistic, as `"layers.0/rms"`; with
    `"[3]"` behind the key for each layer of a stack, as `"layers.attn[3]/rms"`; and
    behind that, where a value is several arrays, which of them, as `"lstm/0/rms"`.
    Those of cotangents begin with `"backward/"`. Those of parameters are the path of
    the parameter, as `"layers.0.weight/update_over_weight"`. Where nothing was
    recorded, a number is NaN.

    **Attributes:**

    - `steps`: how many steps the window has.
    """

    def __init__(self, numbers: Mapping[str, Any] | None = None, steps: int = 0):
        super().__init__(numbers or {})
        self.steps = steps

    def rows(self) -> dict[str, dict[str, Any]]:
        """The statistics by site."""
        found: dict[str, dict[str, Any]] = {}
        for name, value in self.items():
            site, _, statistic = name.rpartition("/")
            found.setdefault(site, {})[statistic] = value
        return found

    def _text(self, fold: bool | None, width: int) -> str:
        tables = (text(table.folded(fold), width) for table in self._tables())
        return "\n\n".join([*tables, self._steps])

    def _html(self, fold: bool | None) -> str:
        tables = (html(table.folded(fold)) for table in self._tables())
        return "".join([*tables, f"<div>{self._steps}</div>"])

    @property
    def _steps(self) -> str:
        return plural(self.steps, "step")

    def _tables(self) -> list[Table]:
        """One for all sites with the same statistics."""
        alike: dict[tuple[str, ...], list[str]] = {}
        rows = self.rows()
        for site, row in rows.items():
            names = tuple(n for n in row if not isinstance(row[n], Histogram))
            alike.setdefault(names, []).append(site)
        numbers = lambda names: [Column(name, right=True) for name in names]
        cells = lambda names, row: [_shown(row[name]) for name in names]
        return [
            Table(
                [Column("site", flexible=True), *numbers(names)],
                [[site, *cells(names, rows[site])] for site in sites],
            )
            for names, sites in alike.items()
        ]


def _shown(x: float | int) -> str:
    return f"{x:.4g}"


def summary_of(state: MonitorState) -> Summary:
    """The numbers of a state that is known."""
    sites, parameters = _windows(state.sites), _windows(state.parameters)
    inputs = dict(state.inputs)
    numbers: dict[str, Any] = {}
    for slot, windows in (*sites.items(), *parameters.items()):
        if slot.name.startswith(ARGUMENTS):
            continue
        given = f"{ARGUMENTS}{inputs[slot.name]}" if slot.name in inputs else None
        for index, window in windows.items():
            arguments = [
                found[index if index in found else ()]
                for other, found in sites.items()
                if other.name == given
            ]
            name = leaf_name(slot.name, slot.path, index)
            for statistic, value in statistics_of(window, arguments).items():
                numbers[f"{name}/{statistic}"] = value
    return Summary(numbers, int(state.steps))


def _windows(part: Part) -> dict[Slot, dict[tuple[int, ...], Window]]:
    """The window of each slot, and of each layer of a stack."""
    found: dict[Slot, dict[tuple[int, ...], Window]] = {s: {} for s in part.slots}
    for window, group in zip(part.windows, part.groups, strict=True):
        sizes = np.shape(window.counts["size"])[1 : 1 + len(group.kept)]
        for i, slot in enumerate(group.slots):
            for index in np.ndindex(*sizes):
                at = (i, *index)
                found[slot][index] = jtu.tree_map(lambda x, at=at: x[at], window)
    return found


def statistics_of(window: Window, arguments: Sequence[Window] = ()) -> dict[str, Any]:
    """The statistics of one array, in the order in which they are wanted; `arguments`
    are those of the call that returned it.
    """
    names, dtype, edges = window.wanted
    size = _count(window.counts["size"])
    found: dict[str, Any] = {}
    for name in names:
        if name in ("mean", "std", "rms", "max", "highest"):
            found[name] = _plain(name, window)
        elif name == "headroom":
            found[name] = _bits(_limit(dtype, "max"), _plain("max", window))
        elif name == "footroom":
            least = _limit(dtype, "smallest_normal")
            found[name] = _bits(_plain("rms", window), least)
        elif name == "nonfinite":
            found[name] = _count(window.counts[name])
        elif name == "entropy":
            found[name] = _mean(window.moments[name])
        elif name == "dead":
            dead = np.asarray(window.largest[name]) == 0
            found[name] = float(np.mean(dead)) if size else math.nan
        elif name == "out_over_in":
            given = _rms([one.moments["values"] for one in arguments])
            found[name] = _ratio(_plain("rms", window), given)
        elif name == "update_over_weight":
            sizes = (_rms([window.moments[x]]) for x in ("update", "weight"))
            found[name] = _ratio(*sizes)
        else:
            found[name] = _ratio(_count(window.counts[name]), size)
    if edges is not None:
        counts = tuple(_count(words) for words in window.counts["histogram"])
        found["histogram"] = Histogram(counts, edges)
    return found


def _plain(name: str, window: Window) -> float:
    if name in ("max", "highest"):
        x = window.largest[name]
        return float(x) if np.isfinite(x) else math.nan
    entry = window.moments["values"]
    if name == "rms":
        return _rms([entry])
    n = _count(entry.words)
    if name == "mean" or n == 0:
        return _mean(entry)
    return math.sqrt(float(entry.m2) / n)


def _mean(entry: MomentsEntry) -> float:
    return float(entry.mean) if _count(entry.words) else math.nan


def _rms(entries: Sequence[MomentsEntry]) -> float:
    """`sqrt(sum(x^2) / n)` of all elements of some arrays."""
    total, squares = 0, 0.0
    for entry in entries:
        n = _count(entry.words)
        total += n
        squares += float(entry.m2) + n * float(entry.mean) ** 2
    return math.sqrt(squares / total) if total else math.nan


def _ratio(a: float | int, b: float | int) -> float:
    return a / b if b else math.nan


def _count(words: Any) -> int:
    return int(words[0]) + (int(words[1]) << 32)


def _limit(dtype: Any, name: str) -> float:
    """The largest or smallest number of a dtype, if it has floating point."""
    floats = jnp.issubdtype(dtype, jnp.floating)
    return float(getattr(jnp.finfo(dtype), name)) if floats else math.nan


def _bits(above: float, below: float) -> float:
    """How many bits are between two numbers; infinitely many to zero."""
    if math.isnan(above) or math.isnan(below):
        return math.nan
    if above == 0 or below == 0:
        return math.inf if above else -math.inf
    return math.log2(above) - math.log2(below)
