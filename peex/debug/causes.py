"""Which calls have made what isn't finite, told from those that were given it.

A call is the cause where its output isn't finite although its arguments and its own
parameters are; in the backward pass, where the cotangent of its output is finite and
that of an argument, or the gradient of an own parameter, isn't. Of calls within each
other it is the innermost. No order in time is needed for this.
"""

import dataclasses
from collections.abc import Container, Sequence

import numpy as np

from .aligned import aligned, anywhere, Frame, Mask, nowhere
from .calls import bad_at, Seen


@dataclasses.dataclass(frozen=True)
class Cause:
    """A call, in one pass, and where it is the cause.

    - `frame`, `mask`: at which devices, steps and examples; `kinds` holds NaN there or
        infinity, as it was made.
    - `went_on`: where what it made went on to what is around it.
    - `parameters`: of which the gradient isn't finite, if that is all that is known.
    """

    seen: Seen
    direction: str
    frame: Frame
    mask: Mask
    values: np.ndarray
    went_on: Mask
    parameters: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        return "between" if self.seen.children else "inside"


def forward_causes(
    calls: Sequence[Seen], bad_parameters: Container[str]
) -> list[Cause]:
    """Those of the forward pass, in the order in which they end."""
    raw: dict[Seen, Mask] = {}
    for seen in calls:
        if seen.output is None or any(p in bad_parameters for p in seen.parameters):
            continue
        frame = seen.output.frame
        raw[seen] = seen.output.bad & ~bad_at(seen.given, frame)
    causes = []
    for seen, mask in raw.items():
        assert seen.output is not None
        frame = seen.output.frame
        mask = mask & ~_inside(seen, raw, frame, forward=True)
        if not mask.any():
            continue
        went_on = mask.copy()
        for outer in seen.around():
            if outer.output is not None:
                went_on &= bad_at(outer.output, frame)
        values = seen.output.values
        causes.append(Cause(seen, "forward", frame, mask, values, went_on))
    return sorted(causes, key=lambda cause: cause.seen.number)


def backward_causes(
    calls: Sequence[Seen],
    bad_parameters: Container[str],
    bad_gradients: Container[str],
    value_is_bad: bool,
) -> list[Cause]:
    """Those of the backward pass, the last calls first. Where the value isn't finite,
    what wasn't finite in the forward pass needs no further cause.
    """
    raw: dict[Seen, Mask] = {}
    for seen in calls:
        if seen.given_cotangent is None:
            continue
        frame = seen.given_cotangent.frame
        mask = seen.given_cotangent.bad & ~bad_at(seen.output_cotangent, frame)
        if value_is_bad:
            mask &= ~_was_bad(seen, frame, bad_parameters)
        raw[seen] = mask
    causes = []
    for seen, mask in raw.items():
        assert seen.given_cotangent is not None
        frame = seen.given_cotangent.frame
        mask = mask & ~_inside(seen, raw, frame, forward=False)
        if not mask.any():
            continue
        went_on = mask.copy()
        for outer in seen.around():
            if outer.given_cotangent is None or _any_in(
                outer.parameters, bad_gradients
            ):
                continue
            went_on &= bad_at(outer.given_cotangent, frame)
        values = seen.given_cotangent.values
        causes.append(Cause(seen, "backward", frame, mask, values, went_on))
    causes += _of_parameters(calls, raw, bad_parameters, bad_gradients, value_is_bad)
    return sorted(causes, key=lambda cause: -cause.seen.number)


def in_gradient(cause: Cause, backward: Sequence[Cause]) -> Mask:
    """Where something that the forward pass made, and that isn't in the value, is in
    the gradient: zero times infinity is NaN, in the same call or one that was given it.
    """
    went_on = nowhere(cause.frame)
    for other in backward:
        mask = other.went_on & _was_bad(other.seen, other.frame, ())
        if other.seen is cause.seen or bad_at(other.seen.given, other.frame).any():
            went_on = went_on | (cause.mask & aligned(mask, other.frame, cause.frame))
    return went_on


def _of_parameters(
    calls: Sequence[Seen],
    raw: dict[Seen, Mask],
    bad_parameters: Container[str],
    bad_gradients: Container[str],
    value_is_bad: bool,
) -> list[Cause]:
    """The calls of which nothing but the gradient of their own parameters isn't finite.
    That is summed over all calls and steps, so none of these may be a victim.
    """
    causes: list[Cause] = []
    for seen in reversed(calls):
        bad = tuple(sorted(p for p in seen.own_parameters if p in bad_gradients))
        alike = [c for c in calls if c.parameters.intersection(bad)]
        if not bad or seen.output_cotangent is None:
            continue
        if any(_is_explained(c, raw, bad_parameters, value_is_bad) for c in alike):
            continue
        if any(set(bad) & set(cause.parameters) for cause in causes):
            continue
        frame = seen.output_cotangent.frame
        mask = anywhere(frame)
        values = np.full(frame.shape, np.nan)
        causes.append(Cause(seen, "backward", frame, mask, values, mask, bad))
    return causes


def _is_explained(
    seen: Seen, raw: dict[Seen, Mask], bad_parameters: Container[str], value: bool
) -> bool:
    """Whether something else is known to be wrong with a call."""
    cotangent = seen.output_cotangent
    if cotangent is not None and cotangent.bad.any():
        return True
    if seen in raw and raw[seen].any():
        return True
    return value and bool(_was_bad(seen, Frame((), (), ()), bad_parameters).any())


def _was_bad(seen: Seen, frame: Frame, bad_parameters: Container[str]) -> Mask:
    """Where something wasn't finite in the forward pass of a call."""
    if _any_in(seen.parameters, bad_parameters):
        return anywhere(frame)
    return bad_at(seen.given, frame) | bad_at(seen.output, frame)


def _inside(seen: Seen, raw: dict[Seen, Mask], frame: Frame, forward: bool) -> Mask:
    """Where a call inside is the cause."""
    mask = nowhere(frame)
    for child in seen.inside():
        entry = child.output if forward else child.given_cotangent
        if child in raw and entry is not None:
            mask = mask | aligned(raw[child], entry.frame, frame)
    return mask


def _any_in(paths: set[str], bad: Container[str]) -> bool:
    return any(path in bad for path in paths)
