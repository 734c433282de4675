"""Tables for people: as text, by `rich`, and as HTML."""

import abc
import dataclasses
import html as html_lib
import io
import textwrap
from collections.abc import Sequence
from typing import Any


WIDTH = 100


@dataclasses.dataclass(frozen=True)
class Column:
    """`right`: aligned there, as numbers are. `flexible`: may be broken over lines."""

    name: str
    right: bool = False
    flexible: bool = False


@dataclasses.dataclass(frozen=True)
class Table:
    """`notes` are lines under the table, as totals are."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


class Shown(abc.ABC):
    """What is shown as a table: printed, by `rich`, and in a notebook."""

    @abc.abstractmethod
    def _table(self) -> Table: ...

    def __str__(self) -> str:
        return text(self._table())

    def _repr_html_(self) -> str:
        return html(self._table())

    def __rich__(self) -> Any:
        return rich_table(self._table())


def text(table: Table) -> str:
    """A table of at most 100 columns; by `rich` if that is installed."""
    try:
        from rich.console import Console
    except ImportError:
        return plain(table)
    console = Console(width=WIDTH, file=io.StringIO(), color_system=None)
    with console.capture() as capture:
        console.print(rich_table(table))
    lines = (line.rstrip() for line in capture.get().splitlines())
    return "\n".join(lines).strip("\n")


def rich_table(table: Table) -> Any:
    """For `rich.print`. Needs the extra named `rich`."""
    from rich import box
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    made = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    widths = _widths(table)
    for column, width in zip(table.columns, widths, strict=True):
        justify = "right" if column.right else "left"
        made.add_column(column.name, justify=justify, overflow="fold", width=width)
    for row in table.rows:
        made.add_row(*(Text(cell) for cell in row))
    return Group(made, *(Text(note) for note in table.notes))


def plain(table: Table) -> str:
    widths = _widths(table)

    def lines(row: Sequence[str]) -> list[str]:
        cells = [_wrapped(cell, w) for cell, w in zip(row, widths, strict=True)]
        height = max(len(cell) for cell in cells)
        made = []
        for i in range(height):
            parts = []
            for cell, width, column in zip(cells, widths, table.columns, strict=True):
                part = cell[i] if i < len(cell) else ""
                parts.append(part.rjust(width) if column.right else part.ljust(width))
            made.append("  ".join(parts).rstrip())
        return made

    head = lines([c.name for c in table.columns])
    body = [line for row in table.rows for line in lines(row)]
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    notes = [line for note in table.notes for line in _wrapped(note, WIDTH)]
    return "\n".join([*head, rule, *body, rule, *notes])


def _wrapped(cell: str, width: int) -> list[str]:
    return textwrap.wrap(cell, width, break_on_hyphens=False) or [""]


def _widths(table: Table) -> list[int]:
    """As wide as the contents are, the widest flexible columns narrowed to fit."""
    cells = [[c.name for c in table.columns], *table.rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
    # Between two columns is the padding and the divider of `rich`, which has both at
    # the edges too.
    room = WIDTH - 2 * len(widths) - 1
    flexible = [i for i, c in enumerate(table.columns) if c.flexible]
    while sum(widths) > room:
        widest = max(flexible, key=lambda i: widths[i])
        if widths[widest] <= 8:
            break
        widths[widest] -= 1
    return widths


def html(table: Table) -> str:
    """A table for a notebook."""

    def row(tag: str, cells: Sequence[str]) -> str:
        made = []
        for cell, column in zip(cells, table.columns, strict=True):
            side = "right" if column.right else "left"
            content = html_lib.escape(cell)
            made.append(f'<{tag} style="text-align:{side}">{content}</{tag}>')
        return f"<tr>{''.join(made)}</tr>"

    head = row("th", [c.name for c in table.columns])
    body = "".join(row("td", r) for r in table.rows)
    notes = "".join(f"<div>{html_lib.escape(note)}</div>" for note in table.notes)
    return (
        f"<div><table><thead>{head}</thead><tbody>{body}</tbody></table>{notes}</div>"
    )
