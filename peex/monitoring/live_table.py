"""A summary in the terminal, which changes in place."""

from types import TracebackType
from typing import Any

from .sinks import writes
from .summary import Summary


class LiveTable:
    """Shows the last summary in the terminal, in place of the one before; by `rich`
    (the extra of that name).

    !!! Example

        ```python
        import peex as px
        from rich.console import Console

        with px.monitoring.LiveTable(Console(stderr=True)) as show:
            for step in range(3):
                show(step, px.monitoring.Summary({"layers.0/rms": 0.5 + step}, steps=1))
        ```
    """

    def __init__(self, console: Any = None):
        """**Arguments:**

        - `console`: a `rich.console.Console`, if another one than that of the terminal.

        **Raises:** `ImportError` without rich.
        """
        try:
            from rich.live import Live
        except ImportError as error:
            raise ImportError(
                "`px.monitoring.LiveTable` needs rich. Install it with "
                '`pip install "peex[rich]"`.'
            ) from error
        self._live = Live(console=console, auto_refresh=False) if writes() else None

    def __call__(self, step: Any, summary: Summary) -> None:
        if self._live is None:
            return
        from rich.console import Group

        self._live.start()  # nothing if it is
        self._live.update(Group(f"step {int(step)}", summary), refresh=True)

    def close(self) -> None:
        """Leaves the last one as it is; what is printed from now on is below it."""
        if self._live is not None:
            self._live.stop()

    def __enter__(self) -> "LiveTable":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
