"""What a piece of program hands out and asks for: its [`Signature`][].

A collector has to know what comes out of a loop or a branch before it can rebuild it.
How the signature of a primitive follows from those of its bodies is part of its rule.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

from .messages import ArraysAsk, Ask, Tap
from .site import Site


@dataclasses.dataclass(frozen=True)
class TapSpec:
    """A tap, and the shapes and dtypes of its arrays (the count last, if counted)."""

    info: Tap
    shapes: tuple[Any, ...]

    @property
    def log_shapes(self) -> tuple[Any, ...]:
        """Those of the log alone."""
        return self.shapes[:-1] if self.info.counted else self.shapes


@dataclasses.dataclass(frozen=True)
class Signature:
    """What a piece of program hands out and asks for, in the order of its equations.

    - `taps`: the values it taps.
    - `asks`: the buffers of backward logs it asks for, call by call.
    - `shared`: the arrays of hooks it asks for, each once.
    - `marked`: those that it will ask for where its marks become derivative rules.
    - `lost`: the sites that are in primitives without a rule, and why their values
        can't be brought out.
    """

    taps: tuple[TapSpec, ...] = ()
    asks: tuple[Ask, ...] = ()
    shared: tuple[ArraysAsk, ...] = ()
    marked: tuple[ArraysAsk, ...] = ()
    lost: tuple[tuple[Site, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.taps or self.asks or self.shared or self.marked or self.lost)

    @property
    def arrays(self) -> tuple[ArraysAsk, ...]:
        """The arrays of hooks that are needed, each once."""
        return tuple({a.name: a for a in (*self.shared, *self.marked)}.values())

    def at(self, depth: int) -> "Signature":
        """The part that belongs to the wrapper at one depth."""
        if not self:
            return self
        return Signature(
            tuple(t for t in self.taps if t.info.site.depth == depth),
            tuple(a for a in self.asks if a.site.depth == depth),
            tuple(a for a in self.shared if a.site.depth == depth),
            tuple(a for a in self.marked if a.site.depth == depth),
            tuple(pair for pair in self.lost if pair[0].depth == depth),
        )

    def at_place(self, place: int) -> "Signature":
        """As part of a longer program, in which it has this place."""
        infos = (*(t.info for t in self.taps), *self.asks)
        if not any(info.axes.loops for info in infos):
            return self
        placed = lambda info: dataclasses.replace(info, axes=info.axes.at_place(place))
        taps = tuple(TapSpec(placed(t.info), t.shapes) for t in self.taps)
        return dataclasses.replace(self, taps=taps, asks=tuple(map(placed, self.asks)))

    @property
    def sites(self) -> tuple[Site, ...]:
        taps = (t.info.site for t in self.taps)
        asks = (a.site for a in (*self.asks, *self.arrays))
        return (*taps, *asks, *(site for site, _ in self.lost))


EMPTY = Signature()


def join(parts: Iterable[Signature]) -> Signature:
    """The signature of pieces that run one after the other."""
    parts = [p for p in parts if p]
    if not parts:
        return EMPTY
    shared = {a.name: a for p in parts for a in p.shared}
    marked = {a.name: a for p in parts for a in p.marked}
    return Signature(
        tuple(t for p in parts for t in p.taps),
        tuple(a for p in parts for a in p.asks),
        tuple(shared.values()),
        tuple(marked.values()),
        tuple(pair for p in parts for pair in p.lost),
    )
