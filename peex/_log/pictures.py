"""Pictures of an entry of a log."""

from typing import Any

import jax.tree_util as jtu
import numpy as np

from .._errors import LogShapeError
from .axes import Axis, start_of
from .containers import numbers_of
from .keys import leaf_name
from .together import shown


def plot(key: str, entry: Any, axes: tuple[Axis, ...], ax: Any) -> list[Any]:
    """See `Log.plot`."""
    call = f"plot({key!r})"
    leaves = [(leaf_name(key, p), x) for p, x in jtu.tree_flatten_with_path(entry)[0]]
    # Of a record with numbers and arrays, the arrays.
    arrays = [(name, leaf) for name, leaf in leaves if np.ndim(leaf)] or leaves
    drawn = [(name, *_numbers(name, leaf, axes, call)) for name, leaf in arrays]
    if not drawn:
        raise LogShapeError(
            f"There is nothing to plot of {key!r}: it logged no arrays. Record some, "
            "as by `log_fn=px.IdentityLog()`."
        )
    if ax is not None and len(drawn) > 1:
        names = ", ".join(repr(name) for name, *_ in drawn)
        raise ValueError(
            f"`log.{call}` draws {len(drawn)} arrays, {names}, each on axes of its "
            "own: leave `ax` out."
        )
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            "`log.plot` needs matplotlib. Install it with "
            '`pip install "peex[experiments]"`.'
        ) from error
    cells: list[Any] = [ax]
    if ax is None:
        n = len(drawn)
        _, grid = plt.subplots(
            n, figsize=(7, 2.8 * n), layout="constrained", squeeze=False
        )
        cells = list(grid.ravel())
    for cell, (name, numbers, labels) in zip(cells, drawn, strict=True):
        cell.set_title(name, parse_math=False)
        _draw(cell, numbers, labels)
    return cells


def _numbers(
    name: str, leaf: Any, axes: tuple[Axis, ...], call: str
) -> tuple[np.ndarray, list[str]]:
    """What is drawn of an array, the axis that goes to the right last; and what each of
    its axes is.
    """
    numbers = numbers_of(leaf, name, call)
    start = start_of(axes, numbers.shape)
    labels = [""] * numbers.ndim
    for i, axis in enumerate(axes if start is not None else (), start or 0):
        labels[i] = axis.kind
    if not 1 <= numbers.ndim <= 2:
        many = numbers.ndim > 2
        kept = labels.index("step") if "step" in labels else 0
        # One place along all but the step axis and the value's last.
        dropped = [i for i in range(numbers.ndim - 1) if i != kept]
        index = ", ".join("0" if i in dropped else ":" for i in range(numbers.ndim - 1))
        instead = (
            "Choose a place along the others, or reduce them, as in "
            f"`log.map(lambda x: x[{index}]).{call}`."
            if many
            else "Print it instead; `log.scalars()` are all numbers of a log."
        )
        raise LogShapeError(
            f"`log.plot` draws arrays with one or two axes, but {name!r} is "
            f"{shown(leaf)}. {instead}"
        )
    if np.iscomplexobj(numbers):
        numbers = np.abs(numbers)
    numbers = numbers.astype(float)
    if labels[0] == "step":  # time goes to the right
        numbers, labels = numbers.T, labels[::-1]
    return numbers, labels


def _draw(cell: Any, numbers: np.ndarray, labels: list[str]) -> None:
    cell.set_xlabel(labels[-1] or "index")
    cell.xaxis.get_major_locator().set_params(integer=True)
    if numbers.ndim == 1:
        cell.plot(numbers, marker="." if len(numbers) < 60 else None)
        cell.margins(x=0.02)
        cell.spines[["top", "right"]].set_visible(False)
        return
    cell.set_ylabel(labels[0] or "index")
    cell.yaxis.get_major_locator().set_params(integer=True)
    good = numbers[np.isfinite(numbers)]
    low, high = good.min(initial=0), good.max(initial=0)
    # Of both signs: zero is white.
    both = low < 0 < high
    span = max(-low, high)
    limits = (-span, span) if both else (low, high)
    image = cell.imshow(
        np.ma.masked_invalid(numbers),
        cmap="RdBu_r" if both else "viridis",
        vmin=limits[0],
        vmax=limits[1],
        aspect="auto",
        interpolation="nearest",
    )
    cell.set_facecolor("#bbbbbb")  # seen where a number isn't finite
    cell.figure.colorbar(image, ax=cell)
