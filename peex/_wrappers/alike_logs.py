"""Which calls of a site are merged."""

from collections.abc import Sequence
from typing import Any

from .._engine.messages import BufferAsk, Tap


class Alike:
    """Of a site whose log is merged, calls with logs of equal structure, shapes and
    axes are one: that of the first of them.
    """

    def __init__(self) -> None:
        self._keys: dict[Any, str] = {}

    def copy(self) -> "Alike":
        new = Alike()
        new._keys = dict(self._keys)
        return new

    def first(self, key: str, info: Tap | BufferAsk, arrays: Sequence[Any]) -> str:
        """The key in the log of a call of this key, with arrays of these shapes."""
        if not info.merges:
            return key
        site = info.site
        shapes = tuple((x.shape, x.dtype) for x in arrays)
        alike = (site.key, site.call, site.alias, info.treedef, info.axes, shapes)
        return self._keys.setdefault(alike, key)
