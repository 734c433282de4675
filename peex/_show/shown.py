"""What peex shows: as text, as wide as the terminal is, and as HTML."""

import abc
import shutil
from typing import Any


def terminal_width() -> int:
    """How many columns the terminal has; 100 where there is none."""
    return shutil.get_terminal_size((100, 24)).columns


class AbstractShown(abc.ABC):
    """What is shown as text, also by `rich`, and in a notebook as HTML. Each is asked
    for with or without equal siblings as one; `None` is what is best read.
    """

    @abc.abstractmethod
    def _text(self, fold: bool | None, width: int) -> str: ...

    @abc.abstractmethod
    def _html(self, fold: bool | None) -> str: ...

    def show(
        self, *, fold: bool | None = None, width: int | None = None
    ) -> "AbstractShown":
        """The same as it is to be shown: printed, text; in a notebook, HTML.

        !!! Example

            ```python
            import equinox as eqx
            import jax
            import peex as px

            mlp = eqx.nn.MLP(2, 2, 8, depth=40, key=jax.random.key(0))
            report = px.report(mlp, jax.numpy.ones(2))
            len(str(report).splitlines())  # 8: `layers.{1..39} x39` are one row
            len(str(report.show(fold=False)).splitlines())  # 46
            ```

        **Arguments:**

        - `fold`: whether those that differ in the numbers of their keys alone are one.
            By default they are if there are more than 30 in all.
        - `width`: how many columns the text has; by default as many as the terminal
            (100 where there is none). What is longer is broken between words, and
            behind the dots of a key.
        """
        return _Asked(self, fold, width)

    def __str__(self) -> str:
        return self._text(None, terminal_width())

    def _repr_html_(self) -> str:
        return self._html(None)

    def __rich_console__(self, console: Any, options: Any) -> Any:
        # Only rich itself calls this.
        from rich.text import Text

        shown = self._text(None, options.max_width)
        yield Text(shown, no_wrap=True, overflow="ignore")


class _Asked(AbstractShown):
    def __init__(self, shown: AbstractShown, fold: bool | None, width: int | None):
        self._shown, self._fold, self._width = shown, fold, width

    def _text(self, fold: bool | None, width: int) -> str:
        fold = self._fold if fold is None else fold
        return self._shown._text(fold, self._width or width)

    def _html(self, fold: bool | None) -> str:
        return self._shown._html(self._fold if fold is None else fold)

    def __repr__(self) -> str:
        return str(self)
