"""The two sides of a comparison: what a run of each has met, whatever it is made of."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


# Arrays of a value in their order; `None` for what isn't one of numbers.
Arrays = Sequence[np.ndarray | None]


@dataclasses.dataclass(eq=False)
class Visit:
    """One call of one site, at one step.

    - `key`, `number`, `steps`: of the site; which call of it; the step, if it is in
        loops, as the layer of a scanned stack.
    - `is_leaf`: whether no other site is inside.
    - `outputs`, `inputs`: what it returned and what it was given, with the axes of the
        batch in front. `inputs` is `None` where that isn't known.
    - `module`: calls with the same are of the same parameters.
    - `parameters`: the names of those, in the side's own.
    """

    key: str
    number: int
    steps: tuple[int, ...]
    class_name: str
    is_leaf: bool
    outputs: Arrays
    inputs: Arrays | None
    module: Any = None
    parameters: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """As it is shown: `cell#1`, `layers.norm[2]`."""
        call = f"#{self.number}" if self.number else ""
        return f"{self.key}{call}{index_text(self.steps)}"

    def hands_on(self) -> bool:
        """Whether it does nothing, as a dropout layer in inference."""
        if self.parameters or not self.is_leaf or self.inputs is None:
            return False
        out = self.outputs[0] if self.outputs else None
        return out is not None and any(
            x is not None and x.shape == out.shape and np.array_equal(x, out)
            for x in self.inputs
        )


def joined(visits: Sequence[Visit]) -> Visit:
    """The steps of a loop as one call, which was given and returned the values of all,
    one after the other along a new axis in front.
    """
    first = visits[0]
    given = [visit.inputs or () for visit in visits]
    return dataclasses.replace(
        first,
        steps=(),
        outputs=_stacked([visit.outputs for visit in visits]),
        inputs=None if first.inputs is None else _stacked(given),
    )


def _stacked(values: Sequence[Arrays]) -> list[np.ndarray | None]:
    """The arrays of each, with a new axis in front."""
    found: list[np.ndarray | None] = []
    for arrays in zip(*values, strict=False):
        known = [x for x in arrays if x is not None]
        alike = len(known) == len(arrays) and len({x.shape for x in known}) == 1
        found.append(np.stack(known) if alike else None)
    return found


@dataclasses.dataclass(frozen=True)
class Given:
    """What is put into a call: in the place of its arguments, and of its output, once
    that has been recorded. `None` where it is left as it is.
    """

    inputs: Arrays
    outputs: Arrays


@dataclasses.dataclass(frozen=True)
class Replayed:
    """What a call was about to be given, and what it made of what it was given."""

    inputs: Arrays | None
    outputs: Arrays


@dataclasses.dataclass(frozen=True)
class Backward:
    """The cotangents of outputs by visit, and gradients by the names of parameters."""

    cotangents: Mapping[Visit, Arrays]
    gradients: Mapping[str, np.ndarray]


class AbstractSide(abc.ABC):
    """One side.

    - `visits`: in the order in which the calls ended.
    - `parameters`: all arrays, by name; those of a stack as one for each layer.
    - `args`: the arrays that the whole was given, `None` if that isn't known.
    - `outputs`: those that it returned.
    """

    visits: list[Visit]
    parameters: Mapping[str, np.ndarray]
    args: list[np.ndarray] | None
    outputs: Arrays

    @abc.abstractmethod
    def replay(self, given: Mapping[Visit, Given]) -> Mapping[Visit, Replayed] | None:
        """Runs it again with these calls given what they are given here. `None` if it
        can't be run.
        """

    @abc.abstractmethod
    def backward(self, weights: Arrays) -> Backward:
        """The backward pass of the sum of its outputs, weighted by these."""


def index_text(steps: Sequence[int]) -> str:
    """As `[2]`, nothing without steps."""
    return f"[{','.join(map(str, steps))}]" if steps else ""


def numeric(x: Any) -> bool:
    """Whether an array is one of numbers, rather than of random keys or objects."""
    dtype = getattr(x, "dtype", None)
    if not isinstance(dtype, np.dtype):
        return False
    return dtype.kind in "biufc" or dtype.name.startswith(("bfloat", "float", "int"))
