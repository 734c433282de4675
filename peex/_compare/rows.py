"""From pairs of calls to what is said of each."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .._text import plural
from .compared import Row
from .layouts import error, Layout, Layouts, moved
from .pairing import is_inside, Pair
from .sides import AbstractSide, Arrays, Backward, Given, Replayed, Visit


# Two programs that round alike are so much further apart than each is from a third.
_ROUNDINGS = 3


class Limits(NamedTuple):
    """Above which an error counts: over a whole run, and of one call alone."""

    whole: float
    local: float


@dataclasses.dataclass
class _Aligned:
    """A pair with the layouts of its values: of each array of the other that one of the
    model belongs to, which one, and how.
    """

    pair: Pair
    outputs: dict[int, tuple[int, Layout]]
    inputs: dict[int, tuple[int, Layout]]
    error: float
    input_error: float | None

    def given(self) -> Given:
        """The model's own values, as the other has them."""
        a, b = self.pair.model, self.pair.other
        return Given(
            _laid_out(a.inputs or (), b.inputs or (), self.inputs),
            _laid_out(a.outputs, b.outputs, self.outputs),
        )


class Compared:
    """Pairs of calls side by side.

    - `rows`: of each pair.
    - `layouts`: those that were found.

    Without a `model`, its rounding isn't looked at.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        model: AbstractSide | None,
        other: AbstractSide,
        limits: Callable[[Pair], Limits],
        local: bool,
    ):
        self.layouts = Layouts()
        self._aligned = [self._align(pair) for pair in pairs]
        given = {x.pair.other: x.given() for x in self._aligned}
        replayed = (other.replay(given) if local else None) or {}
        self._local = self._local_errors(replayed, {})
        self._noise: dict[Visit, float] = {}
        if model is not None and any(far for far, _ in self._local.values()):
            # Another program rounds differently, which may be all that there is in a
            # value (as in the mean of what was normalised): the model is run like that
            # as well.
            own = {p.model: Given(p.model.inputs or (), p.model.outputs) for p in pairs}
            again = model.replay(own) or {}
            self._noise = {v: _noise(v, again[v]) for v in own if v in again}
            self._local = self._local_errors(replayed, again)
        self.rows = [self._row(x, limits(x.pair)) for x in self._aligned]

    def _align(self, pair: Pair) -> _Aligned:
        a, b = pair.model, pair.other
        inputs, input_error = self.belonging(a.inputs or (), b.inputs or ())
        outputs, far = self.belonging(a.outputs, b.outputs)
        return _Aligned(pair, outputs, inputs, far or 0.0, input_error)

    def belonging(
        self, mine: Arrays, theirs: Arrays
    ) -> tuple[dict[int, tuple[int, Layout]], float | None]:
        """For each array of the other that of the model that it belongs to, with the
        layout, and the largest error among them (`None` if there are none): the first
        that is near, or else the first that fits.
        """
        found: dict[int, tuple[int, Layout]] = {}
        worst: float | None = None
        used: set[int] = set()
        for j, y in enumerate(theirs):
            fitting: list[tuple[int, Layout, float]] = []
            for i, x in enumerate(mine):
                if x is None or y is None or i in used:
                    continue
                best = self.layouts.best(x, y)
                if best is not None:
                    fitting.append((i, *best))
                    if best[1] < 1e-2:
                        break
            if fitting:
                near = fitting[-1] if fitting[-1][2] < 1e-2 else fitting[0]
                used.add(near[0])
                found[j] = near[0], near[1]
                worst = max(worst or 0.0, near[2])
        return found, worst

    def _local_errors(
        self, replayed: Mapping[Visit, Replayed], own: Mapping[Visit, Replayed]
    ) -> dict[Visit, tuple[float, str]]:
        """Of each call of the model its own fault, and what that is in: from what the
        other made of the model's values, and, if that is known, the model itself.
        """
        found: dict[Visit, tuple[float, str]] = {}

        def put(visit: Visit, far: float | None, note: str) -> None:
            if far is not None and (visit not in found or far > found[visit][0]):
                found[visit] = far, note

        for i, x in enumerate(self._aligned):
            a, b = x.pair.model, x.pair.other
            again = replayed.get(b)
            if again is None:
                continue
            mine = own.get(a, Replayed(a.inputs, a.outputs))
            put(a, _worst(mine.outputs, again.outputs, x.outputs), "")
            far = _worst(mine.inputs or (), again.inputs or (), x.inputs)
            around = [y for y in self._aligned[i + 1 :] if is_inside(a, y.pair.model)]
            if a.key == "." or not around:
                continue
            # What a call is given is the doing of what is around it.
            put(around[0].pair.model, far, f"in what it gives to {a.name}")
        return found

    def _row(self, x: _Aligned, limits: Limits) -> Row:
        a, b = x.pair.model, x.pair.other
        local, note = self._local.get(a, (None, ""))
        # What the calls inside are given is the doing of this one.
        noises = (n for v, n in self._noise.items() if v is a or is_inside(v, a))
        least = _ROUNDINGS * max(noises, default=0.0)
        limits = Limits(limits.whole, max(limits.local, least))
        layout = x.outputs[0][1] if 0 in x.outputs else ()
        note = note if local is not None and local > limits.local else ""
        alone = min(len(side.outputs) - len(x.outputs) for side in (a, b))
        if alone > 0 and not note:
            note = f"{plural(alone, 'further output')} of other shapes, not compared"
        return Row(
            a.name,
            b.name,
            a.class_name,
            x.pair.how,
            layout,
            x.error,
            local,
            x.input_error,
            None,
            limits.whole,
            limits.local,
            note=note,
        )

    def with_cotangents(self, mine: Backward, theirs: Backward) -> list[Row]:
        rows = []
        for row, x in zip(self.rows, self._aligned, strict=True):
            a, b = x.pair.model, x.pair.other
            far = _worst(
                mine.cotangents.get(a, ()), theirs.cotangents.get(b, ()), x.outputs
            )
            rows.append(dataclasses.replace(row, cotangent_error=far))
        return rows


def _noise(visit: Visit, again: Replayed) -> float:
    """How far a call of the model is from itself, in another program."""
    pairs = [*zip(visit.outputs, again.outputs, strict=False)]
    pairs += zip(visit.inputs or (), again.inputs or (), strict=False)
    known = [(x, y) for x, y in pairs if x is not None and y is not None]
    return max((error(x, y) for x, y in known), default=0.0)


def _laid_out(
    mine: Arrays, theirs: Arrays, pairs: Mapping[int, tuple[int, Layout]]
) -> list[np.ndarray | None]:
    found: list[np.ndarray | None] = [None] * len(theirs)
    for j, (i, layout) in pairs.items():
        x, y = mine[i], theirs[j]
        if x is not None and y is not None:
            found[j] = moved(x, layout, y.shape).astype(y.dtype)
    return found


def _worst(
    mine: Arrays, theirs: Arrays, pairs: Mapping[int, tuple[int, Layout]]
) -> float | None:
    """The largest error among arrays that belong together; `None` if there are none."""
    errors = []
    for j, (i, layout) in pairs.items():
        x = mine[i] if i < len(mine) else None
        y = theirs[j] if j < len(theirs) else None
        if x is not None and y is not None and x.size == y.size:
            errors.append(error(moved(x, layout, y.shape), y))
    return max(errors, default=None)
