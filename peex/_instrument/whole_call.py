"""All that a call was given and returned, for a log of calls as wholes: the module, its
arguments and its output, with what in them isn't an array.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.tree_util as jtu

from .._engine.apply import is_array
from .._engine.values import is_state
from .forward_pass import method_and_module


# Leaves, which of them are in a State, and the structure.
Flat = tuple[list[Any], list[bool], Any]


class _Array:
    """Stands for an array that was taken out."""


class Own:
    """Stands for an array of the model's own, which one it is."""

    def __init__(self, index: int):
        self.index = index

    def __eq__(self, other: object) -> bool:
        return type(other) is Own and self.index == other.index

    def __hash__(self) -> int:
        return self.index


_array = _Array()


def given_to(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Flat:
    """What is called, a module or else the function, and its arguments. To be asked
    before the call, which uses States up.
    """
    _, module = method_and_module(fn)
    given = fn if module is None else module, args, kwargs
    parts = jtu.tree_leaves(given, is_leaf=is_state)
    in_state = [is_state(x) for x in parts for _ in jtu.tree_leaves(x)]
    leaves, structure = jtu.tree_flatten(given)
    return leaves, in_state, structure


@jtu.register_pytree_node_class
class WholeCall:
    """A pytree of the arrays; the rest is in its structure."""

    def __init__(self, arrays: Sequence[Any], rest: "_Rest"):
        self.arrays, self.rest = list(arrays), rest

    @classmethod
    def of(cls, given: Flat, out: Any, own: Mapping[int, int]) -> "WholeCall":
        """`own` are the arrays of the model itself, by their `id`: these aren't handed
        out, since they would gain the axes of the call.
        """
        leaves, in_state, structure = given
        outs, out_structure = jtu.tree_flatten(out)
        # A State may begin with arrays of the model, but they are none of it.
        known = zip(leaves, in_state, strict=True)
        kept = [x if s else Own(own[id(x)]) if id(x) in own else x for x, s in known]
        kept += outs
        arrays = [x for x in kept if is_array(x)]
        static = tuple(_array if is_array(x) else x for x in kept)
        return cls(arrays, _Rest((structure, out_structure), static))

    def taken(self, own: Sequence[Any]) -> tuple[Any, Any, list[bool]]:
        """What was called with its arguments; what it returned; and which leaves of the
        first are arrays that aren't the model's own.
        """
        arrays = iter(self.arrays)
        structure, out_structure = self.rest.structures
        kept = [next(arrays) if x is _array else x for x in self.rest.static]
        kept = [own[x.index] if type(x) is Own else x for x in kept]
        n = structure.num_leaves
        handed_out = [x is _array for x in self.rest.static[:n]]
        given, out = structure.unflatten(kept[:n]), out_structure.unflatten(kept[n:])
        return given, out, handed_out

    def tree_flatten(self) -> tuple[list[Any], "_Rest"]:
        return self.arrays, self.rest

    @classmethod
    def tree_unflatten(cls, rest: "_Rest", arrays: Sequence[Any]) -> "WholeCall":
        return cls(arrays, rest)


class _Rest:
    """What isn't an array. Compares by value, as what JAX keeps programs by has to; its
    leaves needn't be hashable.
    """

    def __init__(self, structures: tuple[Any, Any], static: tuple[Any, ...]):
        self.structures, self.static = structures, static

    def __eq__(self, other: object) -> bool:
        if self is other or type(other) is not _Rest:
            return self is other
        return len(self.static) == len(other.static) and (
            all(map(_same, self.static, other.static))
            and _equal(self.structures, other.structures)
        )

    def __hash__(self) -> int:
        return hash(len(self.static))


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and _equal(a, b))


def _equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except Exception:  # whatever a comparison of the user's own raises
        return False
