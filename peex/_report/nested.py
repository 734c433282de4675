"""Calls within calls, as lines: equal siblings, as the blocks of a stack with all that
is inside of them, can be one.
"""

import html
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .._show.folded import folded, MOST, numbers_in


class Line(NamedTuple):
    """What is said of a call, or of several; those inside."""

    text: str
    inside: list["Line"]

    def walk(self, depth: int = 0) -> Iterator[tuple[int, str]]:
        """With how deep each is."""
        yield depth, self.text
        for line in self.inside:
            yield from line.walk(depth + 1)

    def html(self) -> str:
        text = html.escape(self.text)
        if not self.inside:
            return f'<div style="padding-left:1em">{text}</div>'
        inside = "".join(line.html() for line in self.inside)
        return (
            f"<details open><summary>{text}</summary>"
            f'<div style="padding-left:1em">{inside}</div></details>'
        )


def lines(calls: Sequence[Any], fold: bool | None) -> list[Line]:
    """Of some calls, with those inside. Equal siblings are one if there are many, or as
    it is said.
    """
    if fold is None:
        fold = sum(1 for call in calls for _ in call.walk()) > MOST
    return _Lines(fold).of([[call] for call in calls])


class _Lines:
    def __init__(self, fold: bool):
        self._fold = fold
        self._known: dict[int, Any] = {}

    def of(self, groups: Sequence[Sequence[Any]]) -> list[Line]:
        """Of groups of calls, those of each being equal."""
        if self._fold:
            alike: dict[Any, list[Any]] = {}
            for group in groups:
                alike.setdefault(self._like(group[0]), []).extend(group)
            groups = list(alike.values())
        made = []
        for group in groups:
            inside = list(zip(*(call.children for call in group), strict=True))
            made.append(Line(_text(group), self.of(inside)))
        return made

    def _like(self, call: Any) -> Any:
        """What calls of one line have in common."""
        if id(call) not in self._known:
            inside = tuple(self._like(child) for child in call.children)
            site = tuple(numbers_in(call.site)[::2])
            self._known[id(call)] = site, call.class_name, call.flow, inside
        return self._known[id(call)]


def _text(group: Sequence[Any]) -> str:
    first = group[0]
    if len(group) == 1:
        return f"{first.key} ({first.class_name}): {first.flow}"
    keys = [call.key for call in group]
    if any(call.number for call in group) and not first.is_inside:
        keys = [f"{call.site}#{call.number}" for call in group]
    name = ", ".join(name for name, _ in folded(dict.fromkeys(keys)))
    return f"{name} ({first.class_name}) x{len(group)}: {first.flow}"
