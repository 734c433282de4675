"""The sites of one module object, as they ride in the pytree structure.

Structures with different sites are different to JAX: programs aren't mixed up. With one
exception: `jax.tree.map` may bring layers together whose sites differ in the number of
the layer alone, as a forward pass does that stacks its layers. What it makes of them
has the sites of all of them, under one name (see `_sites/stacked.py`).
"""

import dataclasses
import functools as ft
import types
from typing import Any, no_type_check

from .. import _compat
from .._engine.active_calls import listener_at
from .._engine.site import ModuleKey, Site
from .._sites.stacked import common, grouped


class SiteMap(dict[str, tuple[Site | ModuleKey, ...]]):
    """From a method's name to the sites around it, those of outer wrappers first."""

    # While `jax.tree.map` works on this structure: by its frame (of each thread one),
    # what the result has.
    _stacking: dict[types.FrameType, "SiteMap"] | None = None

    @property
    def is_still(self) -> bool:
        """Whether it is that of a plain copy of the model (see `alike.py`)."""
        return not any(self.values())

    def __hash__(self) -> int:
        return hash(tuple(self.items()))

    @no_type_check  # the frame that calls is looked at
    def __eq__(self, other: object) -> bool:
        if dict.__eq__(self, other):
            return True
        if type(other) is not SiteMap:
            return False
        frame = _compat.mapping_frame(2)
        return frame is not None and self._stack(frame, other)

    def _stack(self, frame: types.FrameType, other: "SiteMap") -> bool:
        """Notes that `jax.tree.map`, whose frame this is, brings the two together;
        `False` if they don't belong together.
        """
        if self.is_still or other.is_still:
            self._note(frame, other if self.is_still else self)
            return True
        merged = _merged((self._stacking or {}).get(frame, self), other)
        if merged is not None:
            self._note(frame, merged)
        return merged is not None

    def _note(self, frame: types.FrameType, result: "SiteMap") -> None:
        self._stacking = {**(self._stacking or {}), frame: result}
        forget = ft.partial(self._forget, frame)
        for site in (site for sites in result.values() for site in sites):
            collector = listener_at(site.depth)
            if collector is not None:
                # The frame is let go of when the call ends, at the latest.
                collector.at_end.append(forget)

    def _forget(self, frame: types.FrameType) -> None:
        others = {f: r for f, r in (self._stacking or {}).items() if f is not frame}
        self._stacking = others or None

    @no_type_check
    def taken(self) -> "SiteMap":
        """The sites of a module that is made with these in its structure."""
        if self._stacking is None:
            return self
        frame = _compat.mapping_frame(3)
        if frame not in self._stacking:
            return self
        merged = self._stacking[frame]
        self._forget(frame)
        return merged


def _merged(first: SiteMap, second: SiteMap) -> SiteMap | None:
    """The sites of layers that are stacked; `None` if they can't be."""
    if list(first) != list(second):
        return None
    merged = SiteMap()
    for name, sites in first.items():
        others = second[name]
        if len(sites) != len(others):
            return None
        pairs = zip(sites, others, strict=True)
        both = [a if a == b else _merged_site(a, b) for a, b in pairs]
        if any(site is None for site in both):
            return None
        merged[name] = tuple(site for site in both if site is not None)
    return merged


def _merged_site(a: Site | ModuleKey, b: Site | ModuleKey) -> Site | ModuleKey | None:
    prefix = common(a.key, b.key)
    collector = listener_at(a.depth)
    if prefix is None or collector is None:
        return None
    made: list[Any] = [
        dataclasses.replace(x, key=grouped(x.key, [prefix])) for x in (a, b)
    ]
    aliases = [x.alias for x in made if type(x) is Site and x.alias is not None]
    if len(aliases) == 2 and aliases[0] != aliases[1]:
        (first, end), (second, _) = aliases
        shared = common(first, second)
        if shared is None:
            return None
        alias = grouped(first, [shared]), end
        made = [dataclasses.replace(x, alias=alias) for x in made]
    if type(a) is not type(b) or made[0] != made[1]:
        return None
    if prefix not in collector.groups:
        collector.groups.append(prefix)
    return made[0]
