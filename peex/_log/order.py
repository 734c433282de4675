"""The order in which entries of a log were computed, as numbers."""

import dataclasses
from collections.abc import Sequence

from .axes import Axis


@dataclasses.dataclass(frozen=True)
class Numbers:
    """When the steps of one entry were computed: the first of all that ran at `offset`,
    and each further iteration of a loop around it so many `strides` later (one stride
    for each step axis).
    """

    offset: int
    strides: tuple[int, ...] = ()


def numbered(
    entries: Sequence[tuple[Sequence[Axis], int]], start: int = 0
) -> tuple[list[Numbers], int]:
    """Numbers what runs one after the other, loops within loops.

    **Arguments:**

    - `entries`: of each its axes and how many numbers it takes at a step, in the order
        in which they are in one iteration of the loops around them.
    - `start`: the first number.

    **Returns:**

    The numbers of each, and the first that is free.
    """
    steps = [[axis for axis in axes if axis.kind == "step"] for axes, _ in entries]
    found: list[Numbers] = []

    def place(first: int, last: int, depth: int, start: int) -> int:
        """Those of one body; returns the end."""
        while first < last:
            loop, length = _loop(steps[first], depth)
            if loop is None:
                found.append(Numbers(start))
                start += entries[first][1]
                first += 1
                continue
            end = first + 1
            while end < last and _loop(steps[end], depth)[0] == loop:
                end += 1
            size = place(first, end, depth + 1, start) - start
            for i in range(first, end):
                strides = size, *found[i].strides
                found[i] = dataclasses.replace(found[i], strides=strides)
            start += size * length
            first = end
        return start

    end = place(0, len(entries), 0, start)
    return found, end


def _loop(steps: Sequence[Axis], depth: int) -> tuple[str | None, int]:
    """The loop that is `depth` loops inside, and its length."""
    if depth >= len(steps):
        return None, 1
    return steps[depth].loop or f"?{depth}", steps[depth].size
