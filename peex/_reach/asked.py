"""Which parameters `where` chooses of those that reach a state."""

from collections.abc import Callable
from typing import Any

import jax
import jax.tree_util as jtu

from .._errors import PeexError
from .._report.parameters import is_array_or_shape
from .._sites.keys import split
from .._sites.patterns import matches, nearest
from .make import Analysis


def asked_for(model: Any, found: Analysis, where: Any) -> list[str]:
    """The keys of the parameters that have a trace.

    **Raises:** `PeexError` if there are none.
    """
    reach = found.reach
    if where is None:
        chosen = list(reach.parameters)
    elif callable(where):
        chosen = _by_function(model, found, where)
    else:
        patterns = [where] if isinstance(where, str) else list(where)
        by_pattern = [_by_pattern(found, pattern) for pattern in patterns]
        chosen = [k for k in reach.parameters if any(k in keys for keys in by_pattern)]
    temporal = [key for key in chosen if key in reach.temporal]
    if temporal:
        return temporal
    if not reach.states:
        raise PeexError("There is no state, so there is nothing to keep traces of.")
    excluded = reach.excluded
    reasons = ", ".join(f"{key} ({excluded[key]})" for key in chosen)
    raise PeexError(
        f"No parameter reaches the state ({', '.join(reach.states)}) with a "
        "derivative, so there is nothing to keep traces of. Of those that are chosen: "
        f"{reasons or 'none'}. Those that do: {', '.join(reach.temporal) or 'none'}."
    )


def _by_pattern(found: Analysis, pattern: str) -> list[str]:
    """Those with a name that matches, or in a module with one."""
    wanted = split(pattern)
    parameters = found.reach.parameters
    keys = []
    for key, reached in parameters.items():
        names = [split(name) for name in reached.uses]
        if any(matches(wanted, n[:i]) for n in names for i in range(len(n) + 1)):
            keys.append(key)
    if not keys:
        raise PeexError(
            f"`where={pattern!r}` matches no parameter. Nearest: "
            f"{nearest(pattern, parameters)}"
        )
    return keys


def _by_function(model: Any, found: Analysis, where: Callable[[Any], Any]) -> list[str]:
    leaves, structure = jtu.tree_flatten(model)
    # In a copy each array is an object of its own.
    shape = lambda x: (
        jax.ShapeDtypeStruct(x.shape, x.dtype) if is_array_or_shape(x) else x
    )
    copies = [shape(x) for x in leaves]
    nodes = where(structure.unflatten(copies))
    chosen = {id(x) for x in jtu.tree_leaves(nodes) if is_array_or_shape(x)}
    places = {i for i, x in enumerate(copies) if id(x) in chosen}
    return [key for key, mine in found.places.items() if places.intersection(mine)]
