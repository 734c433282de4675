"""The arrays in the arguments and the output of a call, with their names."""

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np

from .._engine.values import is_state
from .._report.parameters import is_array_or_shape
from .._sites.keys import components
from .._sites.walk import parts_of, stands_in
from .._state.indices import indices_of
from .._wrappers.types import Method


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array.

    - `key`: its name, as `"carry.0"`.
    - `position`: which of the arrays of all arguments, or of the output, it is.
    """

    key: str
    position: int
    shape: tuple[int, ...]
    dtype: Any


@dataclasses.dataclass(frozen=True)
class Argument:
    """One argument: its name, what it is, and the arrays in it."""

    name: str
    value: Any
    leaves: list[Leaf]


def is_array(x: object) -> bool:
    """What is an argument that is traced: an array, also of NumPy, or a shape."""
    return isinstance(x, np.ndarray | np.generic) or is_array_or_shape(x)


def as_shapes(tree: Any) -> Any:
    """Its arrays as shapes, each an object of its own: where one array is given twice,
    these are two arguments.
    """

    def one(x: Any) -> Any:
        if is_array(x):
            weak = bool(getattr(x, "weak_type", False))
            return jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=weak)
        return x

    return jtu.tree_map(one, tree)


def find_arguments(
    model: Any, method: Method, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[Argument]:
    """The arguments in the order in which JAX takes them apart."""
    names = _positional(model, method, len(args))
    arguments: list[Argument] = []
    position = 0
    by_name = [(name, kwargs[name]) for name in sorted(kwargs)]
    paths = {index.marker: path for path, index in indices_of(model).items()}
    for name, value in [*zip(names, args, strict=True), *by_name]:
        leaves = [
            Leaf(key, position + i, tuple(x.shape), x.dtype)
            for i, (key, x) in enumerate(named_arrays(name, value, paths))
        ]
        position += len(leaves)
        arguments.append(Argument(name, value, leaves))
    return arguments


def _positional(model: Any, method: Method, number: int) -> list[str]:
    """The names of so many positional arguments."""
    fn: Any = method
    if isinstance(method, str):
        while stands_in(model):  # as what `eqx.filter_jit` makes of a module
            (model,), _ = parts_of(model)
        fn = getattr(type(model), method, None)
    try:
        parameters = list(inspect.signature(fn).parameters.values())[1:]
    except (TypeError, ValueError):
        parameters = []
    plain = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [p.name for p in parameters if p.kind in plain][:number]
    rest = [p.name for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL]
    more = number - len(names)
    return names + [f"{rest[0] if rest else 'args'}.{i}" for i in range(more)]


def named_arrays(
    name: str, tree: Any, paths: Mapping[Any, str]
) -> Iterator[tuple[str, Any]]:
    """The arrays in a pytree with their names; what an `eqx.nn.State` holds is named by
    the place in the model that it belongs to, whose `paths` are by marker.
    """
    found, _ = jtu.tree_flatten_with_path(tree, is_leaf=is_state)
    for path, x in found:
        key = _joined(name, path)
        if is_state(x):
            values, markers = x.tree_flatten()
            for i, (marker, value) in enumerate(zip(markers, values, strict=True)):
                inside = f"{key}.{paths.get(marker, i)}"
                yield from named_arrays(inside, value, paths)
        elif is_array_or_shape(x):
            yield key, x


def _joined(name: str, path: Any) -> str:
    parts = [name] if name else []
    return ".".join([*parts, *(".".join(components([e])[0]) for e in path)])
