"""Tables for people: as text, by `rich`, and as HTML."""

import abc
import dataclasses
import html as html_lib
import io
from collections.abc import Sequence

from ._show.folded import folded, MOST, without_numbers
from ._show.shown import AbstractShown, terminal_width
from ._show.wrapped import least_width, wrapped


@dataclasses.dataclass(frozen=True)
class Column:
    """`right`: aligned there, as numbers are. `flexible`: may be broken over lines.
    `of_keys`: names other places, as numbered as that of the row.
    """

    name: str
    right: bool = False
    flexible: bool = False
    of_keys: bool = False


@dataclasses.dataclass(frozen=True)
class Table:
    """`notes` are lines under the table, as totals are; below these are `listed` ones,
    each with a key in the middle. `keyed`: whether rows are by key (the first column),
    so that equal siblings may be one row.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    listed: Sequence[tuple[str, str, str]] = ()
    keyed: bool = False

    def folded(self, fold: bool | None) -> "Table":
        """With equal siblings as one: if there are many, or as it is said."""
        many = len(self.rows) + len(self.listed) > MOST
        fold = self.keyed and (many if fold is None else fold)
        rows = self._folded_rows() if fold else self.rows
        notes = [*self.notes]
        around = {key: (before, after) for before, key, after in self.listed}
        names = [(key, (key,)) for key in around]
        for name, keys in folded(around) if fold else names:
            before, after = around[keys[0]]
            notes.append(f"{before}{name}{_times(keys)}{after}")
        return Table(self.columns, rows, notes)

    def _folded_rows(self) -> list[Sequence[str]]:
        cells = {}
        for key, *others in self.rows:
            pairs = zip(others, self.columns[1:], strict=True)
            alike = (without_numbers(x) if c.of_keys else x for x, c in pairs)
            cells[key] = tuple(alike)
        by_key = {row[0]: row for row in self.rows}
        rows = []
        for name, keys in folded(cells):
            same = len({tuple(by_key[key][1:]) for key in keys}) == 1
            others = by_key[keys[0]][1:] if same else cells[keys[0]]
            rows.append((f"{name}{_times(keys)}", *others))
        return rows


def _times(keys: Sequence[str]) -> str:
    return f" x{len(keys)}" if len(keys) > 1 else ""


class Shown(AbstractShown):
    """What is shown as a table: printed, by `rich`, and in a notebook."""

    @abc.abstractmethod
    def _table(self) -> Table: ...

    def _text(self, fold: bool | None, width: int) -> str:
        return text(self._table().folded(fold), width)

    def _html(self, fold: bool | None) -> str:
        return html(self._table().folded(fold))


def text(table: Table, width: int) -> str:
    """A table of at most this width, if no word is longer; by `rich` if that is
    installed.
    """
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text
    except ImportError:
        return plain(table, width)
    made = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    widths = _widths(table, width)
    for column, size in zip(table.columns, widths, strict=True):
        justify = "right" if column.right else "left"
        made.add_column(column.name, justify=justify, width=size, no_wrap=True)
    for row in table.rows:
        pairs = zip(row, widths, strict=True)
        made.add_row(*(Text("\n".join(wrapped(cell, size))) for cell, size in pairs))
    room = max(width, sum(widths) + 2 * len(widths) + 1)
    console = Console(width=room, file=io.StringIO(), color_system=None)
    with console.capture() as capture:
        console.print(made)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    notes = (line for note in table.notes for line in wrapped(note, width))
    return "\n".join([*lines, *notes]).strip("\n")


def plain(table: Table, width: int | None = None) -> str:
    width = terminal_width() if width is None else width
    widths = _widths(table, width)

    def lines(row: Sequence[str]) -> list[str]:
        cells = [wrapped(cell, w) for cell, w in zip(row, widths, strict=True)]
        height = max(len(cell) for cell in cells)
        made = []
        for i in range(height):
            parts = []
            for cell, size, column in zip(cells, widths, table.columns, strict=True):
                part = cell[i] if i < len(cell) else ""
                parts.append(part.rjust(size) if column.right else part.ljust(size))
            made.append("  ".join(parts).rstrip())
        return made

    head = lines([c.name for c in table.columns])
    body = [line for row in table.rows for line in lines(row)]
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    notes = [line for note in table.notes for line in wrapped(note, width)]
    return "\n".join([*head, rule, *body, rule, *notes])


def _widths(table: Table, width: int) -> list[int]:
    """As wide as the contents are, the widest flexible columns narrowed to fit."""
    cells = [[c.name for c in table.columns], *table.rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
    # Between two columns is the padding and the divider of `rich`, which has both at
    # the edges too.
    room = width - 2 * len(widths) - 1
    least = {
        i: max(8, *(least_width(row[i]) for row in cells))
        for i, c in enumerate(table.columns)
        if c.flexible
    }
    while sum(widths) > room:
        wide = [i for i in least if widths[i] > least[i]]
        if not wide:
            break
        widths[max(wide, key=lambda i: widths[i])] -= 1
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
