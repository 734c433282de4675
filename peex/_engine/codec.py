"""The entries of a backward log as cotangents, and back: integers and booleans are held
in floating point, since only floating point cotangents exist.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from .. import _compat
from .._errors import LogValueError


class Encoded(eqx.Module):
    """Integers or booleans, held in floating point so that they can be a cotangent.

    `parts` has one more axis, behind the others: parts of 8 bits, low first, the last
    with the sign, and behind them a one. Sums and multiples of these are sums and
    multiples of the integers; the last number says how many were summed, and so whether
    the sums of the parts, which floating point must hold exactly, are right.
    """

    parts: Array
    dtype: Any = eqx.field(static=True)

    def decode(self) -> Array:
        """The integers, after sums and multiples rounded towards zero.

        **Raises:** `LogValueError` if more were summed than can be right.
        """
        if not isinstance(self.parts, jax.Array):
            return self.parts  # a placeholder of JAX's
        concrete = not isinstance(self.parts, Tracer)
        if concrete and self.parts.is_fully_addressable:
            # By NumPy: whatever trace is current, this is known now.
            most = int(2 ** (jnp.finfo(self.parts.dtype).nmant + 1 - _BITS))
            summed = float(np.max(np.asarray(self.parts)[..., -1], initial=0))
            if summed > most:
                raise LogValueError(
                    f"An integer log of a backward hook was summed over {summed:.0f} "
                    f"examples; up to {most} it is exact. Map inside of the wrapper, "
                    "as `eqx.filter_vmap(model)` or `px.value_and_grad` do: then it is "
                    "logged for each example. Or log floating point numbers."
                )
        wide = jnp.int64 if jnp.dtype(self.dtype).itemsize == 8 else jnp.int32
        # From the highest part down, what is left of each goes to the next.
        *low, high = jnp.moveaxis(self.parts[..., :-1], -1, 0)
        whole = jnp.trunc(high)
        total, rest = whole.astype(wide), high - whole
        for part in reversed(low):
            part = part + rest * float(2**_BITS)
            whole = jnp.floor(part)
            total, rest = (total << _BITS) + whole.astype(wide), part - whole
        total = total + ((rest > 0) & (total < 0)).astype(wide)
        return total.astype(self.dtype)


_BITS = 8


def _is_encoded(dtype: Any) -> bool:
    return not jnp.issubdtype(dtype, jnp.inexact)


def encode(logs: Sequence[Array]) -> list[Array]:
    """Log leaves as cotangents."""

    def one(x: Array) -> Array:
        if not _is_encoded(x.dtype):
            return x
        size = jnp.dtype(x.dtype).itemsize
        wide = x.astype(jnp.int64 if size == 8 else jnp.int32)
        parts = [wide >> (_BITS * i) for i in range(size)]
        signed = jnp.issubdtype(x.dtype, jnp.signedinteger)
        low, high = (parts[:-1], parts[-1:]) if signed else (parts, [])
        low = [part & (2**_BITS - 1) for part in low]
        return jnp.stack([*low, *high, jnp.ones_like(wide)], -1).astype(
            jnp.float64 if size == 8 else jnp.float32
        )

    return [one(x) for x in logs]


def encoded_shapes(logs: Sequence[Any]) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Shapes and dtypes of `encode(logs)`."""
    if any(_is_encoded(x.dtype) for x in logs):
        logs = jax.eval_shape(encode, logs)
    return tuple(map(_compat.plain_shape, logs))


def pack(treedef: Any, dtypes: Sequence[Any], buffers: Sequence[Any]) -> Any:
    """The entry of a backward log: buffers in the structure that `log_fn` returned,
    those of integers marked as encoded.
    """
    leaves = [
        Encoded(b, d) if _is_encoded(d) else b
        for b, d in zip(buffers, dtypes, strict=True)
    ]
    return jtu.tree_unflatten(treedef, leaves)


def shown(entry: Any) -> str:
    """What an entry of a backward log holds, for an error message."""
    is_encoded = lambda x: isinstance(x, Encoded)
    leaves, treedef = jtu.tree_flatten(entry, is_leaf=is_encoded)
    shapes = [jnp.shape(x.parts if is_encoded(x) else x) for x in leaves]
    return shown_as(treedef, [x.dtype for x in leaves], shapes)


def shown_as(treedef: Any, dtypes: Sequence[Any], shapes: Sequence[Any]) -> str:
    """The same, of the structure and dtypes that `log_fn` returned, and the shapes of
    the buffers. The structure is shown where it isn't just one array.
    """
    arrays = [
        f"{jnp.dtype(d)}{list(s[:-1] if _is_encoded(d) else s)}"
        for d, s in zip(dtypes, shapes, strict=True)
    ]
    if len(arrays) == 1 and jtu.treedef_is_leaf(treedef):
        return arrays[0]
    return f"{', '.join(arrays) or 'nothing'} in {treedef}"


def buffers_of(entry: Any) -> list[Any]:
    """The buffers of an entry of a backward log, the inverse of `pack`."""
    return jtu.tree_leaves(entry)
