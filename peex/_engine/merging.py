"""Logs that are merged where they are, rather than stacked: what they record is of a
monoid, as counts and sums are.

Such a tap (or the ask for its buffers) gains no axes. Where other values are stacked,
along the steps of a loop or the examples of a `vmap`, these are merged: so nothing
grows. The monoid rides with the log (`Frozen.monoid`); a rule asks `info.merges`, and
for the functions below, nothing more.

A monoid is an object with methods `merge(a, b)`, `merge_axis(entries)`, along one more
leading axis, and `empty(like)`, all of what the log returns.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .. import _compat
from .._errors import LogValueError
from .active_calls import Acting
from .messages import Tap
from .notes import add_note
from .rule import LogArrays
from .signature import TapSpec
from .site import Frozen, Site
from .values import strong


def thawed(monoid: Frozen) -> Any:
    """A monoid without its arrays: these are shapes."""
    return monoid.thaw(monoid.shapes)


def merge(info: Tap, a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
    """The logs of one thing after the other."""
    fn: Callable[..., Any] = lambda a, b: _leaves(info, "merge", a, b)
    for _ in info.axes.shape:
        fn = jax.vmap(fn)
    return _typed(fn(list(a), list(b)), list(map(jax.typeof, a)))


def merge_axis(info: Tap, logs: Sequence[Any]) -> list[Any]:
    """Logs with one more axis in front, merged along it."""
    fn: Callable[..., Any] = lambda logs: _leaves(info, "merge_axis", logs)
    for _ in info.axes.shape:
        fn = jax.vmap(fn, in_axes=1)
    return fn(list(logs))


def empty(spec: TapSpec) -> list[Any]:
    """What changes nothing that it is merged with."""
    info = spec.info
    num_axes = len(info.axes.shape)
    like = [jax.ShapeDtypeStruct(s.shape[num_axes:], s.dtype) for s in spec.shapes]
    made = _leaves(info, "empty", like)
    pairs = zip(made, spec.shapes, strict=True)
    return _typed([jnp.broadcast_to(x, s.shape) for x, s in pairs], spec.shapes)


def merging(
    specs: Sequence[TapSpec],
) -> tuple[LogArrays, Callable[[LogArrays, LogArrays], LogArrays]]:
    """The logs of such taps before a loop has run, and a function that takes what it
    has carried and those of one more iteration.
    """
    varying = _compat.varying(s for spec in specs for s in spec.shapes)

    def more(old: LogArrays, new: LogArrays) -> LogArrays:
        logs = [merge(t.info, *x) for t, *x in zip(specs, old, new, strict=True)]
        return _compat.as_varying(logs, varying)

    return _compat.as_varying([empty(spec) for spec in specs], varying), more


def parted(xs: Sequence[Any], flags: Sequence[bool]) -> tuple[list[Any], list[Any]]:
    """Those whose flag is set, and the others."""
    pairs = list(zip(xs, flags, strict=True))
    return [x for x, flag in pairs if flag], [x for x, flag in pairs if not flag]


def joined(
    some: Sequence[Any], others: Sequence[Any], flags: Sequence[bool]
) -> list[Any]:
    """What `parted` has parted."""
    some_, others_ = iter(some), iter(others)
    return [next(some_) if flag else next(others_) for flag in flags]


def _leaves(info: Tap, name: str, *logs: Sequence[Any]) -> list[Any]:
    """What a method of the monoid of a site makes of its logs, checked."""
    site, treedef = info.site, info.treedef
    assert site.log is not None
    assert site.log.monoid is not None
    monoid = thawed(site.log.monoid)
    entries = [treedef.unflatten(xs) for xs in logs]
    try:
        with Acting(site, is_log=True):
            made = getattr(monoid, name)(*entries)
    except Exception as error:
        what = f"`{name}` of the log_fn of the site {site.key!r}"
        add_note(error, f"{what} ({type(monoid).__name__})", entries, {})
        raise
    leaves, structure = jtu.tree_flatten(made)
    front = 1 if name == "merge_axis" else 0
    expected = [(x.shape[front:], x.dtype) for x in logs[0]]
    got = [(getattr(x, "shape", None), getattr(x, "dtype", None)) for x in leaves]
    if structure != treedef or got != expected:
        raise unlike(site, monoid, name, (treedef, expected), (structure, got))
    return strong(leaves)


def unlike(
    site: Site, monoid: Any, name: str, expected: Any, got: Any
) -> LogValueError:
    """Of a method that returns something else than what the log does."""
    (treedef, of_log), (structure, of_made) = expected, got
    differ = (treedef, structure) if treedef != structure else (of_log, of_made)
    expected, got = map(_shown, differ)
    return LogValueError(
        f"`{name}` of {type(monoid).__name__}, the log_fn of the site {site.key!r}, "
        f"returned another structure, shape or dtype than the log itself: expected "
        f"{expected}, got {got}. What is merged can be merged again, so return what "
        "`__call__` returns; as in `jax.tree.map(lambda a, b: (a + b).astype(a.dtype), "
        "a, b)`."
    )


def _shown(found: Any) -> str:
    if not isinstance(found, list):
        return str(found)
    return ", ".join(f"{d}{list(s)}" if d else "no array" for s, d in found)


def _typed(arrays: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    """Arrays of the types of others, as the carry of a loop must be."""
    return [_compat.typed_as(x, t) for x, t in zip(arrays, like, strict=True)]
