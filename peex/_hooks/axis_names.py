"""Names for the axes of an array, as in `"layer pos (head=9 _)"`."""

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any

from .._errors import HookShapeError


# The name of an axis that isn't told apart.
ANONYMOUS = "_"

_FACTOR = re.compile(r"([A-Za-z_]\w*)(?:=(\d+))?")
_TOKEN = re.compile(r"[()]|[^\s()]+")
_EXAMPLE = '"layer pos (head=9 _)"'
# A name, and how long it is where that is said.
Factor = tuple[str, int | None]


@dataclasses.dataclass(frozen=True)
class AxisNames:
    """One name for each axis of an array, or for each of the factors that an axis is
    split into. A pattern as einops has it
    ([Rogozhnikov, 2022](https://openreview.net/forum?id=oapKSVM2bcj)): names are
    separated by blanks; `_` stands for an axis without a name, as often as one likes;
    `(head=9 d)` splits one axis into 9 heads of `d` each, the last factor running
    fastest (one of the factors may be left open). Made by `AxisNames.parse`.

    - `text`: the pattern.
    - `axes`: for each axis of the array, its factors.
    """

    text: str
    axes: tuple[tuple[Factor, ...], ...]

    @classmethod
    def parse(cls, text: str) -> "AxisNames":
        """**Raises:** `TypeError` for what isn't such a pattern."""
        axes: list[tuple[Factor, ...]] = []
        group: list[Factor] | None = None
        for token in _TOKEN.findall(text):
            if token == "(" and group is None:
                group = []
            elif token == ")" and group:
                axes.append(tuple(group))
                group = None
            elif factor := _FACTOR.fullmatch(token):
                one = factor[1], None if factor[2] is None else int(factor[2])
                axes.append((one,)) if group is None else group.append(one)
            else:
                raise _refused(text, f"{token!r} can't stand there")
        if group is not None:
            raise _refused(text, "a parenthesis isn't closed")
        if not axes:
            raise _refused(text, "it names no axis")
        self = cls(text, tuple(axes))
        for factors in axes:
            if sum(size is None for _, size in factors) > 1:
                shown = " ".join(name for name, _ in factors)
                raise _refused(text, f"of ({shown}) only one size may be left open")
            if any(size == 0 for _, size in factors):
                raise _refused(text, "a size is 0")
        twice = [n for n in self.named if self.names.count(n) > 1]
        if twice:
            raise _refused(text, f"{twice[0]!r} is there twice")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the axes when they are split, `"_"` for those without one."""
        return tuple(name for factors in self.axes for name, _ in factors)

    @property
    def named(self) -> tuple[str, ...]:
        """Those of the names that aren't `"_"`."""
        return tuple(name for name in self.names if name != ANONYMOUS)

    def split(
        self, shape: Sequence[Any], what: str, trailing: bool = False
    ) -> tuple[Any, ...]:
        """The shape of an array when its axes are split: `array.reshape(...)` to it has
        one axis for each of `names`, and reshaping to `shape` undoes that.

        **Arguments:**

        - `shape`: of the array.
        - `what`: what has this shape, for errors: `"The log of the site 'layers'"`.
        - `trailing`: whether the names are those of the last axes alone. What is in
            front of these is then left as it is (and isn't in `names`).

        **Raises:** `HookShapeError` if the names don't fit.
        """
        shape = tuple(shape)
        rank, given = len(shape), len(self.axes)
        if given > rank or (given < rank and not trailing):
            fewest = "at most " if trailing else ""
            example = " ".join(
                [*(f for f, _, _ in self._shown()), *["_"] * rank][:rank]
            )
            raise HookShapeError(
                f"{what} has {rank} axes, of shape {shape}, but {self.text!r} names "
                f"{given}. Write {fewest}one name for each axis, `_` where it has none"
                + (f', as in "{example}".' if rank else ".")
            )
        made = list(shape[: rank - given])
        for (shown, factors, known), n in zip(
            self._shown(), shape[rank - given :], strict=True
        ):
            is_open = any(size is None for _, size in factors)
            if n % known or (not is_open and n != known):
                raise HookShapeError(
                    f"{what} has shape {shape}, but {known} "
                    f"{'does not divide' if is_open else 'is not'} {n}, the length of "
                    f"the axis {shown!r} of {self.text!r}. Write "
                    + (
                        f"a divisor of {n}, as `{factors[0][0]}` of "
                        f'"({factors[0][0]}={_divisor(n, known)} d)".'
                        if is_open
                        else f"sizes whose product is {n}, or leave one open."
                    )
                )
            made += [n // known if size is None else size for _, size in factors]
        return tuple(made)

    def _shown(self) -> list[tuple[str, tuple[Factor, ...], int]]:
        """For each axis, as it is written, its factors, and their sizes' product."""
        made = []
        for factors in self.axes:
            each = [
                name if size is None else f"{name}={size}" for name, size in factors
            ]
            text = each[0] if len(each) == 1 else f"({' '.join(each)})"
            known = math.prod(size for _, size in factors if size is not None)
            made.append((text, factors, known))
        return made


def _divisor(n: Any, near: int) -> int:
    """The divisor of `n` that is nearest to a number that isn't one."""
    return min((d for d in range(1, n + 1) if n % d == 0), key=lambda d: abs(d - near))


def _refused(text: str, why: str) -> TypeError:
    return TypeError(
        f"{text!r} doesn't name the axes of an array: {why}. Write one name for each "
        "axis, separated by blanks, `_` for an axis without a name and `(head=9 d)` "
        f"for one that is split, as in {_EXAMPLE}."
    )
