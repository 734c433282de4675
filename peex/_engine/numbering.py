"""The names of the calls of a site, which can only be told once all levels of a program
are merged, since JAX reuses traced programs.
"""

from typing import Any

from .site import Site


class Numbering:
    """Names the calls of sites: `cell`, `cell#1`, `cell#2`, ... in order. Of a named
    value inside of a module, these are the calls of the module: `cell#1/tanh`.
    """

    def __init__(self) -> None:
        self._seen: dict[Any, int] = {}

    def copy(self) -> "Numbering":
        new = Numbering()
        new._seen = dict(self._seen)
        return new

    def next(self, site: Site, fn: str = "") -> int:
        """How many calls of the site there were before this one; as it is told to its
        hook or log of this name, if that is who asks.
        """
        name = site.key, site.call, site.alias, fn
        n = self._seen[name] = self._seen.get(name, -1) + 1
        return n

    def __call__(self, site: Site) -> str | None:
        """The key of the next call; `None` if the site isn't of that."""
        n = self.next(site)
        return site.numbered(n) if site.is_of(n) else None
