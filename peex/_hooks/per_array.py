"""Calculating with each array of a value, in its own dtype."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._errors import HookShapeError


def per_array(fn: Callable[[Any], Any], value: PyTree[Any]) -> PyTree[Any]:
    """Applies `fn` to every array; random keys, with which one can't calculate, are
    left as they are.
    """

    known: dict[int, Any] = {}

    def one(x: Any) -> Any:
        if jnp.issubdtype(x.dtype, jax.dtypes.extended):
            return x
        if id(x) not in known:  # one array that is there twice stays one
            known[id(x)] = fn(x)
        return known[id(x)]

    return jtu.tree_map(one, value)


def calculate(fn: Callable[[Any], Any], x: Any, name: str, other: Any) -> Any:
    """`fn(x)` in the dtype of `x`, calculated in one that both operands fit in, in the
    strict modes of JAX too.

    **Raises:** `HookShapeError` if the other operand doesn't broadcast to `x`.
    """
    shape = jnp.shape(other)
    try:
        broadcasts = jnp.broadcast_shapes(shape, x.shape) == tuple(x.shape)
    except ValueError:
        broadcasts = False
    if not broadcasts:
        raise HookShapeError(
            f"its {name} of shape {list(shape)} doesn't broadcast to the value, "
            f"{x.dtype}{list(x.shape)}. Give one that does, as "
            f"`jnp.zeros({tuple(x.shape)})`, or choose other sites with `where`."
        )
    wide = x
    if jnp.issubdtype(x.dtype, jnp.floating) and jnp.finfo(x.dtype).bits <= 8:
        wide = x.astype(jnp.float32)  # nothing else is promoted with these
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        result = jnp.asarray(fn(wide))
    if jnp.iscomplexobj(result) and not jnp.iscomplexobj(x):
        result = result.real
    return result.astype(x.dtype)
