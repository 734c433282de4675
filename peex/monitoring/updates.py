"""What is recorded of the updates of parameters."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .._sites.keys import components
from . import numbers
from .state import Slot
from .stats import Recorded, Wanted


_WANTED = Wanted(("update_over_weight",), None, None)


def recorded_updates(
    model: Any, updates: Any, num_layers: Mapping[str, int]
) -> dict[Slot, Recorded]:
    """The squares of each parameter and of its update, by the path of the parameter;
    of layers that are stacked, of each one: `num_layers` says how many of its leading
    axes are these.

    **Raises:** `ValueError` for updates that aren't like the model.
    """
    weights, changes = by_path(model), by_path(updates)
    found = {}
    for path, change in changes.items():
        weight = weights.get(path)
        if weight is None or weight.shape != change.shape:
            there = "there is none" if weight is None else f"it has {weight.shape}"
            raise ValueError(
                f"The update of {path!r} has shape {change.shape}, and of this "
                f"parameter {there}. Give what is added to the parameters, in the "
                "structure of the model: `monitor.with_updates(state, model, updates)`."
            )
        record = _squares
        for _ in range(num_layers.get(path, 0)):
            record = jax.vmap(record)
        found[Slot(path, ())] = record(change, weight)
    return found


def _squares(update: Any, weight: Any) -> Recorded:
    made = {}
    for name, x in (("update", update), ("weight", weight)):
        x = numbers.as_numbers(x)
        squares = numbers.squares(x, numbers.nonfinite(x))
        made |= {f"{name}.{part}": y for part, y in squares.items()}
    made["size"] = jnp.full_like(made["weight.n"], jnp.size(weight))
    return Recorded(jnp.stack(list(made.values())), None, None, tuple(made), _WANTED)


def by_path(tree: Any) -> dict[str, Any]:
    """The floating-point arrays of a pytree, by their path."""
    arrays = eqx.filter(tree, eqx.is_inexact_array)
    leaves, _ = jtu.tree_flatten_with_path(arrays)
    dotted = lambda path: ".".join(part for p in path for part in components([p])[0])
    return {dotted(path): leaf for path, leaf in leaves}


def layers_of(paths: Mapping[str, Any], stacks: Mapping[str, tuple[int, ...]]) -> Any:
    """How many leading axes of each parameter are those of layers: as many as what is
    logged of the module around it has, and of these sizes. `stacks` are the sizes by
    the key of the module.
    """
    found = {}
    for path, x in paths.items():
        around = path
        while around:
            around = around.rpartition(".")[0]
            sizes = stacks.get(around or ".", ())
            if sizes and jnp.shape(x)[: len(sizes)] == sizes:
                found[path] = len(sizes)
                break
    return found
