"""The order in which what a log holds was computed, as numbers."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int

from .._log import Axis, Log


@dataclasses.dataclass(frozen=True)
class Placed:
    """An entry of a log, and when what it holds was computed.

    The number of an element is `offset`, and for each of its step axes `strides` times
    the step (from the last one back, in the backward pass), and behind that its place
    among the devices and examples of one step.

    - `step_axes`: which axes of the entry are those of steps.
    - `end`: above all numbers of the entry.
    """

    key: str
    direction: str
    entry: Any
    step_axes: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(np.shape(self.entry))

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
                if self.direction == "backward":
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
    entries: Mapping[str, Any] = {key: log[key] for key in keys}
    axes = {key: _axes(log, key, entries[key]) for key in keys}
    found: list[Placed] = []

    def place(keys: Sequence[str], depth: int, start: int) -> int:
        """Gives the sites of one body numbers from `start` on; returns the end."""
        while keys:
            loop, num_steps = _loop(axes[keys[0]], depth)
            num = 1
            while (
                loop is not None
                and num < len(keys)
                and _loop(axes[keys[num]], depth)[0] == loop
            ):
                num += 1
            mine, keys = keys[:num], keys[num:]
            if loop is None:
                (key,) = mine
                at = _step_axes(axes[key])
                shape = np.shape(entries[key])
                found.append(Placed(key, direction, entries[key], at, start, ()))
                start += _others(shape, at)
                continue
            before = len(found)
            size = place(mine, depth + 1, start) - start
            for i in range(before, len(found)):
                one = found[i]
                found[i] = dataclasses.replace(one, strides=(size, *one.strides))
            start += size * num_steps
        return start

    end = place(keys, 0, start)
    return found, end


def _axes(log: Log, key: str, entry: Any) -> tuple[Axis, ...]:
    """Of each axis of an entry what it is. A transformation around the wrapper has
    added examples in front.
    """
    mine = log.axes.get(key, ())
    shape = np.shape(entry)
    return (*(Axis("batch", n) for n in shape[: len(shape) - len(mine)]), *mine)


def _step_axes(axes: Sequence[Axis]) -> tuple[int, ...]:
    return tuple(i for i, axis in enumerate(axes) if axis.kind == "step")


def _loop(axes: Sequence[Axis], depth: int) -> tuple[str | None, int]:
    """The loop that is `depth` loops inside, and its length."""
    loops = [axis for axis in axes if axis.kind == "step"]
    if depth >= len(loops):
        return None, 1
    return loops[depth].loop or f"?{depth}", loops[depth].size
