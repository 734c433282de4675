"""Masks over what is logged: which shapes they may have, and where they hold."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Bool

from .._errors import LogShapeError
from .._sites.patterns import logged_matches


if TYPE_CHECKING:
    OneMask = bool | Bool[Any, "..."]
    Mask = OneMask | Mapping[str, OneMask | None]
else:
    # Checked by peex itself, whose errors say what to write instead.
    Mask = Any


def is_mask(mask: Any) -> bool:
    """Whether it is a bool or an array of these."""
    return isinstance(mask, bool) or getattr(mask, "dtype", None) == bool


def may_match(pattern: str, key: str) -> bool:
    """Whether a pattern may choose one of the calls of a site, from the key of all."""
    return logged_matches(re.sub(r"#\d+", "", pattern), key)


def fitted(
    key: str, mask: Any, logged: jax.ShapeDtypeStruct, what: str = "The mask"
) -> Any:
    """A mask (or what else there is one of for each place) with as many axes as what is
    logged, each as long or of size 1.

    **Raises:** `LogShapeError` if it doesn't broadcast to that; or if it has fewer
    axes, and it can't be known which these are.
    """
    mask = np.asarray(mask) if isinstance(mask, bool) else mask
    shape, whole = tuple(mask.shape), tuple(logged.shape)
    missing = len(whole) - len(shape)
    fits = lambda of: all(
        n in (1, m) for n, m in zip(shape, of, strict=False) if type(m) is int
    )
    shown = f"{logged.dtype}{list(whole)}"
    if missing < 0 or not fits(whole[missing:]):
        last = f"x.reshape({shape + (1,) * missing})"
        hint = f" For its first axes, write `{last}`." if missing > 0 else ""
        raise LogShapeError(
            f"{what} for the site {key!r}, of shape {shape}, doesn't broadcast "
            f"against what is logged there, {shown} (device, step and batch axes in "
            f"front).{hint}"
        )
    if missing and any(n != 1 for n in shape) and fits(whole):
        raise LogShapeError(
            f"{what} for the site {key!r}, of shape {shape}, may be of the first or "
            f"of the last axes of what is logged there, {shown}. Give it an axis for "
            f"each of these: `x.reshape({shape + (1,) * missing})` or "
            f"`x.reshape({(1,) * missing + shape})`."
        )
    return mask.reshape((1,) * missing + shape)


def varied(shape: Sequence[int], masks: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The shape of an array, with 1 for the axes along which no mask varies."""

    def varies(back: int) -> bool:
        return any(len(mask) >= back and mask[-back] != 1 for mask in masks)

    rank = len(shape)
    return tuple(n if varies(rank - i) else 1 for i, n in enumerate(shape))


def holds_somewhere(masks: Sequence[Any], num_axes: int, shape: Sequence[int]) -> Any:
    """Whether any of these masks holds anywhere, for each place of their first axes,
    which are of this shape.
    """
    holds: Any = np.zeros((1,) * num_axes, bool)
    for mask in masks:
        holds = holds | mask.any(axis=tuple(range(num_axes, mask.ndim)))
    return broadcast(holds, shape)


def broadcast(mask: Any, shape: Sequence[Any]) -> Any:
    """A mask of this shape; NumPy's stays one, whose values are known while tracing."""
    of_numpy = isinstance(mask, np.ndarray | np.generic)
    symbolic = any(type(n) is not int for n in shape)
    lib = np if of_numpy and not symbolic else jnp
    return lib.broadcast_to(mask, tuple(shape))


def is_known(flag: Any) -> bool:
    """Whether the value of a flag is known while this is traced."""
    return not isinstance(flag, Tracer)
