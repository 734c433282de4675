"""A log as numbers by name, which is what draws curves of them takes."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from .._errors import LogShapeError
from .axes import Axis
from .keys import leaf_name
from .together import shown


def scalars(
    entries: Mapping[str, Any], axes: Mapping[str, tuple[Axis, ...]], prefix: str
) -> dict[str, Any]:
    """**Raises:** `LogShapeError` for arrays that aren't numbers, or one for each step;
    `ValueError` where two have one name.
    """
    leaves = [
        (key, path, leaf)
        for key, entry in entries.items()
        for path, leaf in jtu.tree_flatten_with_path(entry)[0]
    ]
    for key, path, leaf in leaves:
        _check(leaf_name(key, path), leaf, axes.get(key, ()))
    # All at once: each transfer from another device waits.
    known = iter(jax.device_get([x for *_, x in leaves if not isinstance(x, Tracer)]))
    found: dict[str, Any] = {}
    for key, path, leaf in leaves:
        numbers = leaf if isinstance(leaf, Tracer) else np.asarray(next(known))
        for index in np.ndindex(np.shape(leaf)):
            name = f"{prefix}{leaf_name(key, path, index)}"
            if name in found:
                raise ValueError(
                    f"Two numbers of the log have the name {name!r}. Give the sites "
                    "names of your own, as in `where={'first': 'layers.0'}`."
                )
            one = numbers[index]
            found[name] = one if isinstance(one, Tracer) else one.item()
    return found


def _check(name: str, leaf: Any, axes: tuple[Axis, ...]) -> None:
    shape, sizes = np.shape(leaf), tuple(axis.size for axis in axes)
    dtype = getattr(leaf, "dtype", float)
    is_number = jnp.issubdtype(dtype, np.number) or dtype == bool
    others = [i for i, axis in enumerate(axes) if axis.kind != "step"]
    if is_number and (shape == () or (shape == sizes and not others)):
        return
    instead = (
        "Record numbers, as by `log_fn=px.NormLog()`, or reduce it first, as in "
        "`log.map(jnp.mean).scalars()`."
    )
    where = ""
    if is_number and shape == sizes:
        where = f", with a {axes[others[0]].kind} axis"
        axis = others[0] if len(others) == 1 else tuple(others)
        instead = (
            "Reduce that first, as in "
            f"`log.map(lambda x: jnp.mean(x, axis={axis})).scalars()`."
        )
    raise LogShapeError(
        "`log.scalars` takes numbers, alone or one for each step of a loop, but "
        f"{name!r} is {shown(leaf)}{where}. {instead}"
    )
