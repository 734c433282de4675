"""Effects as a `pandas.DataFrame`."""

from collections.abc import Mapping
from typing import Any

import jax.tree_util as jtu
import numpy as np


def metric_name(path: Any) -> str:
    """The name of an array in the pytree of a metric."""
    return jtu.keystr(path, simple=True, separator=".") or "metric"


def to_dataframe(values: Mapping[str, Any], axes: Mapping[str, tuple[str, ...]]) -> Any:
    """See `Effects.to_dataframe`."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            "`Effects.to_dataframe` needs pandas. Install it with "
            '`pip install "peex[experiments]"`.'
        ) from error
    names = dict.fromkeys(name for mine in axes.values() for name in mine)
    # A name that is taken is written with what it is of.
    axis_columns = {n: f"axis.{n}" if n == "site" else n for n in names}
    taken = {"site", *axis_columns.values()}
    frames = []
    for key, value in values.items():
        mine = axes[key]
        leaves = jtu.tree_leaves_with_path(value)
        shape = np.shape(leaves[0][1])[: len(mine)] if leaves else (0,) * len(mine)
        columns: dict[str, Any] = {"site": [key] * int(np.prod(shape, dtype=int))}
        for name in names:
            i = mine.index(name) if name in mine else None
            index = None if i is None else np.indices(shape)[i].ravel()
            columns[axis_columns[name]] = pandas.array(
                [None] * len(columns["site"]) if index is None else index, dtype="Int64"
            )
        for path, x in leaves:
            name = metric_name(path)
            name = f"metric.{name}" if name in taken else name
            x = np.asarray(x)
            inner = x.shape[len(mine) :]
            for at in np.ndindex(*inner):
                column = f"{name}[{','.join(map(str, at))}]" if inner else name
                columns[column] = x[(..., *at)].ravel()
        frames.append(pandas.DataFrame(columns))
    if not frames:
        return pandas.DataFrame({"site": []})
    return pandas.concat(frames, ignore_index=True)
