"""The order in which what a log holds was computed, as numbers."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int

from .axes import Axis
from .log import Log
from .order import numbered


@dataclasses.dataclass(frozen=True)
class Placed:
    """An entry of a log, and when what it holds was computed.

    The number of an element is `offset`, and for each of its step axes `strides` times
    the iteration (from the last one back, in the backward pass), and behind that its
    place among the devices and examples of one step.

    - `axes`: those of the entry in front of its value's own.
    - `end`: above all numbers of the entry.
    """

    key: str
    direction: str
    entry: Any
    axes: tuple[Axis, ...]
    offset: int
    strides: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(np.shape(self.entry))

    @property
    def step_axes(self) -> tuple[int, ...]:
        """Which axes of the entry are those of steps."""
        return _step_axes(self.axes)

    @property
    def end(self) -> int:
        steps = (self.shape[i] for i in self.step_axes)
        last = sum((n - 1) * s for n, s in zip(steps, self.strides, strict=True))
        return self.offset + last + _others(self.shape, self.step_axes)

    def ranks(self) -> Int[Array, "..."]:
        """The number of each element, int32."""
        ranks = jnp.full(self.shape, self.offset, jnp.int32)
        stride = 1
        for i in reversed(range(len(self.shape))):
            here = lax.broadcasted_iota(jnp.int32, self.shape, i)
            if i in self.step_axes:
                if self.axes[i].reverse != (self.direction == "backward"):
                    here = self.shape[i] - 1 - here
                ranks += here * self.strides[self.step_axes.index(i)]
            else:
                ranks += here * stride
                stride *= self.shape[i]
        return ranks

    def step_of(self, index: Sequence[int]) -> tuple[int, ...]:
        return tuple(index[i] for i in self.step_axes)

    def example_of(self, index: Sequence[int]) -> tuple[int, ...]:
        return tuple(n for i, n in enumerate(index) if i not in self.step_axes)


def _others(shape: Sequence[int], step_axes: Sequence[int]) -> int:
    return math.prod(n for i, n in enumerate(shape) if i not in step_axes)


def in_order(forward: Log, backward: Log) -> list[Placed]:
    """The entries of both passes, in the order in which they begin."""
    first, end = _pass("forward", forward, list(forward), 0)
    second, _ = _pass("backward", backward, list(backward)[::-1], end)
    return [*first, *second]


def _pass(
    direction: str, log: Log, keys: list[str], start: int
) -> tuple[list[Placed], int]:
    axes = {key: _axes(log, key, log[key]) for key in keys}
    others = {key: _others(np.shape(log[key]), _step_axes(axes[key])) for key in keys}
    numbers, end = numbered([(axes[key], others[key]) for key in keys], start)
    placed = [
        Placed(key, direction, log[key], axes[key], one.offset, one.strides)
        for key, one in zip(keys, numbers, strict=True)
    ]
    return placed, end


def _axes(log: Log, key: str, entry: Any) -> tuple[Axis, ...]:
    """Of each axis of an entry what it is. A transformation around the wrapper has
    added examples in front.
    """
    mine = log.axes.get(key, ())
    shape = np.shape(entry)
    return (*(Axis("batch", n) for n in shape[: len(shape) - len(mine)]), *mine)


def _step_axes(axes: Sequence[Axis]) -> tuple[int, ...]:
    return tuple(i for i, axis in enumerate(axes) if axis.kind == "step")
