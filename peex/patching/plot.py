"""Pictures of effects: sites by positions."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._errors import PeexError
from .._sites.patterns import nearest


# As many labels can be read along an axis.
_LABELS = 40


@dataclasses.dataclass(frozen=True)
class Picture:
    """Rows by columns, with what is written along them."""

    title: str
    rows: str
    columns: str
    values: np.ndarray
    row_labels: Sequence[Any] | None


def plot(
    values: Mapping[str, np.ndarray],
    axes: Mapping[str, tuple[str, ...]],
    base: float,
    labels: Mapping[str, Sequence[Any]],
) -> list[Any]:
    """See `Effects.plot`."""
    pictures = _pictures(values, axes)
    _check_labels(labels, values, axes)
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            "`Effects.plot` needs matplotlib. Install it with "
            '`pip install "peex[experiments]"`.'
        ) from error

    farthest = [
        np.abs(v[np.isfinite(v)] - base).max(initial=0) for v in values.values()
    ]
    span = max(farthest, default=0) or 1.0
    number = len(pictures)
    wide = number if number <= 3 else math.ceil(number**0.5)
    high = math.ceil(len(pictures) / wide)
    widths = [min(max(0.3 * p.values.shape[1] + 1.5, 3), 12) for p in pictures]
    heights = [min(max(0.22 * p.values.shape[0] + 1.5, 2), 9) for p in pictures]
    figure, grid = plt.subplots(
        high,
        wide,
        figsize=(wide * max(widths) + 1, high * max(heights)),
        layout="constrained",
        squeeze=False,
    )
    cells = list(grid.ravel())
    for cell in cells[len(pictures) :]:
        cell.set_visible(False)
    cells = cells[: len(pictures)]
    for cell, picture in zip(cells, pictures, strict=True):
        cell.imshow(
            picture.values,
            cmap="RdBu_r",
            vmin=base - span,
            vmax=base + span,
            aspect="auto",
            interpolation="nearest",
        )
        cell.set_title(picture.title, parse_math=False)
        cell.set_xlabel(picture.columns, parse_math=False)
        cell.set_ylabel(picture.rows, parse_math=False)
        rows, columns = picture.values.shape
        row_labels = picture.row_labels or labels.get(picture.rows)
        _write(cell.yaxis, rows, row_labels, rotation=0)
        _write(cell.xaxis, columns, labels.get(picture.columns), rotation=90)
    figure.colorbar(cells[0].images[0], ax=cells, label="metric")
    return cells


def _pictures(
    values: Mapping[str, np.ndarray], axes: Mapping[str, tuple[str, ...]]
) -> list[Picture]:
    """One for each site with two axes, and one for all that have the same one."""
    if not values:
        raise PeexError("There is nothing to plot: these effects have no sites.")
    together: dict[Any, list[str]] = {}
    for key, names in axes.items():
        if len(names) not in (1, 2):
            raise PeexError(
                f"`Effects.plot` draws one or two swept axes, but {key!r} has "
                f"{len(names)}: {', '.join(names)}. Sweep fewer with `axes`, or draw "
                f"`effects[{key!r}]` yourself."
            )
        alike = (names, values[key].shape) if len(names) == 1 else key
        together.setdefault(alike, []).append(key)
    made = []
    for keys in together.values():
        names = axes[keys[0]]
        if len(names) == 2:
            made.append(Picture(keys[0], *names, values[keys[0]], None))
        else:
            rows = np.stack([values[key] for key in keys])
            made.append(Picture("", "", names[0], rows, keys))
    return made


def _check_labels(
    labels: Mapping[str, Sequence[Any]],
    values: Mapping[str, np.ndarray],
    axes: Mapping[str, tuple[str, ...]],
) -> None:
    known = {name for names in axes.values() for name in names}
    for name, mine in labels.items():
        if name not in known:
            raise PeexError(
                f"`labels` has {name!r}, which isn't a swept axis. Nearest: "
                f"{nearest(name, sorted(known))}."
            )
        for key, names in axes.items():
            n = values[key].shape[names.index(name)] if name in names else len(mine)
            if n != len(mine):
                raise PeexError(
                    f"`labels[{name!r}]` has {len(mine)} labels, but that axis of "
                    f"{key!r} is {n} long."
                )


def _write(axis: Any, n: int, labels: Sequence[Any] | None, rotation: int) -> None:
    every = math.ceil(n / _LABELS) if labels is not None else math.ceil(n / 15)
    ticks = range(0, n, max(every, 1))
    if labels is None:
        axis.set_ticks(ticks)
    else:
        # A token may be a dollar sign.
        shown = [str(labels[i]) for i in ticks]
        axis.set_ticks(ticks, shown, rotation=rotation, parse_math=False)
