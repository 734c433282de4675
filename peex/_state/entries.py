"""What stands in a model for state: the value itself or, once exported, a key."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu


class StateEntry(eqx.Module):
    """Marks a value in a model as state: what changes from call to call, and isn't
    trained. [`peex.export_state`][] takes it out, and leaves a [`peex.StateKey`][].

    !!! Example

        ```python
        import equinox as eqx
        import jax.numpy as jnp
        import peex as px

        class Average(eqx.Module):
            mean: px.StateEntry | px.StateKey

            def __init__(self, size):
                self.mean = px.StateEntry(jnp.zeros(size))

            def __call__(self, x, state):
                mean = 0.9 * state[self.mean] + 0.1 * x
                return mean, px.update_state(state, {self.mean: mean})

        average, state = px.export_state(Average(2))
        mean, state = average(jnp.ones(2), state)
        state["mean"]  # [0.1, 0.1]
        ```

    **Arguments:**

    - `value`: any pytree of arrays, without further entries inside.
    """

    value: Any

    def __hash__(self) -> int:
        """Called where it is used as the key that it isn't yet."""
        raise TypeError(
            "A px.StateEntry is no key of a state: it is in a model that wasn't "
            "exported. Write `model, state = px.export_state(model)`, and call that "
            "model with that state."
        )


class StateKey(str):
    """Stands in a model for a [`peex.StateEntry`][] that was exported: the path of
    that, as a string. Inside of a module, `state[self.mean]` is its value.

    A pytree without leaves, so it is static: nothing maps, trains or traces it.

    **Arguments:**

    - `path`: where in the model the entry was, as `"layers.0.mean"`; `"."` if it was
        the whole of it.
    """

    # Shapes and dtypes of the value; `None` where it isn't known: JAX has put the key
    # together anew, perhaps under a `vmap`, where these differ.
    like: Any = None

    def __repr__(self) -> str:
        return f"StateKey({str(self)!r})"


jtu.register_pytree_node(
    StateKey, lambda key: ((), str(key)), lambda path, _: StateKey(path)
)


def key_of(path: str, value: Any) -> StateKey:
    """The key that is left in the place of this value."""
    key = StateKey(path)
    key.like = shapes(value)
    return key


def shapes(value: Any) -> Any:
    """A value without what is in its arrays."""

    def one(leaf: Any) -> Any:
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        if eqx.is_array_like(leaf):
            return jax.ShapeDtypeStruct((), jnp.result_type(leaf))
        return leaf

    return jtu.tree_map(one, value)


def shown(value: Any) -> str:
    """What a value holds, for an error message."""
    leaves, structure = jtu.tree_flatten(shapes(value))
    texts = [
        f"{x.dtype}{list(x.shape)}"
        if isinstance(x, jax.ShapeDtypeStruct)
        else f"a {type(x).__name__}"
        for x in leaves
    ]
    if len(texts) == 1 and jtu.treedef_is_leaf(structure):
        return texts[0]
    return f"{', '.join(texts) or 'nothing'} in {structure}"
