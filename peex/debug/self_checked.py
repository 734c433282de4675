"""What checking the hooks of a model hands back."""

import dataclasses

from .._errors import PeexError
from .._table import Column, Shown, Table


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing that was checked.

    - `name`: what.
    - `figure`: the largest difference, next to the largest value; or how many things
        differ.
    - `passed`: whether that is as it should be.
    - `note`: what was compared, or why it wasn't.
    """

    name: str
    figure: float | int
    passed: bool
    note: str


class SelfCheck(Shown):
    """What [`peex.debug.selfcheck`][] found; false if a check failed. Printed, it is a
    table.

    - `checks`: all of them.
    """

    def __init__(self, checks: tuple[Check, ...]):
        self.checks = checks

    @property
    def failed(self) -> tuple[Check, ...]:
        """Those that failed."""
        return tuple(check for check in self.checks if not check.passed)

    def __bool__(self) -> bool:
        return not self.failed

    def __repr__(self) -> str:
        return f"<SelfCheck: {len(self.checks)} checks, {len(self.failed)} failed>"

    def raise_if_failed(self) -> None:
        """**Raises:** [`peex.PeexError`][] if a check failed, with the table."""
        if not self:
            names = ", ".join(check.name for check in self.failed)
            raise PeexError(
                f"Hooks don't do with this model what they should: {names}. That is a "
                f"bug in peex, unless the model isn't the same in each call.\n{self}"
            )

    def _table(self) -> Table:
        columns = (
            Column("check", flexible=True),
            Column("figure", right=True),
            Column("passed"),
            Column("of what", flexible=True),
        )
        rows = [
            (c.name, f"{c.figure:.3g}", "yes" if c.passed else "NO", c.note)
            for c in self.checks
        ]
        return Table(columns, rows, [])
