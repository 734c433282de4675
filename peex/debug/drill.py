"""Which operation it was in a call that is to blame: a second run, in which all is
recorded that has a name in the forward pass of that module.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._errors import PeexError
from .._log import Log
from .._log.placed import in_order
from .._report.report import report
from .._report.result import Report
from .._sites.keys import input_key
from .aligned import aligned, Entry, Frame, Mask
from .blamed import Blame
from .causes import Cause
from .recorded import Question, record


# More modules than these aren't looked into: each is compiled.
_MOST = 4

# Of a finite cotangent these may make what isn't finite, where their derivative isn't.
_STEEP = (
    *("acos", "acosh", "asin", "asinh", "atan2", "atanh", "cbrt", "cosh", "digamma"),
    *("div", "erf_inv", "exp", "exp2", "expm1", "integer_pow", "lgamma", "log"),
    *("log1p", "pow", "rsqrt", "sinh", "sqrt", "tan"),
)


def drilled(
    fn: Callable[..., Any],
    model: Any,
    args: Sequence[Any],
    found: Sequence[tuple[Cause, Blame]],
) -> dict[Blame, Blame]:
    """For each of these the same with its operation, as far as it can be found."""
    runs = dict.fromkeys((cause.seen.call.site, b.direction) for cause, b in found)
    known: dict[Blame, Blame] = {}
    for site, direction in list(runs)[:_MOST]:
        mine = [
            (cause, blame)
            for cause, blame in found
            if (cause.seen.call.site, blame.direction) == (site, direction)
        ]
        try:
            names = _Names(fn, model, args, site, direction)
        except PeexError as error:
            for _, blame in mine:
                known[blame] = _unknown(blame, error)
            continue
        for cause, blame in mine:
            call = cause.seen.call
            given = input_key(call.site, call.number)
            known[blame] = names.look(blame, call.key, given, cause.mask, cause.frame)
    return known


def drilled_outside(
    fn: Callable[..., Any], model: Any, args: Sequence[Any], blame: Blame
) -> Blame:
    """The same for what happens in the function that calls the model."""
    whole = _Whole(model, fn)
    try:
        names = _Names(_call, whole, args, ".", blame.direction)
    except PeexError as error:
        return _unknown(blame, error)
    return names.look(blame, ".", ".:in", np.ones((), bool), Frame((), (), ()))


class _Whole(eqx.Module):
    """A function of a model, as a module of its own."""

    model: Any
    fn: Callable[..., Any] = eqx.field(static=True)

    def __call__(self, *args: Any) -> Any:
        return self.fn(self.model, *args)


def _call(model: Any, *args: Any) -> Any:
    return model(*args)


def _unknown(blame: Blame, error: PeexError) -> Blame:
    first, _, _ = str(error).partition(". ")
    return dataclasses.replace(blame, note=blame.note or f"not looked into: {first}")


class _Names:
    """What was recorded of the named values inside of one module, in one pass."""

    def __init__(
        self,
        fn: Callable[..., Any],
        model: Any,
        args: Sequence[Any],
        site: str,
        direction: str,
    ):
        self.forward = direction == "forward"
        name = f"{site}/*"
        where = (name,) if self.forward else (name, f"{site}:in")
        sites = (where, ()) if self.forward else ((), where)
        recorded, _ = record(Question(fn, *sites, not self.forward), model, args)
        self.log = recorded.forward if self.forward else recorded.backward
        self.report: Report = report(model, *args, where=[name], method=fn)

    def look(
        self, blame: Blame, call: str, given: str, mask: Mask, frame: Frame
    ) -> Blame:
        """With the operation that is to blame in a call, where the mask holds. `call`
        and `given` are the keys of its output and its arguments.
        """
        names = [key for key in self.log if key.startswith(f"{call}/")]
        names = [key for key in names if self._is_float(key)]
        seen = names if self.forward else [given, *names]
        first = self._first(seen, mask, frame)
        if first is None:
            return dataclasses.replace(blame, note=blame.note or "no operation is seen")
        if not self.forward:
            behind = names[names.index(first) + 1 :] if first in names else names
            behind = behind[:8] or [first]
            steep = [key for key in behind if _operation(key) in _STEEP]
            first = [*steep, *behind][0]
        note = blame.note
        at = names.index(first)
        if _operation(first).startswith("custom_"):
            # It has two names, of which the other one is the function's.
            at = min(at + 1, len(names) - 1)
            first = names[at]
            note = "a function with a derivative rule of its own: not looked into"
        # Inside of a function of JAX there is no place; that function is named later.
        places = (self.report[key].line for key in names[at:])
        line = next((place for place in places if place not in (None, "?")), None)
        return dataclasses.replace(blame, op=_operation(first), line=line, note=note)

    def _is_float(self, key: str) -> bool:
        leaves = jtu.tree_leaves(self.report[key].outputs)
        return any(jnp.issubdtype(x.dtype, jnp.inexact) for x in leaves)

    def _first(self, keys: Sequence[str], mask: Mask, frame: Frame) -> str | None:
        """The first that isn't finite, in the order of this pass."""
        logs = (self.log, Log()) if self.forward else (Log(), self.log)
        best: tuple[int, str] | None = None
        for placed in in_order(*logs):
            entry = Entry.of(self.log, placed.key)
            if placed.key not in keys or entry is None:
                continue
            bad = entry.bad & aligned(mask, frame, entry.frame)
            if bad.any():
                rank = int(np.asarray(placed.ranks())[bad].min())
                best = min(best or (rank, placed.key), (rank, placed.key), key=_rank)
        return None if best is None else best[1]


def _rank(found: tuple[int, str]) -> int:
    return found[0]


def _operation(key: str) -> str:
    return key.rpartition("/")[2].partition("#")[0]
