"""Measures what hooks cost, next to the same model without them, edited by hand, and
hooked by other libraries: `python benchmarks/run.py`. See the README beside it.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax


# As a script, this isn't part of a package.
sys.path.append(str(pathlib.Path(__file__).parents[1]))
from benchmarks import (
    attribution,
    calls,
    compiled,
    debugging,
    models,
    monitoring,
    patching,
    splice,
    timing,
    tracing,
)
from benchmarks.contestants import PEERS
from benchmarks.rows import Bench, Figure, Outcome


FIGURES = (
    *compiled.FIGURES,
    *tracing.FIGURES,
    *calls.FIGURES,
    *patching.FIGURES,
    *attribution.FIGURES,
    *splice.FIGURES,
    *debugging.FIGURES,
    *monitoring.FIGURES,
)

_PACKAGES = (
    "jax",
    "jaxlib",
    "equinox",
    "numpy",
    "flax",
    "penzai",
    "oryx",
    "torchlens",
    "torch",
    "transformer-lens",
    "nnsight",
)


class Job(NamedTuple):
    figure: Figure
    case: str

    @property
    def name(self) -> str:
        return f"{self.figure.name}, {self.case}" if self.case else self.figure.name


class Row(NamedTuple):
    job: Job
    outcome: Outcome

    @property
    def missed(self) -> list[str]:
        """What isn't as it should be."""
        limit, outcome = self.job.figure.limit, self.outcome
        missed = [what for what, holds in outcome.checks.items() if not holds]
        if limit is not None and outcome.value > limit:
            missed.insert(0, f"{outcome.value:.3g} > {limit:g}")
        return missed


def jobs(only: str) -> list[Job]:
    """Those whose name contains `only`."""
    every = (Job(figure, case) for figure in FIGURES for case in figure.cases)
    return [job for job in every if only.lower() in job.name.lower()]


def measure(selected: Sequence[Job], bench: Bench) -> Iterator[Row]:
    for job in selected:
        yield Row(job, job.figure.measure(bench, job.case))


def machine() -> dict[str, Any]:
    """Where this runs, and what with."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "load": [round(x, 2) for x in os.getloadavg()],
        "device": jax.devices()[0].device_kind,
        "python": platform.python_version(),
        "versions": versions,
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }


def _processor() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def headline(where: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {v}" for name, v in where["versions"].items())
    return (
        f"{where['processor']}, {where['cores']} cores, load {where['load'][0]}, "
        f"{where['system']}\nPython {where['python']}, {versions}"
    )


def table(rows: Sequence[Row]) -> list[list[str]]:
    """A header and a line for each row; columns that hold nothing are left out."""
    columns = ["unhooked", "peex", "value_and_grad", "by hand", "checkify", *PEERS]
    columns = [c for c in columns if any(c in row.outcome.cells for row in rows)]
    lines = [["figure", "case", *columns, "target", "met"]]
    for figure_rows in _by_figure(rows):
        for i, row in enumerate(figure_rows):
            figure, cells = row.job.figure, row.outcome.cells
            met = "" if figure.limit is None else "; ".join(row.missed) or "yes"
            lines.append(
                [
                    "" if i else figure.name,
                    row.job.case,
                    *(cells.get(c, "") for c in columns),
                    figure.target,
                    met,
                ]
            )
    return lines


def _by_figure(rows: Sequence[Row]) -> list[list[Row]]:
    groups: dict[Figure, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.job.figure, []).append(row)
    return list(groups.values())


def show(lines: Sequence[Sequence[str]]) -> None:
    header, *body = lines
    try:
        from rich import box, console, table as rich_table
    except ModuleNotFoundError:
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            cells = zip(line, widths, strict=True)
            print("  ".join(cell.ljust(width) for cell, width in cells).rstrip())
        return
    shown = rich_table.Table(*header, box=box.SIMPLE_HEAD)
    for line in body:
        shown.add_row(*line)
    terminal = console.Console()
    # Into a file or a pipe, as wide as it is.
    wide = console.Console(width=400)
    (terminal if terminal.is_terminal else wide).print(shown)


def as_json(
    where: dict[str, Any], rows: Sequence[Row], skipped: dict[str, dict[str, str]]
) -> dict[str, Any]:
    return {
        "machine": where | {"load_afterwards": os.getloadavg()},
        "skipped": skipped,
        "rows": [
            {
                "figure": row.job.figure.name,
                "case": row.job.case,
                "target": row.job.figure.target,
                "limit": row.job.figure.limit,
                "value": row.outcome.value,
                "missed": row.missed,
                "cells": row.outcome.cells,
                "checks": row.outcome.checks,
                **row.outcome.data,
            }
            for row in rows
        ],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=pathlib.Path, metavar="PATH", help="write this")
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="of a row")
    parser.add_argument("--quick", action="store_true", help="few rounds: a rough idea")
    options = parser.parse_args(arguments)

    selected = jobs(options.only)
    if not selected:
        parser.error(f"no row's name contains {options.only!r}")
    try:
        from tqdm import tqdm
    except ModuleNotFoundError as e:
        raise ModuleNotFoundError(
            "The benchmarks need the package `tqdm`, which is not installed. Install "
            'it with: pip install -e ".[bench]"'
        ) from e

    where = machine()
    print(headline(where))
    bench = Bench(timing.QUICK if options.quick else timing.FULL, models.FULL)
    rows = list(tqdm(measure(selected, bench), total=len(selected)))
    show(table(rows))
    print(
        "With a unit, medians. Without, medians of the ratio to the unhooked model, or "
        "to the library's own model without hooks, as in `1.10 of 2 ms`. Under `met`: "
        "what isn't."
    )
    skipped = {case: line_up.skipped for case, line_up in bench.line_ups.items()}
    for line in skips(skipped):
        print(line)
    if options.json:
        text = json.dumps(as_json(where, rows, skipped), indent=2)
        options.json.write_text(text + "\n")


def skips(skipped: dict[str, dict[str, str]]) -> list[str]:
    """One line for each peer and reason, with the cases that it is for."""
    cases: dict[tuple[str, str], list[str]] = {}
    for case, reasons in skipped.items():
        for name, reason in reasons.items():
            cases.setdefault((name, reason), []).append(case)
    return [
        f"Skipped: {name} ({', '.join(for_)}): {reason}"
        for (name, reason), for_ in cases.items()
    ]


if __name__ == "__main__":
    main()
