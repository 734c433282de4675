"""What is to blame for a value that isn't finite."""

import dataclasses
from collections.abc import Iterable

from .._text import plural


Examples = tuple[int, ...] | tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class Blame:
    """One call, parameter or argument that is to blame for what isn't finite.

    - `key`: of the call, as in a log; of a parameter its path in the model
        (`"layers.0.weight"`), of an argument `"args[0]"`.
    - `class_name`: of the module; `None` if it isn't known.
    - `direction`: `"forward"` or `"backward"`.
    - `kind`: `"inf"`, or `"nan"` (if there is any NaN); `"inf or nan"` if only that is
        known.
    - `source`: where it comes from. `"inside"`: this call made it of finite arguments
        and parameters (in the backward pass, of a finite cotangent). `"between"`: so
        did the code of this call that is between the modules in it. `"outside"`: the
        loss did, behind the model or in front of it. `"parameter"`, `"argument"`: it
        was given.  `None` if it isn't known.
    - `step`: for each loop around the call the iteration.
    - `examples`: for each example that it happens in, its number; several in a tuple
        where there are several batch or device axes. Empty where there are none.
    - `index`: of a parameter or an argument, where in it the first such element is.
    - `op`, `line`: the operation in the call, by the name of its primitive or function,
        and where it is written, as `"model.py:12"`; `None` if not known.
    - `max_abs`: the largest absolute value that the call was given.
    - `trail`: the keys of the calls that it went through from there, in their order.
    - `note`: why there is no `op`, or why it isn't looked into.
    """

    key: str
    direction: str
    kind: str
    class_name: str | None = None
    source: str | None = None
    step: tuple[int, ...] = ()
    examples: Examples = ()
    index: tuple[int, ...] = ()
    op: str | None = None
    line: str | None = None
    max_abs: float | None = None
    trail: tuple[str, ...] = ()
    note: str | None = None

    def __str__(self) -> str:
        name = (
            self.key if self.class_name is None else f"{self.key} ({self.class_name})"
        )
        if self.source in ("parameter", "argument"):
            return f"{self.source} {name}: {self.kind}, first at {[*self.index]}"
        where = [self.direction]
        if self.step:
            steps = ", ".join(map(str, self.step))
            where.append(f"step {steps}")
        if self.examples:
            word = "example" if len(self.examples) == 1 else "examples"
            where.append(f"{word} {_shown(self.examples)}")
        text = f"{name}, {', '.join(where)}: {self.kind}"
        if self.op is not None:
            text += f" from `{self.op}`"
        if self.line is not None:
            text += f" at {self.line}"
        if self.source == "between":
            text += ", between the modules inside"
        if self.source == "outside":
            text += ", outside of the model"
        if self.max_abs is not None:
            text += f"; given at most {self.max_abs:.4g}"
        if self.note is not None:
            text += f" ({self.note})"
        return text


def _shown(examples: Examples) -> str:
    """Numbers that follow each other are a range."""
    if len(examples) == 1 or not isinstance(examples[0], int):
        few = ", ".join(str(x) for x in examples[:5])
        return f"{few}, and {len(examples) - 5} more" if len(examples) > 5 else few
    runs: list[list[int]] = []
    for n in examples:
        assert isinstance(n, int)
        if runs and runs[-1][-1] == n - 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    shown = [f"{r[0]} to {r[-1]}" if len(r) > 1 else f"{r[0]}" for r in runs]
    more = f", and {plural(len(shown) - 5, 'more range')}" if len(shown) > 5 else ""
    return ", ".join(shown[:5]) + more


def as_examples(indices: Iterable[tuple[int, ...]]) -> Examples:
    """Of one axis, plain numbers; none where there is no axis."""
    indices = [i for i in indices if i]
    if all(len(i) == 1 for i in indices):
        return tuple(i[0] for i in indices)
    return tuple(indices)
