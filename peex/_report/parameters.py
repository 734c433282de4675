"""The arrays of a model, each with the places that hold it, so that what is shared is
counted once.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu

from .._sites.keys import Key
from .._sites.walk import children
from .._text import plural, shown_bytes


@dataclasses.dataclass(frozen=True)
class Parameter:
    """An array of a model, of any dtype.

    - `uses`: the places that hold it. More than one if it is shared: the same array
        stored twice, or tied by `eqx.nn.Shared`.
    """

    uses: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: Any

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def total(self, grads: Any) -> Any:
        """The sum of what a pytree like the model, as its gradient, has at the places
        of this parameter: of a layer that is stored twice, the gradient with respect to
        the one array that it has.
        """
        found: dict[str, Any] = {}

        def visit(key: Key, node: Any) -> None:
            if is_array_or_shape(node):
                found[".".join(key)] = node
            elif isinstance(node, eqx.nn.Shared):
                visit((*key, "pytree"), node.pytree)
            else:
                for child in children(key, node):
                    visit(*child)

        visit((), grads)
        mine = [found[use] for use in self.uses if use in found]
        if not mine:
            raise KeyError(
                f"There is nothing at {self.uses[0]!r} in what was given. Give a "
                "pytree like the model, as `eqx.filter_grad(loss)(model)` is."
            )
        return sum(mine[1:], mine[0])

    @property
    def bytes(self) -> int:
        return self.count * self.dtype.itemsize


class HasParameters:
    """What has `parameters`: how many numbers these are, and how many bytes."""

    parameters: tuple[Parameter, ...]

    @property
    def parameter_count(self) -> int:
        return sum(p.count for p in self.parameters)

    @property
    def parameter_bytes(self) -> int:
        return sum(p.bytes for p in self.parameters)


class Parameters:
    """The parameters of a model, by array and by place."""

    def __init__(self, model: Any):
        self._uses: dict[int, list[str]] = {}
        self._arrays: dict[int, Any] = {}  # kept, so that an id stays that of one array
        self._under: dict[Key, list[int]] = {}
        self._visit((), model)
        self.by_id = {
            i: Parameter(tuple(self._uses[i]), tuple(x.shape), x.dtype)
            for i, x in self._arrays.items()
        }

    def _visit(self, key: Key, node: Any) -> list[int]:
        if is_array_or_shape(node):
            self._arrays[id(node)] = node
            self._uses.setdefault(id(node), []).append(".".join(key))
            return [id(node)]
        if isinstance(node, eqx.nn.Shared):
            parts = [((*key, "pytree"), _untied(node))]
        else:
            parts = children(key, node)
        ids = (i for k, child in parts for i in self._visit(k, child))
        self._under[key] = list(dict.fromkeys(ids))
        return self._under[key]

    @property
    def all(self) -> tuple[Parameter, ...]:
        return tuple(self.by_id.values())

    def ids_under(self, key: Key) -> list[int]:
        return self._under.get(key, [])

    def under(self, keys: Iterable[Key]) -> tuple[Parameter, ...]:
        """Those of the modules at these keys, each once."""
        ids = dict.fromkeys(i for key in keys for i in self.ids_under(key))
        return tuple(self.by_id[i] for i in ids)


def is_array_or_shape(x: object) -> bool:
    """An array, or only the shape of one."""
    return eqx.is_array(x) or isinstance(x, jax.ShapeDtypeStruct)


def _untied(shared: eqx.nn.Shared) -> Any:
    """The pytree in a `Shared` with the same arrays at all places that share them (and
    nothing where `get` computes a new one).
    """
    arrays, treedef = jtu.tree_flatten(eqx.filter(shared, is_array_or_shape))
    rest = eqx.filter(shared, is_array_or_shape, inverse=True)
    untied = []

    # Called with tracers, since of a mere shape a transpose can't be taken.
    def run(tracers: list[Any]) -> None:
        array_of = {id(t): a for t, a in zip(tracers, arrays, strict=True)}
        tied = eqx.combine(treedef.unflatten(tracers), rest)()
        known = lambda x: array_of.get(id(x)) if is_array_or_shape(x) else x
        untied.append(jtu.tree_map(known, tied))

    jax.eval_shape(run, arrays)
    return untied[0]


def parameters_dict(parameters: Iterable[Parameter]) -> list[dict[str, Any]]:
    return [
        {"uses": list(p.uses), "shape": list(p.shape), "dtype": str(p.dtype)}
        for p in parameters
    ]


def parameter_notes(parameters: Iterable[Parameter]) -> list[str]:
    """Lines under a table: the parameters in all, and which are shared."""
    parameters = list(parameters)
    total = sum(p.count for p in parameters)
    size = shown_bytes(sum(p.bytes for p in parameters))
    shared = [p for p in parameters if len(p.uses) > 1]
    return [
        f"{plural(total, 'parameter')}, {size}",
        *(f"* shared, counted once: {' = '.join(p.uses)}" for p in shared),
    ]
