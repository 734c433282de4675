"""Which calls of a sweep needn't be made: where nothing before is patched, what the run
has there is known.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from .._hooks.logged_call import LoggedCall
from .._log import Log
from .._log.axes import Axis
from .._log.order import numbered, Numbers
from .._report.calls import Call
from .._report.report import report
from .._report.result import Report
from .._sites.chosen import is_wild
from .._sites.keys import split_call
from .._wrappers.types import Method, Where
from .places import SweptSite


class Skipped(eqx.Module):
    """The calls that may be skipped. All steps that run, of all calls, are numbered in
    their order.

    - `calls`: by key, the numbers of the steps of a call.
    - `first`: for each place, the number of the first step that it may change.
    - `always`: the calls that are skipped wherever something is patched.
    """

    calls: dict[str, Int[Any, "..."]]
    first: Int[Any, " places"]
    always: frozenset[str] = eqx.field(static=True)

    @property
    def where(self) -> list[str]:
        """What chooses the calls."""
        return list(dict.fromkeys(split_call(key)[0] for key in self.calls))

    @property
    def order(self) -> Int[np.ndarray, " places"]:
        """The places, those that leave most to be skipped last."""
        return np.argsort(self.first, kind="stable").astype(np.int32)

    def hook(self, log: Log, chunk: Int[Array, " places"]) -> LoggedCall:
        """What skips the calls of a run with this log, where these places, which it is
        patched at, are behind.
        """
        first = jnp.min(jnp.asarray(self.first)[chunk])
        always = {key: np.ones(self.calls[key].shape, bool) for key in self.always}
        steps = {key: number < first for key, number in self.calls.items()}
        return LoggedCall(log, steps | always)


def itself(value: Any) -> Any:
    """What is logged of calls that may be skipped. (Not the log that is around: the two
    may be of the same sites, which isn't a mistake here.)
    """
    return value


class WithCalls(eqx.Module):
    """The metric of what a wrapper returns, and its log."""

    metric: Callable[[Any], Any]

    def __call__(self, out: tuple[Any, Log]) -> tuple[Any, Log]:
        value, log = out
        return self.metric(value), log


def skipped(
    report: Report, sites: Sequence[SweptSite], pre_hook: bool, at_once: bool
) -> Skipped | None:
    """What may be skipped in a run that is patched at these sites; `None` for nothing.

    **Arguments:**

    - `report`: of the run, with the sites as its entries.
    - `pre_hook`: whether the values are what goes into a call.
    - `at_once`: whether all places are patched in one chunk.
    """
    calls = report.entries
    patched = {(c.site, c.number) for c in (calls[site.key] for site in sites)}
    outer = list(_outermost(report.tree.children, patched, ()))
    numbers, _ = numbered([(call.axes, 1) for call in outer])
    by_step = {_key(c): _by_step(c, n) for c, n in zip(outer, numbers, strict=True)}
    around = {
        (inside.site, inside.number): call for call in outer for inside in call.walk()
    }
    first = np.full(sum(site.size for site in sites), np.iinfo(np.int32).max, np.int32)
    for site in sites:
        entry = calls[site.key]
        call = around.get((entry.site, entry.number))
        if call is None:
            before = np.int32(0)
        else:
            before = _spread(by_step[_key(call)], entry, site.shape)
            # What a call returns is patched behind it.
            is_output = (call.site, call.number) == (entry.site, entry.number)
            before = before + np.int32(is_output and not pre_hook)
        at, before = np.broadcast_arrays(site.places_of_each(), before)
        np.minimum.at(first, at[at >= 0], before[at >= 0])
    some, every = first.max(initial=0), first.min(initial=0)
    numbers_of = {_key(c): by_step[_key(c)] for c in outer if _can_be(c)}
    always = {key for key, n in numbers_of.items() if n.max() < every}
    can = {
        key: n
        for key, n in numbers_of.items()
        if key in always or (n.min() < some and not at_once)
    }
    return Skipped(can, first, frozenset(always)) if can else None


def reported(model: Any, method: Method, where: Where, args: tuple[Any, ...]) -> Report:
    """The report of a run, traced once for all with the same shapes."""
    return eqx.filter_eval_shape(_traced, model, method, where, args).report


class _Traced(eqx.Module):
    report: Report = eqx.field(static=True)


@eqx.filter_jit
def _traced(model: Any, method: Method, where: Where, args: tuple[Any, ...]) -> _Traced:
    return _Traced(report(model, *args, where=where, method=method))


def _outermost(
    calls: Sequence[Call], patched: set[tuple[str, int]], axes: tuple[Axis, ...]
) -> Iterator[Call]:
    """The outermost calls that aren't around all that is patched; or that are within a
    loop.
    """
    for call in calls:
        if call.is_inside:
            continue
        inside = {(c.site, c.number) for c in call.walk() if c is not call}
        if patched <= inside and call.axes == axes:
            yield from _outermost(call.children, patched, axes)
        else:
            yield call


def _key(call: Call) -> str:
    """In a log without names of the user's own."""
    return f"{call.site}#{call.number}" if call.number else call.site


def _can_be(call: Call) -> bool:
    """Whether a call may be skipped, and is worth it."""
    always = call.when == "always" and not is_wild(call.site)
    return always and bool(call.parameters)


def _by_step(call: Call, numbers: Numbers) -> Int[np.ndarray, "..."]:
    loops = [axis for axis in call.axes if axis.kind == "step"]
    sizes = [axis.size for axis in loops]
    made = np.full(sizes, numbers.offset, np.int32)
    for i, (axis, stride) in enumerate(zip(loops, numbers.strides, strict=True)):
        steps = np.arange(axis.size, dtype=np.int32)
        iterations = steps[::-1] if axis.reverse else steps
        shape = (axis.size, *(1 for _ in sizes[i + 1 :]))
        made += iterations.reshape(shape) * np.int32(stride)
    return made


def _spread(
    by_step: Int[np.ndarray, "..."], entry: Call, shape: tuple[int, ...]
) -> Int[np.ndarray, "..."]:
    """The number of each step of a call, for what is logged inside of it: in its axes,
    the loops around the call are the outermost.
    """
    at = [i for i, axis in enumerate(entry.axes) if axis.kind == "step"][: by_step.ndim]
    return by_step.reshape([n if i in at else 1 for i, n in enumerate(shape)])
