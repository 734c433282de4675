"""What reaches what as a table."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .._log.keys import folded
from .._table import Column, Table
from .._text import plural


# Up to so many arrays, each is shown for itself; of more, equal siblings are one.
_MOST = 30


def table(
    parameters: Mapping[str, Any],
    states: Mapping[str, Any],
    groups: Sequence[Any],
    counts: Mapping[str, int],
) -> Table:
    """See [`peex.Reach`][]."""
    columns = (
        Column("array", flexible=True),
        Column("reaches", flexible=True),
        Column("by", flexible=True),
        Column("reason", flexible=True),
    )
    rows = [*_rows(parameters), *_rows(states)]
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
    return Table(columns, rows, notes)


def _rows(arrays: Mapping[str, Any]) -> list[tuple[str, ...]]:
    cells = {key: _cells(reached) for key, reached in arrays.items()}
    if len(cells) <= _MOST:
        return [(key, *mine) for key, mine in cells.items()]
    like = {key: tuple(map(_of_any, mine)) for key, mine in cells.items()}
    rows = []
    for name, keys in folded(like):
        first = keys[0]
        one = len(keys) == 1
        times = "" if one else f" x{len(keys)}"
        rows.append((f"{name}{times}", *(cells if one else like)[first]))
    return rows


def _of_any(text: str) -> str:
    """What is said of one of several siblings as what is said of each of them."""
    return re.sub(r"(?<=[.#])\d+\b", "*", text)


def _cells(reached: Any) -> tuple[str, str, str]:
    links = "; ".join(f"{key}: {link}" for key, link in reached.states.items())
    cut = f" ({_operations(reached.cut_by)})" if reached.cut_by else ""
    reason = "" if reached.reason is None else f"{reached.reason}{cut}"
    return links or "-", _operations(reached.by), reason


def _operations(operations: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} in {call}" for name, call in operations)
