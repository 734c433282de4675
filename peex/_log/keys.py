"""The keys of a log: which of them patterns choose, and the numbers in them, as those
of layers and of further calls.
"""

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple, TYPE_CHECKING

import jax.tree_util as jtu

from .._errors import SiteNotFoundError
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


# A number that is a component of a key, or says which further call it is of.
_NUMBER = re.compile(r"((?:^|(?<=[.#]))\d+(?=$|[.:/#]))")


def _split(key: str) -> list[str]:
    """The text around the numbers of a key, and, at the odd places, these."""
    return _NUMBER.split(key)


def in_order_of_numbers(keys: Iterable[str]) -> list[str]:
    """As people count: `layers.2` before `layers.10`, wherever it stands. What differs
    in more than numbers stays in the order in which it comes.
    """
    parts = {key: _split(key) for key in keys}
    texts = dict.fromkeys(text for mine in parts.values() for text in mine[::2])
    first = {text: i for i, text in enumerate(texts)}
    rank = lambda key: [int(x) if i % 2 else first[x] for i, x in enumerate(parts[key])]
    return sorted(parts, key=rank)


class _Row(NamedTuple):
    # At odd places the numbers, sorted, that are there in one or another of the keys.
    parts: tuple[Any, ...]
    like: Hashable
    keys: tuple[str, ...]


def folded(like: Mapping[str, Hashable]) -> list[tuple[str, tuple[str, ...]]]:
    """The keys that differ in numbers alone, and are of equal `like`, as one,
    `layers.{0..29}.mlp`, each with the keys that it stands for.
    """
    rows = []
    for key, mine in like.items():
        parts = (((int(x),) if i % 2 else x) for i, x in enumerate(_split(key)))
        rows.append(_Row(tuple(parts), mine, (key,)))
    most = max((len(row.parts) for row in rows), default=0)
    for place in reversed(range(1, most, 2)):
        alike: dict[Hashable, list[_Row]] = {}
        for row in rows:
            others = (*row.parts[:place], None, *row.parts[place + 1 :])
            is_alone = place >= len(row.parts)
            alike.setdefault(row if is_alone else (others, row.like), []).append(row)
        rows = [_joined(group, place) for group in alike.values()]
    return [(_shown(row), row.keys) for row in rows]


def _joined(rows: Sequence[_Row], place: int) -> _Row:
    if len(rows) == 1:
        return rows[0]
    numbers = sorted({n for row in rows for n in row.parts[place]})
    parts = rows[0].parts
    parts = (*parts[:place], tuple(numbers), *parts[place + 1 :])
    return _Row(parts, rows[0].like, tuple(key for row in rows for key in row.keys))


def _shown(row: _Row) -> str:
    if len(row.keys) == 1:
        return row.keys[0]
    return "".join(x if isinstance(x, str) else _shown_numbers(x) for x in row.parts)


def _shown_numbers(numbers: Sequence[int]) -> str:
    """`{0..29}`, `{0,2..5}`; one number as itself."""
    if len(numbers) == 1:
        return str(numbers[0])
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    short = lambda run: [f"{run[0]}..{run[-1]}"] if len(run) > 2 else map(str, run)
    return f"{{{','.join(text for run in runs for text in short(run))}}}"
