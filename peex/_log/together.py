"""Entries of logs, array by array: what a function makes of them, their difference, and
several as one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TYPE_CHECKING

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._errors import LogShapeError
from .._text import shown_arrays
from .axes import Axis, still_in_front


if TYPE_CHECKING:
    Entries = Mapping[str, Any]
else:
    Entries = Any  # checked by peex itself, whose error says what to write instead


def check_keys(keys: Iterable[str], others: Sequence[Any], method: str) -> None:
    """**Raises:** `LogShapeError` for logs that don't have these keys, `TypeError` for
    what is no log.
    """
    for other in others:
        if not isinstance(other, Mapping):
            raise TypeError(
                f"`log.{method}` takes a function and further logs with the same keys; "
                f"got a {type(other).__name__}. Write other arguments into the "
                f"function, as in `log.{method}(lambda x: x / 2)`."
            )
        mine = [repr(key) for key in keys if key not in other]
        theirs = [repr(key) for key in other if key not in set(keys)]
        if mine or theirs:
            sides = zip((mine, theirs), ("first", "other"), strict=True)
            only = [f"{_some(some)} only in the {log}" for some, log in sides if some]
            raise LogShapeError(
                f"The logs have different keys: {'; '.join(only)}. Choose what both "
                "have, as in `a, b = a.select('layers.*'), b.select('layers.*')`."
            )


def _some(keys: Sequence[str], n: int = 5) -> str:
    more = f" and {len(keys) - n} more" if len(keys) > n else ""
    return ", ".join(keys[:n]) + more


def mapped(
    f: Callable[..., Any], key: str, entries: Sequence[Any], axes: tuple[Axis, ...]
) -> tuple[Any, tuple[Axis, ...]]:
    """What a function makes of each array of the entries that logs have at one key, and
    which of the axes of the first that has.
    """
    first, *others = entries
    leaves, treedef = jtu.tree_flatten(first)
    columns = [leaves]
    for other in others:
        theirs, structure = jtu.tree_flatten(other)
        if structure != treedef:
            raise LogShapeError(
                f"The logs hold different things at {key!r}: {treedef} and "
                f"{structure}. Make both with the same `log_fn`."
            )
        columns.append(theirs)
    results = []
    for arrays in zip(*columns, strict=True):
        try:
            results.append(f(*arrays))
        except Exception as error:
            error.add_note(
                f"A function of the arrays of logs was given those at {key!r}: "
                f"{shown(arrays)}."
            )
            raise
        for made in jtu.tree_leaves(results[-1]):
            axes = still_in_front(axes, np.shape(arrays[0]), np.shape(made))
    return jtu.tree_unflatten(treedef, results), axes


def difference(key: str, entries: Sequence[Any]) -> Any:
    """Of the entries that two logs have at one key."""

    def subtract(a: Any, b: Any) -> Any:
        if np.shape(a) != np.shape(b):
            raise LogShapeError(
                f"The logs differ in shape at {key!r}: {shown(a)} and {shown(b)}. "
                "Subtract those of runs on inputs of the same shapes, or reduce both "
                "first, as in `a.map(jnp.mean) - b.map(jnp.mean)`."
            )
        # Two runs in different precision can be compared.
        with jax.numpy_dtype_promotion("standard"):
            a, b = jnp.asarray(a), jnp.asarray(b)
            a, b = (x.astype(int) if x.dtype == bool else x for x in (a, b))
            return jnp.subtract(a, b)

    return mapped(subtract, key, entries, ())[0]


def stacked(entries: Mapping[str, Any], pattern: Any) -> Any:
    """The entries as one, along a new leading axis."""
    (first, one), *others = entries.items()
    alike = lambda entry: (jtu.tree_structure(entry), shown(entry))
    for key, other in others:
        (mine, my_arrays), (structure, arrays) = alike(one), alike(other)
        if (mine, my_arrays) != (structure, arrays):
            differ = mine != structure and my_arrays == arrays
            a, b = (mine, structure) if differ else (my_arrays, arrays)
            raise LogShapeError(
                f"`log.stack({pattern!r})` needs entries of one shape, but {first!r} "
                f"is {a} and {key!r} is {b}. Choose entries that are alike, as in "
                "`log.stack('layers.*.mlp')`, or make them so, as in "
                f"`log.map(jnp.mean).stack({pattern!r})`."
            )
    return jtu.tree_map(lambda *arrays: jnp.stack(arrays), *entries.values())


def shown(tree: Any) -> str:
    is_array = lambda x: hasattr(x, "dtype") and hasattr(x, "shape")
    arrays = [x if is_array(x) else np.asarray(x) for x in jtu.tree_leaves(tree)]
    return shown_arrays(arrays)
