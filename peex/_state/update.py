"""New values for some entries of a state."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu

from .._errors import PeexError
from .._sites.patterns import nearest
from .entries import shown


def update_state(state: Mapping[str, Any], values: Mapping[Any, Any]) -> dict[str, Any]:
    """A state with other values for some of its paths. The one that is given stays as
    it is.

    !!! Example

        ```python
        import jax.numpy as jnp
        import peex as px

        tree = {"mean": px.StateEntry(jnp.zeros(2)), "n": px.StateEntry(jnp.array(0))}
        _, state = px.export_state(tree)
        state = px.update_state(state, {"mean": jnp.ones(2)})
        ```

    **Arguments:**

    - `state`: from [`peex.export_state`][].
    - `values`: from paths (a [`peex.StateKey`][] is one) to values, each with the tree
        structure, shapes and dtypes of the one that it takes the place of, so that a
        state can be what a loop carries.

    **Returns:**

    The new state: a dict with the paths of the old one, in their order.

    **Raises:**

    [`peex.PeexError`][]: a path that the state doesn't have, or a value unlike the old
    one.
    """
    new = dict(state)
    for path, value in values.items():
        if path not in new:
            raise PeexError(
                f"The state has no entry {str(path)!r}, so it can't be updated. "
                f"Nearest: {nearest(path, new)}. What is state is marked in the model, "
                "by `px.StateEntry(...)`, before `px.export_state`."
            )
        as_array = lambda x: jnp.asarray(x) if eqx.is_array_like(x) else x
        value = jtu.tree_map(as_array, value)
        expected, got = shown(new[path]), shown(value)
        if got != expected:
            raise PeexError(
                f"The state's entry {str(path)!r} holds {expected}; it can't become "
                f"{got}. Give a value of that structure, shape and dtype, as by "
                "`new.astype(old.dtype)`."
            )
        new[str(path)] = value
    return new
