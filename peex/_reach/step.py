"""One step of a model as a function of its parameters and its state."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np

from .._errors import PeexError
from .._text import shown_arrays
from .._wrappers.run import call_method
from .._wrappers.types import Method
from .arguments import as_shapes, find_arguments, is_array


# Of parameters and state: the new state, and what else is returned.
Run = Callable[[Sequence[Any], Sequence[Any]], tuple[list[Any], Any]]


@dataclasses.dataclass(frozen=True)
class Step:
    """Where in a call the arrays are.

    - `parameters`, `dtypes`: of each, which of the leaves of the model it is, and its
        dtype.
    - `states`: the names of its arrays among the arguments.
    - `shapes`: of these, shape and dtype.
    - `new`: which of the arrays of the output; `None` if it isn't returned.
    """

    method: Method
    parameters: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]
    states: tuple[str, ...]
    shapes: tuple[tuple[tuple[int, ...], Any], ...]
    new: tuple[int | None, ...]

    def split(
        self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Any], list[Any], Run]:
        """The parameters and the state of a call, and the call as a function of them:
        it returns the new state, and the output.
        """
        parts, structure = jtu.tree_flatten(model)
        leaves, treedef = jtu.tree_flatten((args, kwargs))
        arrays = [i for i, x in enumerate(leaves) if is_array(x)]
        arguments = find_arguments(model, self.method, *as_shapes((args, kwargs)))
        position = {leaf.key: leaf.position for a in arguments for leaf in a.leaves}
        at = [arrays[position[key]] for key in self.states if key in position]
        states = [leaves[i] for i in at]
        if [(tuple(x.shape), np.dtype(x.dtype)) for x in states] != list(self.shapes):
            self._refuse(states)

        def run(parameters: Sequence[Any], states: Sequence[Any]) -> Any:
            mine, given = list(parts), list(leaves)
            for places, x in zip(self.parameters, parameters, strict=True):
                for place in places:
                    mine[place] = x
            for place, x in zip(at, states, strict=True):
                given[place] = x
            args, kwargs = treedef.unflatten(given)
            out = call_method(structure.unflatten(mine), self.method, args, kwargs)
            found = [x for x in jtu.tree_leaves(out) if eqx.is_array(x)]
            new = [
                old if i is None else found[i]
                for i, old in zip(self.new, states, strict=True)
            ]
            return new, out

        return [parts[places[0]] for places in self.parameters], states, run

    def _refuse(self, got: Sequence[Any]) -> None:
        wanted = [jax.ShapeDtypeStruct(*shape) for shape in self.shapes]
        raise PeexError(
            f"These traces were made for a state ({', '.join(self.states)}) of "
            f"{shown_arrays(wanted)}, and this call has {shown_arrays(got)}. Give "
            "`advance` what `px.eligibility` was given; a batch is mapped over, as in "
            "`jax.vmap(lambda e, x, h: e.advance(model, x, h))(es, xs, hs)`."
        )


def pull(run: Run, parameters: Sequence[Any], states: Sequence[Any]) -> Any:
    """The new state, the output, and the function that takes a cotangent of the former
    to those of parameters and state.
    """
    others: list[Any] = []

    def arrays(parameters: Sequence[Any], states: Sequence[Any]) -> Any:
        new, out = run(parameters, states)
        dynamic, static = eqx.partition(out, eqx.is_array)
        others.append(static)
        return new, dynamic

    new, vjp, dynamic = jax.vjp(arrays, list(parameters), list(states), has_aux=True)
    return new, eqx.combine(dynamic, others[-1]), vjp
