"""The numbers in keys, as those of layers and of further calls; keys that differ in
these alone are shown as one.
"""

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple


# Up to so many lines, each is shown for itself; of more, equal siblings are one.
MOST = 30

# A number that is a component of a key, or says which further call it is of.
_NUMBER = re.compile(r"((?:^|(?<=[.#]))\d+(?=$|[.:/#]))")


def numbers_in(key: str) -> list[str]:
    """The text around the numbers of a key, and, at the odd places, these."""
    return _NUMBER.split(key)


def without_numbers(text: str) -> str:
    """What is said of one of several siblings, as it is said of each of them."""
    return re.sub(r"(?<=[.#])\d+\b", "*", text)


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
        parts = (((int(x),) if i % 2 else x) for i, x in enumerate(numbers_in(key)))
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
