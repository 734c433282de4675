"""The leading axes that what is logged gains in a call, as users see them."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .._engine.loops import Loop
from .._engine.messages import Axes


@dataclasses.dataclass(frozen=True)
class Axis:
    """A leading axis of a log. Unpacked, `kind, size = axis`.

    - `kind`: `"device"`, `"step"` or `"batch"`.
    - `size`: how long it is.
    - `loop`: of a step axis, where its loop is in the model's source: file and line of
        the function that it runs, as `"model.py:12"`. A further loop there is
        `"model.py:12#1"`: two axes have one name if, and only if, they are of one loop.
        `None` for other axes.
    - `reverse`: of a step axis, whether its loop runs from the last step to the first,
        as that of `jax.lax.scan(..., reverse=True)`.
    """

    kind: str
    size: Any
    loop: str | None = None
    reverse: bool = False

    def __iter__(self) -> Iterator[Any]:
        return iter((self.kind, self.size))


def described(gained: Mapping[Any, Axes]) -> dict[Any, tuple[Axis, ...]]:
    """The axes of what is logged in one call, in order, as users see them."""
    names: dict[tuple[Loop, ...], str] = {}
    seen: dict[str, int] = {}

    def name(loops: tuple[Loop, ...]) -> str:
        if loops not in names:
            where = loops[-1].where
            n = seen[where] = seen.get(where, -1) + 1
            names[loops] = where if n == 0 else f"{where}#{n}"
        return names[loops]

    def size(n: Any) -> Any:
        return int(n) if isinstance(n, int) else n  # a symbolic one of `jax.export`

    def one(axes: Axes) -> tuple[Axis, ...]:
        devices = (Axis("device", size(n)) for n in axes.devices)
        steps = (
            Axis("step", size(n), name(axes.loops[: i + 1]), axes.loops[i].reverse)
            for i, n in enumerate(axes.steps)
        )
        batch = (Axis("batch", size(n)) for n in axes.batch)
        return (*devices, *steps, *batch)

    return {
        key: one(axes) if axes.steps or axes.batch or axes.devices else ()
        for key, axes in gained.items()
    }


def still_in_front(
    axes: tuple[Axis, ...], before: Sequence[Any], after: Sequence[Any]
) -> tuple[Axis, ...]:
    """Those of the axes of an array of shape `before`, from the first on, that what a
    function has made of it, of shape `after`, still has; as far as the sizes tell.
    """
    before, after = tuple(before), tuple(after)
    if before == after:
        return axes
    sizes = tuple(axis.size for axis in axes)
    start = start_of(axes, before)
    if start is None or after[:start] != before[:start]:
        return ()
    for i, size in enumerate(sizes, start):
        # Where axes are gone, another of this size may be what is left.
        unsure = len(after) < len(before) and size in before[i + 1 :]
        if after[i : i + 1] != (size,) or unsure:
            return axes[: i - start]
    return axes


def start_of(axes: Sequence[Axis], shape: Sequence[Any]) -> int | None:
    """Which axis of an array of this shape is the first of these, as far as the sizes
    tell: a transformation around the wrapper has added its own in front. `None` where
    none can be.
    """
    sizes, shape = tuple(axis.size for axis in axes), tuple(shape)
    n = len(sizes)
    starts = (i for i in range(len(shape) - n + 1) if shape[i : i + n] == sizes)
    return next(starts, None)
