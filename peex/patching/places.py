"""The places that a sweep goes through: one number for each, over all sites."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree, Shaped

from .._errors import PeexError, SiteNotFoundError
from .._hooks.axis_names import ANONYMOUS, AxisNames
from .._sites.patterns import logged_matches, nearest
from .._text import shown_arrays


@dataclasses.dataclass(frozen=True)
class SweptSite:
    """One site, and how its swept axes are numbered.

    - `shape`: of its value in a log.
    - `split`: the same with one axis for each name.
    - `names`: of these, `"_"` for those that are patched whole.
    - `widths`: how many neighbours along each are patched at once.
    - `offset`: the number of its first place; `None` if it has none of its own.
    - `within`: those of the sites before it at whose places it is patched too.
    """

    key: str
    shape: tuple[int, ...]
    split: tuple[int, ...]
    names: tuple[str, ...]
    widths: tuple[int, ...]
    offset: int | None = None
    within: tuple[int, ...] = ()

    @property
    def swept(self) -> tuple[int, ...]:
        """Which axes are."""
        return tuple(i for i, name in enumerate(self.names) if name != ANONYMOUS)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many places there are along each of the swept axes."""
        return tuple(self.split[i] - self.widths[i] + 1 for i in self.swept)

    @property
    def size(self) -> int:
        return 0 if self.offset is None else math.prod(self.sizes)

    def mask(self, place: Int[Array, ""]) -> Bool[Array, "..."]:
        """What of the site's value is at a place, which may be another site's: the mask
        broadcasts to `shape`.
        """
        return jnp.any(self.places_of_each() == place, axis=0)

    def places_of_each(self) -> Int[np.ndarray, "windows ..."]:
        """At which places each point of the value is patched, as an array that
        broadcasts to `shape` behind its first axis: along that, one for each position
        that the point may have in a window (-1 where that would jut out).
        """
        sizes = np.array(self.sizes).reshape((-1,) + (1,) * len(self.swept))
        points = np.indices([self.split[i] for i in self.swept])
        offsets = [*([] if self.offset is None else [self.offset]), *self.within]
        made = []
        for position in np.ndindex(*(self.widths[i] for i in self.swept)):
            first = points - np.array(position).reshape(sizes.shape)
            whole = np.all((first >= 0) & (first < sizes), axis=0)
            place = np.ravel_multi_index(tuple(first), self.sizes, mode="clip")
            made += [np.where(whole, place + offset, -1) for offset in offsets]
        along = [n if i in self.swept else 1 for i, n in enumerate(self.split)]
        each = np.stack(made).astype(np.int32).reshape((len(made), *along))
        if self.split == self.shape:
            return each
        whole = np.broadcast_to(each, (len(made), *self.split))
        return whole.reshape((len(made), *self.shape))

    def part(self, values: Shaped[Any, "places ..."]) -> Shaped[Any, "..."]:
        """Of an array with all places in front, those of this site, by its axes."""
        assert self.offset is not None
        mine = values[self.offset : self.offset + self.size]
        return mine.reshape((*self.sizes, *mine.shape[1:]))


def places(
    log: Mapping[str, Any],
    axes: str | Mapping[str, str],
    windows: int | Mapping[str, int] | None,
) -> tuple[SweptSite, ...]:
    """Numbers the places of all sites of a log (or of one of shapes).

    **Raises:** where names or windows don't fit.
    """
    names = names_of(log, axes)
    widths = {"layer": windows} if isinstance(windows, int) else dict(windows or {})
    along, over = _windows(log, names, widths)
    made: list[SweptSite] = []
    offset = 0
    for key, entry in log.items():
        shape = only_array(key, entry).shape
        split = names[key].split(shape, f"The log of the site {key!r}")
        mine = tuple(along.get(name, 1) for name in names[key].names)
        for name, n, width in zip(names[key].names, split, mine, strict=True):
            if name in along and not 1 <= width <= n:
                raise PeexError(
                    f"The windows along {name!r} are {width} long, but this axis of "
                    f"the site {key!r} is {n}. Choose from 1 to {n}, as in "
                    f"`windows={{{name!r}: {max(n // 2, 1)}}}`."
                )
        site = SweptSite(key, shape, split, names[key].names, mine)
        before = [one for one in made if key in over.get(one.key, ())]
        for one in before:
            if (one.split, one.names) != (split, site.names):
                raise PeexError(
                    f"The sites {one.key!r} and {key!r} are to be patched at once, at "
                    f"the same places, but log {list(one.shape)} and {list(shape)}. "
                    "Choose sites of one shape for the pattern in `windows`."
                )
        within = tuple(one.offset for one in before if one.offset is not None)
        begins = None if key in over and not over[key] else offset
        made.append(dataclasses.replace(site, offset=begins, within=within))
        offset += made[-1].size
        if not math.prod(made[-1].sizes):
            raise PeexError(
                f"At the site {key!r} there is nothing to sweep: it logs "
                f"{shown_arrays(entry)}, which {names[key].text!r} names. Give the "
                "runs inputs that aren't empty."
            )
    return tuple(made)


