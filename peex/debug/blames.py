"""What is said of the calls that are to blame."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from .blamed import as_examples, Blame
from .calls import largest, Seen
from .causes import Cause
from .magnitude import KINDS, kinds


def blames_of(cause: Cause, calls: Sequence[Seen]) -> Iterator[tuple[Cause, Blame]]:
    """One for each step, with the cause at that step alone."""
    seen, frame = cause.seen, cause.frame
    step_axes = frame.step_axes
    split = lambda index: tuple(index[i] for i in step_axes)
    indices = [tuple(i) for i in np.argwhere(cause.mask).tolist()]
    loops = [axis for axis in seen.call.axes if axis.kind == "step"]
    onward = [axis.reverse == (cause.direction == "backward") for axis in loops]
    in_order = lambda step: [
        n if ascending else -n for n, ascending in zip(step, onward, strict=True)
    ]
    steps = sorted(set(map(split, indices)), key=in_order)
    whole = bool(cause.parameters)
    for step in [()] if whole else steps:
        here = [i for i in indices if whole or split(i) == step]
        mask = np.zeros_like(cause.mask)
        mask[tuple(np.transpose(here))] = True
        rest = (tuple(n for j, n in enumerate(i) if j not in step_axes) for i in here)
        of = seen.given if cause.direction == "forward" else seen.output_cotangent
        yield (
            dataclasses.replace(cause, mask=mask),
            Blame(
                key=seen.key,
                class_name=seen.call.class_name,
                direction=cause.direction,
                kind=KINDS[int(kinds(cause.values[mask]).max())],
                source=cause.source,
                step=step,
                examples=() if whole else as_examples(dict.fromkeys(rest)),
                max_abs=largest(of, mask, frame),
                trail=_trail(seen, cause.direction, calls),
                note=_note(cause),
            ),
        )


def _note(cause: Cause) -> str | None:
    if cause.parameters:
        return f"in the gradient of {', '.join(cause.parameters)}"
    for seen in cause.seen.inside():
        last = seen.call.when == "last of many"
        if last and seen.output is not None and seen.output.bad.any():
            return f"of the while loop around {seen.key} only the last step is seen"
    return None


def _trail(cause: Seen, direction: str, calls: Sequence[Seen]) -> tuple[str, ...]:
    """The innermost calls that ran later and were given what isn't finite."""
    later = []
    for seen in calls:
        entry = seen.given if direction == "forward" else seen.output_cotangent
        if seen is cause or seen.children or entry is None or not entry.bad.any():
            continue
        looped = seen.call.axes[:1] == cause.call.axes[:1] and bool(seen.call.axes)
        behind = seen.number - cause.number
        if looped or (behind > 0 if direction == "forward" else behind < 0):
            later.append(seen)
    later.sort(key=lambda seen: seen.number, reverse=direction == "backward")
    return tuple(seen.key for seen in later)
