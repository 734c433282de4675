"""Keys of two models that name their parts differently: what is alike in them."""

import collections
import dataclasses
import difflib
from collections.abc import Sequence

from .._sites.keys import split
from .sides import Visit


# How alike two keys are of which all is equal.
SAME = 100.0


@dataclasses.dataclass(frozen=True)
class NormalKey:
    """`blocks.2.norm` and step 2 of `layers.norm`, without what differs: names, and the
    numbers among them.
    """

    names: tuple[str, ...]
    numbers: tuple[int, ...]

    def likeness(self, other: "NormalKey") -> float:
        """0 if they aren't alike: other numbers, or another last name. Otherwise how
        many names at the end are equal, and how like the rest is; `SAME` if all are.
        """
        if self.numbers != other.numbers:
            return 0.0
        if self.names == other.names:
            return SAME
        if not self.names or not other.names:
            return 0.0
        same = 0
        for a, b in zip(reversed(self.names), reversed(other.names), strict=False):
            if a != b:
                break
            same += 1
        joined = ".".join(self.names), ".".join(other.names)
        ratio = difflib.SequenceMatcher(None, *joined, autojunk=False).ratio()
        last = difflib.SequenceMatcher(None, self.names[-1], other.names[-1]).ratio()
        return same + ratio if same or last > 0.75 else 0.0


def normal_keys(visits: Sequence[Visit]) -> dict[Visit, NormalKey]:
    calls = call_numbers(visits)
    return {v: normal_key(v.key, (*v.steps, *calls[v])) for v in visits}


def call_numbers(visits: Sequence[Visit]) -> dict[Visit, tuple[int, ...]]:
    """Which call of its site each is, if there are several."""
    times = collections.Counter((visit.key, visit.steps) for visit in visits)
    is_again = lambda v: times[v.key, v.steps] > 1
    return {v: (v.number,) if is_again(v) else () for v in visits}


def normal_key(text: str, further: Sequence[int]) -> NormalKey:
    """Of a key, or a part of one, with further numbers behind those that it has."""
    parts = [part for part in split(text) if part not in ("*", "")]
    names = (part.replace("_", "").lower() for part in parts if not part.isdigit())
    numbers = (int(part) for part in parts if part.isdigit())
    return NormalKey(tuple(names), (*numbers, *further))
