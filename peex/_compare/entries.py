"""The entries of a log as single calls: one for each call and step, in the order in
which they ran.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.tree_util as jtu
import numpy as np

from .._log import Log
from .._log.placed import in_order
from .sides import numeric


@dataclasses.dataclass(frozen=True)
class Entry:
    """One call at one step: the key in the log, the step, and where that is in it."""

    key: str
    steps: tuple[int, ...]
    index: tuple[Any, ...]


def entries_of(log: Log, keys: Sequence[str]) -> list[Entry]:
    """Those of these keys that hold arrays, but for calls that weren't made."""
    mine = [key for key in keys if any(map(numeric, jtu.tree_leaves(log[key])))]
    axes = {key: log.axes.get(key, ()) for key in mine}
    # Of what a value has behind the axes of its call, nothing matters.
    frames = {key: np.zeros([axis.size for axis in axes[key]]) for key in mine}
    found = []
    for one in in_order(Log(frames, axes=axes), Log()):
        devices = sum(axis.kind == "device" for axis in axes[one.key])
        for steps in np.ndindex(*(one.shape[i] for i in one.step_axes)):
            index = (*(slice(None),) * devices, *steps)
            if not _ran(log.counts.get(one.key), index):
                continue
            strides = zip(steps, one.strides, strict=True)
            number = one.offset + sum(n * stride for n, stride in strides)
            found.append((number, Entry(one.key, steps, index)))
    return [entry for _, entry in sorted(found, key=lambda pair: pair[0])]


def arrays_at(entry: Any, index: tuple[Any, ...] = ()) -> list[np.ndarray | None]:
    """The arrays of an entry of a log, at one step."""
    leaves = jtu.tree_leaves(entry)
    at = lambda x: np.asarray(np.asarray(x)[index])
    return [at(x) if numeric(x) else None for x in leaves]


def _ran(count: Any, index: tuple[Any, ...]) -> bool:
    if count is None:
        return True
    count = np.asarray(count)
    return bool(np.any(count[index[: count.ndim]]))
