"""Keys of two models that name their parts differently: what is alike in them."""

import collections
import dataclasses
import difflib
from collections.abc import Sequence

from .._sites.keys import split
from .sides import Visit


@dataclasses.dataclass(frozen=True)
class NormalKey:
    """`blocks.2.norm` and step 2 of `layers.norm`, without what differs: names, and the
    numbers among them.
    """

    names: tuple[str, ...]
    numbers: tuple[int, ...]

    def likeness(self, other: "NormalKey") -> float:
        """0 if they aren't alike: other numbers, or another last name. Otherwise how
        many names at the end are equal, and how like the rest is.
        """
        if self.numbers != other.numbers:
            return 0.0
        if self.names == other.names:
            return 100.0
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
    times = collections.Counter((visit.key, visit.steps) for visit in visits)
    return {
        visit: _normal(visit, times[visit.key, visit.steps] > 1) for visit in visits
    }


def _normal(visit: Visit, is_called_again: bool) -> NormalKey:
    parts = [part for part in split(visit.key) if part != "*"]
    names = (part.replace("_", "").lower() for part in parts if not part.isdigit())
    numbers = [int(part) for part in parts if part.isdigit()]
    call = [visit.number] if is_called_again else []
    return NormalKey(tuple(names), (*numbers, *visit.steps, *call))
