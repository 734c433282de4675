"""The calls that a run has recorded, within each other, with what was seen of each."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from .._report.calls import Call
from .._report.result import Report
from .._sites.keys import input_key
from .aligned import aligned, Entry, Frame, Mask, nowhere
from .recorded import Recorded


@dataclasses.dataclass(eq=False)
class Seen:
    """A call, with the magnitudes of its output, of its arguments, and of the
    cotangents of both; `None` for what wasn't recorded.

    - `parent`: the innermost recorded call around it; `children`: those right inside.
    - `number`: the how many-th it is in the order in which calls end.
    """

    call: Call
    parent: "Seen | None"
    children: list["Seen"]
    number: int
    output: Entry | None
    given: Entry | None
    output_cotangent: Entry | None
    given_cotangent: Entry | None

    @property
    def key(self) -> str:
        return self.call.key

    @property
    def parameters(self) -> set[str]:
        """The paths of its arrays in the model, those of the calls inside too."""
        return {use for p in self.call.parameters for use in p.uses}

    @property
    def own_parameters(self) -> set[str]:
        """Those that are in none of the calls inside."""
        return self.parameters.difference(*(c.parameters for c in self.children))

    def inside(self) -> Iterator["Seen"]:
        for child in self.children:
            yield child
            yield from child.inside()

    def around(self) -> Iterator["Seen"]:
        parent = self.parent
        while parent is not None:
            yield parent
            parent = parent.parent


def bad_at(entry: Entry | None, frame: Frame) -> Mask:
    """Where what was seen isn't finite, over these axes."""
    if entry is None:
        return nowhere(frame)
    return aligned(entry.bad, entry.frame, frame)


def calls_of(report: Report, recorded: Recorded) -> list[Seen]:
    """All calls of which something was recorded, outer ones first."""
    forward, backward = recorded.forward, recorded.backward
    found: list[Seen] = []
    order = {key: i for i, key in enumerate(forward)}

    def visit(call: Call, parent: Seen | None) -> None:
        here = parent
        given = input_key(call.site, call.number)
        if not call.is_inside and (call.key in forward or call.key in backward):
            here = Seen(
                call,
                parent,
                [],
                order.get(call.key, len(order)),
                Entry.of(forward, call.key),
                Entry.of(recorded.all_arguments, call.key) or Entry.of(forward, given),
                Entry.of(backward, call.key),
                Entry.of(backward, given),
            )
            found.append(here)
            if parent is not None:
                parent.children.append(here)
        for child in call.children:
            visit(child, here)

    for call in report.tree.children:
        visit(call, None)
    return found


def largest(entry: Entry | None, mask: Mask, frame: Frame) -> float | None:
    """The largest finite magnitude where a mask over these axes holds."""
    if entry is None:
        return None
    values = entry.values[aligned(mask, frame, entry.frame)]
    values = values[np.isfinite(values)]
    return float(values.max()) if values.size else None
