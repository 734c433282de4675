"""Pictures of how activations grow with the width of a model."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


# As many lines can be named beside a picture.
_NAMED = 25


def plot(
    widths: Sequence[int], rms: Mapping[str, np.ndarray], slopes: Mapping[str, Any]
) -> list[Any]:
    """See `CoordCheck.plot`."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            "`CoordCheck.plot` needs matplotlib. Install it with "
            '`pip install "peex[experiments]"`.'
        ) from error

    steps = next(iter(rms.values())).shape[-1]
    wide = min(steps, 4)
    high = -(-steps // wide)
    figure, grid = plt.subplots(
        high,
        wide,
        figsize=(3.2 * wide + 2.5, 3 * high + 0.5),
        layout="constrained",
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    cells = list(grid.ravel())
    for cell in cells[steps:]:
        cell.set_visible(False)
    cells = cells[:steps]
    # In the order in which the sites run, from dark to light.
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.9, max(len(rms), 2)))
    for step, cell in enumerate(cells):
        for (site, values), colour in zip(rms.items(), colours, strict=False):
            mean = np.exp(np.log(np.maximum(values[:, :, step], 1e-45)).mean(axis=1))
            mean = np.where(values[:, :, step].min(axis=1) > 0, mean, np.nan)
            cell.plot(widths, mean, ".-", color=colour, label=site)
        cell.set_xscale("log", base=2)
        cell.set_yscale("log", base=2)
        cell.set_title(f"step {step}")
        cell.grid(alpha=0.3)
    for cell in grid[:, 0]:
        cell.set_ylabel("rms")
    for cell in grid[-1]:
        cell.set_xlabel("width")
    lines, sites = cells[-1].get_legend_handles_labels()
    named = [f"{site} ({slopes[site][-1]:+.2f})" for site in sites]
    if len(sites) <= _NAMED:
        title = f"slope at step {steps - 1}"
        legend = figure.legend(
            lines, named, loc="outside right upper", title=title, fontsize="small"
        )
        for text in legend.get_texts():
            text.set_parse_math(False)  # a key may hold a dollar sign
    return cells
