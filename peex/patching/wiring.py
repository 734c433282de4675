"""The two ends of edges: what is written into a sum, and who reads that."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Inexact

from .._errors import LogShapeError
from .._hooks.axis_names import ANONYMOUS, AxisNames
from .._log import Log
from .gradients import wide
from .groups import steps_of, Times
from .places import only_array, SweptSite


@dataclasses.dataclass(frozen=True)
class End:
    """A site at one end. It stands for one writer or reader for each step of the loops
    that it is in, and each index of the named axes that only it has. What is left are
    the axes of the sum, which all have.

    - `key`: in the model.
    - `site`: the names and shape of its value, and what the user calls it.
    - `steps`, `own`: which of the split axes tell its writers (or readers) apart.
    - `shared`, `whole`: which are those of the sum, by name, and without one.
    """

    key: str
    site: SweptSite
    steps: tuple[int, ...]
    own: tuple[int, ...] = ()
    shared: tuple[int, ...] = ()
    whole: tuple[int, ...] = ()

    def _sizes(self, axes: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.site.split[i] for i in axes)

    @property
    def apart(self) -> tuple[int, ...]:
        """The sizes of the axes that tell writers apart."""
        return self._sizes((*self.steps, *self.own))

    @property
    def n(self) -> int:
        """How many writers (or readers) it is."""
        return math.prod(self.apart)

    @property
    def n_own(self) -> int:
        return math.prod(self._sizes(self.own))

    @property
    def sum_shape(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of the sum: the sizes of the axes with a name, and of the others."""
        return self._sizes(self.shared), self._sizes(self.whole)

    def names(self, axes: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.site.names[i] for i in axes)

    def rows(self, value: Array) -> Inexact[Array, "writers shared whole"]:
        """Its value, with each writer (or reader) apart."""
        order = *self.steps, *self.own, *self.shared, *self.whole
        shared, whole = self.sum_shape
        rows = wide(value).reshape(self.site.split).transpose(order)
        return rows.reshape(self.n, math.prod(shared), math.prod(whole))


def ends_of(
    log: Log, keys: Mapping[str, str], names: Mapping[str, AxisNames]
) -> list[End]:
    """The sites of one side, by a log of shapes.

    **Arguments:**

    - `keys`: from keys of the log to what the user calls the site.
    - `names`: of the axes, by what the user calls it.
    """
    made = []
    for key, name in keys.items():
        shape = only_array(name, log[key]).shape
        split = names[name].split(shape, f"The log of the site {name!r}")
        loops, steps, i = steps_of(log, key), [], 0
        for axis, factors in enumerate(names[name].axes):
            steps += range(i, i + len(factors)) if axis in loops else ()
            i += len(factors)
        ones = (1,) * len(split)
        site = SweptSite(name, shape, split, names[name].names, ones, 0)
        made.append(End(key, site, tuple(steps)))
    return made


def joined(
    senders: Sequence[End], receivers: Sequence[End]
) -> tuple[list[End], list[End]]:
    """Both sides, once it is known which axes they share.

    **Raises:** `LogShapeError` if one can't be added to what another is given.
    """
    rest = lambda end: [i for i in range(len(end.site.split)) if i not in end.steps]
    named = [
        [n for n in end.names(rest(end)) if n != ANONYMOUS]
        for end in (*receivers, *senders)
    ]
    shared = [name for name in named[0] if all(name in other for other in named)]

    def with_axes(end: End) -> End:
        axes = {end.site.names[i]: i for i in rest(end)}
        own = [i for n, i in axes.items() if n not in (*shared, ANONYMOUS)]
        return dataclasses.replace(
            end,
            own=tuple(own),
            shared=tuple(axes[name] for name in shared),
            whole=tuple(i for i in rest(end) if end.site.names[i] == ANONYMOUS),
        )

    sides = [with_axes(end) for end in senders], [with_axes(end) for end in receivers]
    first = sides[1][0]
    for end in (*sides[0], *sides[1]):
        if end.sum_shape != first.sum_shape:
            raise LogShapeError(
                f"{_shown(end)}, but {_shown(first)}: what is written is added to what "
                "is read, so, apart from the axes of loops and from those with a name "
                "that only one has, these have to be the same. Choose sites that are "
                "terms of one sum, and the arguments of what reads it, as in "
                "`receivers='layers.*.norm:in'`; and name their axes alike."
            )
    return sides


def _shown(end: End) -> str:
    shared, whole = end.sum_shape
    named = [
        f"{n} {size}" for n, size in zip(end.names(end.shared), shared, strict=True)
    ]
    shown = ", ".join([*named, *(f"_ {size}" for size in whole)])
    return f"{end.site.key!r} has the axes [{shown}]"


def earlier(
    times: Times, senders: Sequence[End], receivers: Sequence[End]
) -> Bool[np.ndarray, "writers readers"]:
    """Which writer is before which reader."""

    def pair(sender: End, receiver: End) -> np.ndarray:
        before = times.before(sender.key, receiver.key)
        return before.repeat(sender.n_own, 0).repeat(receiver.n_own, 1)

    return np.block([[pair(s, r) for r in receivers] for s in senders])


def stacked(
    ends: Sequence[End], log: Mapping[str, Any]
) -> Inexact[Array, "writers shared whole"]:
    """The rows of all, one behind the other; `log` has arrays by the user's names."""
    return jnp.concatenate([end.rows(log[end.site.key]) for end in ends])
