"""A picture of a comparison: the errors by call."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .compared import Row


# As many labels can be read along the axis.
_LABELS = 60
# What is drawn for an infinite error.
_MOST = 1e2


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
        size = (min(max(0.2 * len(rows) + 3, 6), 16), 5)
        _, ax = plt.subplots(figsize=size, layout="constrained")
    places = np.arange(len(rows))
    lines = {
        "whole run": [row.error for row in rows],
        "local": [row.local_error for row in rows],
        "backward": [row.cotangent_error for row in rows],
    }
    sizes = [x for errors in lines.values() for x in errors if x]
    # For no error at all, below all others and the tolerances.
    sizes = [*sizes, *(row.local_tolerance for row in rows if row.local_tolerance)]
    least = 10.0 ** np.floor(np.log10(min(sizes, default=1e-8)) - 0.5)
    shown = lambda x: np.nan if x is None else float(np.clip(x, least, _MOST))
    colors = ("C0", "C3", "C2")
    for (name, errors), marker, color in zip(lines.items(), "osv", colors, strict=True):
        if any(x is not None for x in errors):
            # Of local errors, none has to do with the next.
            style = "none" if name == "local" else "-"
            drawn = [shown(x) for x in errors]
            ax.plot(places, drawn, ls=style, marker=marker, ms=4, c=color, label=name)
    limits = {"--": [r.tolerance for r in rows], ":": [r.local_tolerance for r in rows]}
    for style, mine in limits.items():
        name = "tolerance" if style == "--" else "local tolerance"
        ax.plot(places, mine, color="0.5", ls=style, lw=1, label=name)
    for i, row in enumerate(rows):
        if row.key in culprits:
            ax.axvline(i, color="C3", lw=0.8, alpha=0.5, zorder=0)
            ax.annotate(
                row.key,
                (i, 1),
                xycoords=("data", "axes fraction"),
                xytext=(0, 3),
                textcoords="offset points",
                rotation=90 if len(culprits) > 3 else 0,
                ha="center",
                va="bottom",
                fontsize=8,
                color="C3",
                parse_math=False,
            )
    ax.set_yscale("log")
    ax.set_ylabel(f"error, of the largest value (0 at {least:.0e})")
    every = max(1, -(-len(rows) // _LABELS))
    ax.set_xticks(
        places[::every],
        [row.key for row in rows[::every]],
        rotation=90,
        fontsize=7,
        parse_math=False,
    )
    ax.margins(x=0.02, y=0.1)
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return ax
