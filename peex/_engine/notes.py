"""Notes on errors of other people's code: at which site it ran, and what it was given.

An error keeps its type and message, and what this costs is nothing until one is raised.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.tree_util as jtu

from .._errors import PeexError


def add_note(
    error: Exception, what: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Says that an error was raised in `what`, which was given these arguments. Once:
    it may come by again on its way. Errors of peex's own name their site themselves.
    """
    start = f"In {what}, given "
    notes = getattr(error, "__notes__", ())
    if isinstance(error, PeexError) or any(note.startswith(start) for note in notes):
        return
    given = [_shown(x) for x in args]
    given += [f"{name}={_shown(x)}" for name, x in kwargs.items()]
    error.add_note(f"{start}{', '.join(given) or 'nothing'}.")


def _shown(x: Any) -> str:
    """A value by the shapes and dtypes of its arrays, and the types of other leaves."""
    if hasattr(x, "dtype") and hasattr(x, "shape"):
        return f"{x.dtype}{list(x.shape)}"
    try:
        leaves = jtu.tree_leaves(x)
    except (TypeError, ValueError):  # a dict whose keys can't be sorted
        return f"a {type(x).__name__}"
    if isinstance(x, bool | int | float | None):
        return repr(x)
    if len(leaves) == 1 and leaves[0] is x:
        return f"a {type(x).__name__}"
    more = ", ..." if len(leaves) > 4 else ""
    return f"{type(x).__name__}({', '.join(map(_shown, leaves[:4]))}{more})"
