"""A table of effects, by site."""

from typing import Any

import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from .._table import Column, Table
from .frame import metric_name


def shown_axes(effects: Any, key: str) -> str:
    """The swept axes of a site and their sizes: `[layer 30, pos 5]`."""
    axes = effects.axes[key]
    leaves = [x for x in jtu.tree_leaves(effects[key]) if hasattr(x, "shape")]
    if not leaves:
        return f"[{', '.join(axes)}]"
    sizes = zip(axes, leaves[0].shape, strict=False)
    return f"[{', '.join(f'{name} {size}' for name, size in sizes)}]"


def summary(effects: Any) -> Table:
    """Of each metric at each site: the smallest, the largest."""
    columns = (
        Column("site", flexible=True),
        Column("axes", flexible=True),
        Column("metric", flexible=True),
        Column("min", right=True),
        Column("max", right=True),
    )
    rows = []
    for key in effects:
        for path, x in jtu.tree_leaves_with_path(effects[key]):
            name = metric_name(path)
            rows.append((key, shown_axes(effects, key), name, *_extremes(x)))
    notes = []
    for run in ("clean", "corrupted"):
        for path, x in jtu.tree_leaves_with_path(getattr(effects, run)):
            smallest, largest = _extremes(x)
            span = smallest if np.ndim(x) == 0 else f"{smallest} to {largest}"
            notes.append(f"{run}: {metric_name(path)} {span}")
    return Table(columns, rows, notes)


def _extremes(x: Any) -> tuple[str, str]:
    if isinstance(x, Tracer) or np.size(x) == 0:
        return "?", "?"
    x = np.asarray(x).astype(float)
    return f"{np.min(x):.4g}", f"{np.max(x):.4g}"
