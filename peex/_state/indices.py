"""The state of Equinox's own layers: what an `eqx.nn.State` holds, by the path of the
`eqx.nn.StateIndex` in the model that it is looked up by.
"""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.tree_util as jtu

from .._errors import PeexError
from .._sites.keys import Key
from .._sites.walk import children


def named(model: Any, eqx_state: eqx.nn.State) -> dict[str, Any]:
    """The values of a State by path."""
    values = {}
    for path, index in indices_of(model).items():
        try:
            values[path] = eqx_state.get(index)
        except KeyError:
            raise PeexError(
                f"The `eqx.nn.State` holds nothing for {path!r}, a `StateIndex` of "
                "this model, so it is another model's. Give the two that "
                "`eqx.nn.make_with_state(Model)(...)` returned together."
            ) from None
    return values


def renewed(
    model: Any, eqx_state: eqx.nn.State, values: Mapping[str, Any]
) -> eqx.nn.State:
    """A State with these values. The one that is given can still be used."""
    leaves, structure = jtu.tree_flatten(eqx_state)
    new = structure.unflatten(leaves)  # `set` spoils what it is called on
    for path, index in indices_of(model).items():
        new = new.set(index, values[path])
    return new


def indices_of(model: Any) -> dict[str, eqx.nn.StateIndex[Any]]:
    """The indices in a model by path; one that is there twice by the first."""
    found: dict[str, eqx.nn.StateIndex[Any]] = {}
    seen: set[Any] = set()

    def visit(key: Key, node: Any) -> None:
        if isinstance(node, eqx.nn.StateIndex):
            if node.marker not in seen:
                seen.add(node.marker)
                found[".".join(key) or "."] = node
            return
        for child in children(key, node):
            visit(*child)

    visit((), model)
    return found
