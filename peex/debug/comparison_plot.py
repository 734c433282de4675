"""A picture of a comparison: the errors by call."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .compared import Row


# As many labels can be read along the axis.
_LABELS = 60
# What is drawn for no error at all, and for an infinite one.
_LEAST, _MOST = 1e-12, 1e2


def plot(rows: Sequence[Row], culprits: Sequence[str], ax: Any = None) -> Any:
    """See `Comparison.plot`."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            "`Comparison.plot` needs matplotlib. Install it with "
            '`pip install "peex[experiments]"`.'
        ) from error
    if ax is None:
        size = (min(max(0.16 * len(rows) + 3, 6), 16), 4.8)
        _, ax = plt.subplots(figsize=size, layout="constrained")
    places = np.arange(len(rows))
    lines = {
        "whole run": [row.error for row in rows],
        "local": [row.local_error for row in rows],
        "backward": [row.cotangent_error for row in rows],
    }
    for (name, errors), marker in zip(lines.items(), "osv", strict=True):
        if any(x is not None for x in errors):
            shown = [np.nan if x is None else _shown(x) for x in errors]
            ax.plot(places, shown, marker=marker, ms=3.5, lw=1, label=name)
    limits = [row.tolerance for row in rows]
    ax.plot(places, limits, color="0.5", ls="--", lw=1, label="tolerance")
    for i, row in enumerate(rows):
        if row.key in culprits:
            far = max(row.error, row.local_error or 0.0)
            ax.annotate(
                row.key,
                (i, _shown(far)),
                xytext=(0, 8),
                textcoords="offset points",
                ha="center",
                color="tab:red",
                parse_math=False,
            )
            ax.axvline(i, color="tab:red", lw=0.8, alpha=0.5, zorder=0)
    ax.set_yscale("log")
    ax.set_ylabel("error, of the largest value")
    every = max(1, -(-len(rows) // _LABELS))
    ax.set_xticks(
        places[::every],
        [row.key for row in rows[::every]],
        rotation=90,
        fontsize=7,
        parse_math=False,
    )
    ax.margins(y=0.15)
    ax.legend()
    return ax


def _shown(x: float) -> float:
    return float(np.clip(x, _LEAST, _MOST))
