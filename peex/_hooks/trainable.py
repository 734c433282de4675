"""Which parts of a wrapper are to be trained."""

from typing import Any

import equinox as eqx
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._log import Log
from .._sites.walk import AbstractWrapper, with_fields


def trainable(hooked: Any) -> PyTree[bool]:
    """A filter for what of a wrapper is to be trained where its hooks are, and its
    model isn't: the floating-point arrays of `hook_fn`, apart from those in logs
    (sources and other data). Of wrappers around wrappers, the hooks of all.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        mlp = eqx.nn.MLP(2, 1, 8, depth=2, key=jax.random.key(0))
        _, source = px.ForwardHook(mlp, where="layers.1")(jnp.ones(2))
        rotate = px.RotateHook(source, 8, 2, jax.random.key(1))
        hooked = px.ForwardHook(mlp, rotate, None, where="layers.1")

        trained, fixed = eqx.partition(hooked, px.trainable(hooked))

        @eqx.filter_jit
        @eqx.filter_grad
        def grad(trained, fixed, x):
            out, _ = eqx.combine(trained, fixed)(x)
            return jnp.sum(out)

        grad(trained, fixed, jnp.zeros(2)).hook_fn.weight  # shape (8, 2)
        ```

    **Arguments:**

    - `hooked`: a [`peex.ForwardHook`][] or [`peex.BackwardHook`][].

    **Returns:**

    A pytree of bools of the structure of the wrapper, as `equinox.partition` takes it.

    **Raises:**

    `TypeError` for what is no wrapper.
    """
    if not isinstance(hooked, AbstractWrapper):
        raise TypeError(
            f"`px.trainable` takes a wrapper, as `px.ForwardHook(model, hook)`; got a "
            f"{type(hooked).__name__}. Of a model, `eqx.is_inexact_array` says what is "
            "to be trained."
        )
    spec = jtu.tree_map(lambda _: False, hooked)
    model: Any = hooked.model
    hook_fn: Any = getattr(hooked, "hook_fn", None)
    if isinstance(model, AbstractWrapper):
        spec = with_fields(spec, model=trainable(model))
    return with_fields(spec, hook_fn=_arrays(hook_fn))


def _arrays(hook: Any) -> Any:
    is_log = lambda x: isinstance(x, Log)

    def one(x: Any) -> Any:
        if is_log(x):
            return jtu.tree_map(lambda _: False, x)
        return eqx.is_inexact_array(x)

    return jtu.tree_map(one, hook, is_leaf=is_log)
