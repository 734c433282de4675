"""Magnitudes of several sites side by side: which element of one belongs to which of
another, by device, step and example.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from .._log import Axis, Log


Mask = Bool[np.ndarray, "..."] | np.bool_


@dataclasses.dataclass(frozen=True)
class Frame:
    """The sizes of the axes of a log's entry: devices, steps and examples."""

    devices: tuple[int, ...]
    steps: tuple[int, ...]
    batch: tuple[int, ...]

    @staticmethod
    def of(axes: Sequence[Axis]) -> "Frame":
        sizes = lambda kind: tuple(axis.size for axis in axes if axis.kind == kind)
        return Frame(sizes("device"), sizes("step"), sizes("batch"))

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.devices, *self.steps, *self.batch)

    @property
    def step_axes(self) -> tuple[int, ...]:
        first = len(self.devices)
        return tuple(range(first, first + len(self.steps)))


@dataclasses.dataclass(frozen=True)
class Entry:
    """Magnitudes with their axes."""

    frame: Frame
    values: Float[np.ndarray, "..."]

    @staticmethod
    def of(log: Log, key: str) -> "Entry | None":
        if key not in log:
            return None
        values = np.asarray(log[key])
        return Entry(Frame.of(log.axes.get(key, ())), values)

    @property
    def bad(self) -> Mask:
        return ~np.isfinite(self.values)


def aligned(mask: Mask, source: Frame, target: Frame) -> Mask:
    """A mask over what one site has, as one over what another has: where it holds at
    the same device, step and example. Of a loop or batch that the other isn't in, where
    it holds anywhere.
    """
    parts = []
    pairs = (
        (source.devices, target.devices),
        (source.steps, target.steps),
        (source.batch, target.batch),
    )
    first = 0
    for mine, other in pairs:
        common = 0
        while common < min(len(mine), len(other)) and mine[common] == other[common]:
            common += 1
        if common < min(len(mine), len(other)):
            common = 0  # other loops, or other batches
        parts.append((first, len(mine), common, len(other)))
        first += len(mine)
    gone = tuple(
        i for first, n, common, _ in parts for i in range(first + common, first + n)
    )
    mask = np.any(mask, axis=gone)
    shape: list[int] = []
    kept = iter(mask.shape)
    for _, _, common, n in parts:
        shape += [next(kept) for _ in range(common)] + [1] * (n - common)
    return np.broadcast_to(mask.reshape(shape), target.shape)


def anywhere(frame: Frame) -> Mask:
    return np.ones(frame.shape, bool)


def nowhere(frame: Frame) -> Mask:
    return np.zeros(frame.shape, bool)
