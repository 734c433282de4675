"""The largest magnitude in a value, by which it is told whether it is finite."""

from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree


FINITE, INF, NAN = 0, 1, 2
KINDS = ("finite", "inf", "nan")


def magnitude(value: PyTree[Any]) -> Float[Array, ""]:
    """The largest absolute value in all floating-point arrays of a value: NaN if there
    is one, inf if there is one and no NaN; 0 where there is no such array. In float32,
    or in float64 if there is any of that.
    """
    found = [_largest(x) for x in jtu.tree_leaves(value) if _is_float(x)]
    wide = any(x.dtype == jnp.float64 for x in found)
    dtype = jnp.float64 if wide else jnp.float32
    largest = jnp.zeros((), dtype)
    for x in found:
        largest = jnp.maximum(largest, x.astype(dtype))
    return largest


def is_bad(value: PyTree[Any]) -> Bool[Array, ""]:
    """Whether something in the floating-point arrays of a value isn't finite."""
    bad = jnp.zeros((), bool)
    for x in filter(_is_float, jtu.tree_leaves(value)):
        # As integers of one byte, which are compared many at a time.
        here = (~jnp.isfinite(jnp.asarray(x))).astype(jnp.int8)
        bad |= jnp.max(here, initial=0) != 0
    return bad


def kinds(largest: np.ndarray) -> np.ndarray:
    """The kinds of magnitudes that are known."""
    return np.where(np.isnan(largest), NAN, np.where(np.isinf(largest), INF, FINITE))


def _is_float(x: Any) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.inexact)


def _largest(x: Any) -> Float[Array, ""]:
    x = jnp.asarray(x)
    if jnp.iscomplexobj(x):
        return jnp.maximum(_largest(x.real), _largest(x.imag))
    x = x.astype(jnp.float32) if x.dtype.itemsize < 2 else x
    return jnp.max(jnp.abs(x), initial=0)
