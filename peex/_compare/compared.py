"""What a comparison says of single calls and parameters."""

import dataclasses

from .layouts import Layout


@dataclasses.dataclass(frozen=True)
class Row:
    """Two calls, one of each model.

    - `key`, `other`: which these are, as `"layers.norm[2]"`: the key in a log, and
        behind it the step, if the call is in a loop.
    - `class_name`: of the module of the model.
    - `how`: what has brought them together: `"given"` (by `match`), `"parameters"`
        (they have equal ones), `"key"`, `"order"` (of execution), or `"parts"`: what
        holds others that belong together.
    - `layout`: the order of the axes of the model's value, without those of size 1, in
        which it is the other's. `(0, 1)`: the same.
    - `error`: `max(|x - y|) / max(|x|, |y|)` of the outputs `x` and `y`.
    - `local_error`: the same where the other was given what the model was given, and so
        was each part of it, and returned to it what these returned in the model: what
        is its own fault, and not that of what was before or is inside. `None` if it
        wasn't looked at.
    - `input_error`: of what they were given. `None` if that isn't known.
    - `cotangent_error`: of the cotangents of the outputs. `None` without `grad`, and
        for all steps of a recurrent cell next to one call of a recurrent layer.
    - `tolerance`, `local_tolerance`: above which an error counts. The latter is at
        least three times what the model itself differs by, if it is run call by call.
    - `rounding`: with `truth`, the error of the model itself.
    - `note`: what else there is to say.
    """

    key: str
    other: str
    class_name: str
    how: str
    layout: Layout
    error: float
    local_error: float | None
    input_error: float | None
    cotangent_error: float | None
    tolerance: float
    local_tolerance: float
    rounding: float | None = None
    note: str = ""

    @property
    def differs(self) -> bool:
        """Whether the outputs, or the cotangents of them, are too far apart."""
        return max(self.error, self.cotangent_error or 0.0) > self.tolerance

    @property
    def differs_locally(self) -> bool:
        """Whether it is at fault itself, as far as that was looked at."""
        return self.local_error is not None and self.local_error > self.local_tolerance


@dataclasses.dataclass(frozen=True)
class ParameterRow:
    """Two parameters, one of each model.

    - `key`, `other`: their paths, with the index of the layer of a stack behind it, as
        `"layers.norm.weight[2]"`. `None` where one side has nothing like it.
    - `layout`, `error`: as of a [`peex.debug.Row`][]; the error 0 for equal values.
    - `gradient_error`: of their gradients, next to the largest gradient of a parameter
        of the same module. `None` without `grad`.
    - `tolerance`: above which an error counts.
    """

    key: str | None
    other: str | None
    layout: Layout | None
    error: float | None
    gradient_error: float | None
    tolerance: float

    @property
    def differs(self) -> bool:
        return max(self.error or 0.0, self.gradient_error or 0.0) > self.tolerance


@dataclasses.dataclass(frozen=True)
class Unmatched:
    """A call that was compared with nothing.

    - `side`: `"model"` or `"other"`.
    - `key`, `class_name`: which call, and of what.
    - `why`: what is known of the reason.
    """

    side: str
    key: str
    class_name: str
    why: str = ""

    def __str__(self) -> str:
        of = f" ({self.class_name})" if self.class_name else ""
        why = f": {self.why}" if self.why else ""
        return f"{self.key}{of} of the {self.side}{why}"
