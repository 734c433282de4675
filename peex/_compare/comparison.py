"""What comparing two models hands back."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from .._errors import NotCloseError
from .._sites.patterns import nearest
from .._table import Column, Shown, Table
from .._text import plural
from .compared import ParameterRow, Row, Unmatched
from .comparison_plot import plot


class Comparison(Shown):
    """What [`peex.debug.compare`][] found. Printed, it is a table.

    - `rows`: of each two calls that belong together a [`peex.debug.Row`][], in the
        order in which the calls of the model ended.
    - `culprits`: the keys of those that are to blame: whose `local_error` is too large.
        Where that wasn't looked at, those that differ although what they are given
        doesn't; or, if that isn't known either, the first that differs.
    - `unmatched`: the calls that were compared with nothing, as
        [`peex.debug.Unmatched`][]: of modules without others inside, but for those that
        hand on what they are given, as dropout does in inference.
    - `parameters`: of each parameter a [`peex.debug.ParameterRow`][].
    """

    def __init__(
        self,
        rows: Sequence[Row],
        culprits: Sequence[str],
        unmatched: Sequence[Unmatched],
        parameters: Sequence[ParameterRow],
    ):
        self.rows = list(rows)
        self.culprits = list(culprits)
        self.unmatched = list(unmatched)
        self.parameters = list(parameters)

    @property
    def first(self) -> Row | None:
        """The first row whose outputs differ, or that is to blame, in the order of
        execution; if there is none, of those whose cotangents differ the first in the
        backward pass. `None` if there is none.
        """
        blamed = lambda row: row.differs_locally or row.key in self.culprits
        forward = [r for r in self.rows if r.error > r.tolerance or blamed(r)]
        backward = [row for row in reversed(self.rows) if row.differs]
        return next(iter((*forward, *backward)), None)

    def __getitem__(self, key: str) -> Row:
        """The row of a call of the model, by its key."""
        for row in self.rows:
            if row.key == key:
                return row
        from_other = [row.key for row in self.rows if row.other == key]
        if from_other:
            hint = f"It is a key of the other: write {from_other[0]!r}"
        else:
            hint = f"Nearest: {nearest(key, [row.key for row in self.rows])}"
        raise KeyError(f"{key!r} isn't a row of this comparison. {hint}.")

    def assert_close(self) -> None:
        """For tests: passes if no row and no parameter differs by more than its
        tolerance, nor any call by itself.

        **Raises:** [`peex.NotCloseError`][], an `AssertionError`, with the table.
        """
        differ = [row.key for row in self.rows if row.differs or row.differs_locally]
        parameters = [row.key for row in self.parameters if row.differs]
        if not differ and not parameters and not self.culprits:
            return
        counts = [
            plural(len(differ), "row") if differ else "",
            plural(len(parameters), "parameter") if parameters else "",
        ]
        what = " and ".join(count for count in counts if count) or "culprits"
        blamed = ", ".join(self.culprits) or "none found"
        raise NotCloseError(
            f"The two aren't close: {what} differ. To blame: {blamed}.\n{self}"
        )

    def to_dict(self) -> dict[str, Any]:
        """All of it as dicts, lists, strings and numbers, as for JSON. An error that is
        infinite is `"inf"`.
        """
        as_dicts = lambda rows: [dataclasses.asdict(row) for row in rows]
        return {
            "first": None if self.first is None else self.first.key,
            "culprits": list(self.culprits),
            "rows": [_listed(row) for row in as_dicts(self.rows)],
            "unmatched": as_dicts(self.unmatched),
            "parameters": [_listed(row) for row in as_dicts(self.parameters)],
        }

    def plot(self, ax: Any = None) -> Any:
        """Draws the errors with matplotlib, on a logarithmic scale, by call in the
        order of execution: those of the whole run, of which one fault makes many, and
        the local ones, of which it makes one. What is to blame is named.

        **Arguments:**

        - `ax`: `matplotlib.axes.Axes` to draw in; by default, those of a new figure.

        **Returns:**

        The `matplotlib.axes.Axes`.

        **Raises:**

        `ImportError` without matplotlib, which the extra `experiments` installs.
        """
        return plot(self.rows, self.culprits, ax)

    def __repr__(self) -> str:
        blamed = f", to blame: {', '.join(self.culprits)}" if self.culprits else ""
        worst = max((row.error for row in self.rows), default=0.0)
        rows = plural(len(self.rows), "row")
        return f"<Comparison: {rows}, error at most {worst:.2g}{blamed}>"

    def _table(self) -> Table:
        backward = any(row.cotangent_error is not None for row in self.rows)
        layouts = any(layout_text(row.layout) for row in self.rows)
        local = any(row.local_error is not None for row in self.rows)
        columns = [
            Column("model", flexible=True),
            Column("other", flexible=True),
            Column("by"),
            *([Column("layout")] if layouts else []),
            Column("error", right=True),
            *([Column("local", right=True)] if local else []),
            *([Column("backward", right=True)] if backward else []),
            Column(""),
        ]
        rows = []
        for row in self.rows:
            blamed = "to blame" if row.key in self.culprits else ""
            rows.append(
                (
                    row.key,
                    "=" if row.other == row.key else row.other,
                    row.how,
                    *([layout_text(row.layout)] if layouts else []),
                    _number(row.error),
                    *([_number(row.local_error)] if local else []),
                    *([_number(row.cotangent_error)] if backward else []),
                    blamed or ("differs" if row.differs else ""),
                )
            )
        return Table(columns, rows, self._notes())

    def _notes(self) -> list[str]:
        notes = [f"to blame: {', '.join(self.culprits)}"] if self.culprits else []
        notes += [f"{row.key}: {row.note}" for row in self.rows if row.note]
        if self.first is not None:
            notes.append(f"first to differ: {self.first.key}")
        else:
            notes.append("all within the tolerances")
        notes += [f"compared with nothing: {one}" for one in self.unmatched]
        moved = lambda p: p.layout is not None and list(p.layout) != sorted(p.layout)
        for p in self.parameters:
            if p.key is None or p.other is None:
                side = "other" if p.key is None else "model"
                notes.append(f"parameter of the {side} alone: {p.key or p.other}")
            elif (p.error or 0.0) > p.tolerance or moved(p):
                where = f", axes {layout_text(p.layout)}" if moved(p) else ""
                named = p.key if p.key == p.other else f"{p.key}, {p.other}"
                notes.append(f"parameter {named}: error {_number(p.error)}{where}")
        far = [p for p in self.parameters if (p.gradient_error or 0.0) > p.tolerance]
        if far:
            worst = max(far, key=lambda p: p.gradient_error or 0.0)
            notes.append(
                f"gradients of {plural(len(far), 'parameter')} differ, most that of "
                f"{worst.key}: {_number(worst.gradient_error)}"
            )
        return notes


def layout_text(layout: Sequence[int] | None) -> str:
    if layout is None:
        return "none"
    same = list(layout) == sorted(layout)
    return "" if same else f"({', '.join(map(str, layout))})"


def _number(x: float | None) -> str:
    return "-" if x is None else "0" if x == 0 else f"{x:.1e}"


def _listed(row: dict[str, Any]) -> dict[str, Any]:
    plain = lambda x: list(x) if isinstance(x, tuple) else x
    known = lambda x: str(x) if isinstance(x, float) and not math.isfinite(x) else x
    return {name: known(plain(x)) for name, x in row.items()}
