"""What the flow of a program is made of: values, by their numbers, and edges from each
to those that are made of it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp


# Which results of an operation have a derivative by which operand:
# `[operand][result]`.
Derivatives = Sequence[Sequence[bool]]


class Edge(NamedTuple):
    """That a value is made of another.

    - `tail`, `head`: this other, and the value, by their numbers.
    - `derivative`: whether it has one by the other.
    - `factors`: in a contraction, what the other is multiplied with.
    - `primitive`, `call`: what makes it, and the call of a module that this is in.
    - `moves`: whether it is the same data.
    - `loop`: of which loop it is the next iteration, if it is one.
    """

    tail: int
    head: int
    derivative: bool
    factors: tuple[int, ...] = ()
    primitive: str = ""
    call: str = "."
    moves: bool = True
    loop: int | None = None


@dataclasses.dataclass(frozen=True)
class Carry:
    """What a `scan` hands from one iteration to the next.

    - `loop`, `around`: its number, and those of the loops around it.
    - `call`, `number`: the call of a module that it is in, and which scan of that.
    - `before`, `after`: each of its values in an iteration and in the next.
    - `avals`: what these are.
    """

    loop: int
    around: frozenset[int]
    call: str
    number: int
    before: list[int]
    after: list[int | None]
    avals: list[Any]


@dataclasses.dataclass(frozen=True)
class Flow:
    """- `size`: how many values there are. Each is a number; constants are `None`.
    - `edges`: in the order in which they are made, but for those of loops.
    - `inputs`, `outputs`: the arguments and results of the program.
    - `scans`: what its scans carry, in the order in which they begin.
    """

    size: int
    edges: list[Edge]
    inputs: list[int]
    outputs: list[int | None]
    scans: list[Carry]


def is_inexact(v: Any) -> bool:
    """Whether a variable or constant can have a derivative."""
    return hasattr(v.aval, "dtype") and jnp.issubdtype(v.aval.dtype, jnp.inexact)
