"""A log as a `pandas.DataFrame`: what its numbers are like, a row each."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.tree_util as jtu
import numpy as np

from .axes import Axis, start_of
from .containers import is_random_key, numbers_of
from .keys import leaf_name
from .statistics import statistics


KINDS = ("device", "step", "batch")
_NUMBERS = ("mean", "std", "min", "max", "nonfinite")


def to_dataframe(
    entries: Mapping[str, Any],
    counts: Mapping[str, Any],
    axes: Mapping[str, tuple[Axis, ...]],
    rows: str | Sequence[str],
) -> Any:
    """See `Log.to_dataframe`."""
    kinds = (rows,) if isinstance(rows, str) else tuple(rows)
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(
                "`log.to_dataframe(rows=...)` takes the kinds of axes along which "
                f"there is a row each, of {', '.join(map(repr, KINDS))}; got {kind!r}. "
                "`rows=()` is one row for each array."
            )
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            "`log.to_dataframe` needs pandas. Install it with "
            '`pip install "peex[experiments]"`.'
        ) from error
    made = []
    for key, entry in entries.items():
        mine = axes.get(key, ())
        leaves = jtu.tree_flatten_with_path(entry)[0] or [((), None)]
        for path, leaf in leaves:
            name = leaf_name(key, path)
            fixed = {"key": key, "part": leaf_name("", path).lstrip("/")}
            for row in _rows(leaf, name, mine, kinds, counts.get(key)):
                made.append(fixed | row)
    there = dict.fromkeys(name for row in made for name in row)
    has_parts = any(row["part"] for row in made)
    numbered = [name for name in there if name.partition("#")[0] in KINDS]
    order = [
        *("key", *(["part"] if has_parts else [])),
        *sorted(numbered, key=lambda name: (KINDS.index(name.partition("#")[0]), name)),
        *("shape", "dtype", *_NUMBERS, *(["ran"] if counts else [])),
    ]
    columns = {name: [row.get(name) for row in made] for name in order}
    frame = pandas.DataFrame(columns)
    whole = [*numbered, "nonfinite", *(["ran"] if counts else [])]
    floats = dict.fromkeys(("mean", "std", "min", "max"), "float64")
    return frame.astype({**dict.fromkeys(whole, "Int64"), **floats})


def _rows(
    leaf: Any, name: str, axes: tuple[Axis, ...], kinds: Sequence[str], count: Any
) -> Iterator[dict[str, Any]]:
    """Those of one array."""
    times = None if count is None else numbers_of(count, name, "to_dataframe()")
    whole = {} if times is None else {"ran": int(np.sum(times))}
    if leaf is None:
        yield whole
        return
    shape, dtype = np.shape(leaf), str(getattr(leaf, "dtype", type(leaf).__name__))
    start = start_of(axes, shape)
    if is_random_key(leaf) or start is None:
        axes, start = (), 0
    columns: dict[str, int] = {}
    for i, axis in enumerate(axes, start):
        if axis.kind in kinds:
            n = sum(name.partition("#")[0] == axis.kind for name in columns)
            columns[f"{axis.kind}#{n}" if n else axis.kind] = i
    rest = tuple(n for i, n in enumerate(shape) if i not in columns.values())
    if is_random_key(leaf):
        yield {"shape": shape, "dtype": dtype, **whole}
        return
    numbers = numbers_of(leaf, name, "to_dataframe()")
    by_row = np.moveaxis(numbers, tuple(columns.values()), tuple(range(len(columns))))
    for index in np.ndindex(by_row.shape[: len(columns)]):
        at = dict(zip(columns, index, strict=True))
        row = {**at, "shape": rest, "dtype": dtype}
        row |= _numbers(by_row[index]) | whole
        if times is not None:
            row["ran"] = _ran(
                times, axes, {columns[k]: i for k, i in at.items()}, start
            )
        yield row


def _numbers(array: np.ndarray) -> dict[str, Any]:
    found = statistics([array])
    if found.count == 0:
        return {"nonfinite": found.bad}
    numbers = (found.mean, found.std, found.low, found.high, found.bad)
    return dict(zip(_NUMBERS, numbers, strict=True))


def _ran(
    times: np.ndarray, axes: tuple[Axis, ...], at: Mapping[int, int], start: int
) -> int:
    """How often the site ran in one row: counts have the step and batch axes alone."""
    counted = [(i, a) for i, a in enumerate(axes, start) if a.kind != "device"]
    if times.shape != tuple(axis.size for _, axis in counted):
        return int(np.sum(times))
    return int(np.sum(times[tuple(at.get(i, slice(None)) for i, _ in counted)]))
