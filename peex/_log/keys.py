"""The keys of a log: which of them patterns choose, and their order."""

from collections.abc import Iterable, Sequence, Set
from typing import Any, TYPE_CHECKING

import jax.tree_util as jtu

from .._errors import SiteNotFoundError
from .._show.folded import numbers_in
from .._sites.patterns import logged_matches, nearest


if TYPE_CHECKING:
    Patterns = str | Sequence[str] | Set[str]
else:
    Patterns = Any  # checked by peex itself, whose error says what to write instead


def chosen(patterns: Patterns, keys: Iterable[str], method: str) -> list[str]:
    """The keys that a pattern, or one of several, matches, in the order of `keys`.
    `method` is that of the log which was called, for the messages.

    **Raises:** `SiteNotFoundError` where a pattern matches nothing, `TypeError` for
    anything else than patterns.
    """
    keys = list(keys)
    listed = [patterns] if isinstance(patterns, str) else patterns
    several = isinstance(listed, Sequence | Set)
    if not several or not all(isinstance(pattern, str) for pattern in listed):
        raise TypeError(
            f"`log.{method}` takes a pattern over the keys of the log or a list of "
            f"patterns, as in `log.{method}('layers.*.attn')`; got {patterns!r}."
        )
    found: set[str] = set()
    for pattern in listed:
        mine = [key for key in keys if logged_matches(pattern, key)]
        if not mine:
            raise SiteNotFoundError(
                f"The pattern {pattern!r} of `log.{method}` matches nothing in the "
                f"log. Nearest: {nearest(pattern, keys)}. As in `where`, `*` stands "
                "for one component of a key and `**` for any number; 'attn/*' are "
                "values inside of a module, and 'attn:in' its arguments."
            )
        found.update(mine)
    if not found:
        raise SiteNotFoundError(
            f"`log.{method}` was given no pattern, so it chooses nothing. Write a key "
            f"or pattern, as in `log.{method}('layers.*')`."
        )
    return [key for key in keys if key in found]


def leaf_name(key: str, path: Any, index: Sequence[int] = ()) -> str:
    """Of one array of an entry: its key, step and path in the entry, as `lstm[3]/0` or
    `layers.0/mean`.
    """
    at = f"[{','.join(map(str, index))}]" if index else ""
    inside = jtu.keystr(tuple(path), simple=True, separator="/")
    return f"{key}{at}/{inside}" if inside else f"{key}{at}"


def in_order_of_numbers(keys: Iterable[str]) -> list[str]:
    """As people count: `layers.2` before `layers.10`, wherever it stands. What differs
    in more than numbers stays in the order in which it comes.
    """
    parts = {key: numbers_in(key) for key in keys}
    texts = dict.fromkeys(text for mine in parts.values() for text in mine[::2])
    first = {text: i for i, text in enumerate(texts)}
    rank = lambda key: [int(x) if i % 2 else first[x] for i, x in enumerate(parts[key])]
    return sorted(parts, key=rank)
