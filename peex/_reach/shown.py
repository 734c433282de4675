"""What reaches what as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from .._table import Column, Table
from .._text import plural


def table(
    parameters: Mapping[str, Any],
    states: Mapping[str, Any],
    groups: Sequence[Any],
    counts: Mapping[str, int],
) -> Table:
    """See [`peex.Reach`][]."""
    columns = (
        Column("array", flexible=True),
        Column("reaches", flexible=True, of_keys=True),
        Column("by", flexible=True, of_keys=True),
        Column("reason", flexible=True, of_keys=True),
    )
    arrays = (*parameters.items(), *states.items())
    rows = [(key, *_cells(reached)) for key, reached in arrays]
    kinds = ("direct", "through", "both", "value")
    links = ", ".join(f"{counts[how]} {how}" for how in kinds if counts[how])
    shown = ", ".join(
        f"{{{', '.join(g.states)}}}{'' if g.recurrent else ' (not recurrent)'}"
        for g in groups
    )
    notes = [
        f"{plural(counts['parameters'], 'parameter')}, {counts['temporal']} temporal; "
        f"links to states: {links or 'none'}",
        f"{plural(counts['groups'], 'group')} of states: {shown or 'none'}",
    ]
    return Table(columns, rows, notes, keyed=True)


def _cells(reached: Any) -> tuple[str, str, str]:
    links = "; ".join(f"{key}: {link}" for key, link in reached.states.items())
    cut = f" ({_operations(reached.cut_by)})" if reached.cut_by else ""
    reason = "" if reached.reason is None else f"{reached.reason}{cut}"
    return links or "-", _operations(reached.by), reason


def _operations(operations: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} in {call}" for name, call in operations)