def _windows(
    log: Mapping[str, Any], names: Mapping[str, AxisNames], widths: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, list[str]]]:
    """How wide windows are along each axis; and those over sites, by pattern: for each
    site the others in the window that begins there (`[]` where it would jut out).

    **Raises:** for a name that is neither of an axis nor of sites.
    """
    known = {name for one in names.values() for name in one.named}
    along: dict[str, int] = {}
    over: dict[str, list[str]] = {}
    for name, width in widths.items():
        keys = [key for key in log if logged_matches(name, key)]
        if name in known:
            along[name] = width
        elif len(keys) < 2:
            raise PeexError(
                f"`windows` slide along the axis {name!r}, but no site has a swept "
                f"axis of that name. Nearest: {nearest(name, sorted(known))}. Name the "
                f'axis in `axes`, as in "{name} pos _", or another one in `windows`, '
                f"as in `windows={{{sorted(known)[0]!r}: {width}}}`; windows over "
                "layers in a list are those of a pattern, as in "
                f'`windows={{"layers.*": {width}}}`.'
            )
        elif not 1 <= width <= len(keys):
            raise PeexError(
                f"The windows over {name!r} are {width} long, but it matches "
                f"{len(keys)} sites: {', '.join(map(repr, keys))}. Choose from 1 to "
                f"{len(keys)}."
            )
        else:
            for i, key in enumerate(keys):
                whole = i + width <= len(keys)
                over[key] = keys[i : i + width] if whole else []
    return along, over


def names_of(
    log: Mapping[str, Any], axes: str | Mapping[str, str], swept: bool = True
) -> dict[str, AxisNames]:
    """The names of the axes at each site.

    **Raises:** if there are none for a site; or, if it is to be swept, only `_`.
    """
    patterns = {"**": axes} if isinstance(axes, str) else axes
    parsed = {pattern: AxisNames.parse(text) for pattern, text in patterns.items()}
    made = {}
    for key, entry in log.items():
        matching = (
            p for p in parsed if isinstance(axes, str) or logged_matches(p, key)
        )
        pattern = next(matching, None)
        shown = shown_arrays(entry)
        if pattern is None:
            raise PeexError(
                f"`axes` says nothing of the site {key!r}, which logs {shown}. Name "
                f"its axes, as in `axes={{{key!r}: ..., **axes}}`, or choose fewer "
                "sites with `where`."
            )
        if swept and not parsed[pattern].named:
            raise PeexError(
                f"{parsed[pattern].text!r} names no axis of the site {key!r}, so "
                f"there is nothing to sweep: `_` is patched whole. It logs {shown}; "
                'name the axes to go along, as in "layer pos _".'
            )
        made[key] = parsed[pattern]
    for pattern in () if isinstance(axes, str) else parsed:
        if not any(logged_matches(pattern, key) for key in log):
            raise SiteNotFoundError(
                f"The pattern {pattern!r} of `axes` matches none of the chosen sites. "
                f"Nearest: {nearest(pattern, log)}."
            )
    return made


def only_array(key: str, entry: Any) -> jax.ShapeDtypeStruct | Array:
    """The array that is the value of a site."""
    leaves = jtu.tree_leaves(entry)
    if len(leaves) != 1:
        raise PeexError(
            f"The value of the site {key!r} has {len(leaves)} arrays, "
            f"{shown_arrays(entry)}, so it isn't known which of them the axes are of. "
            "Choose a site with one array: a module inside of it, or a value that is "
            "named there with `px.probe(x, 'name')`."
        )
    return leaves[0]


def by_site(sites: Sequence[SweptSite], metric: PyTree[Any]) -> dict[str, PyTree]:
    """Of a metric with all places in front, that of each site."""
    one = lambda site: jtu.tree_map(lambda x: jnp.asarray(site.part(x)), metric)
    return {site.key: one(site) for site in sites if site.offset is not None}
