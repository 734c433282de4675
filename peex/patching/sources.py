"""What is put into a run: the other's values, zeros, means, or a log of one's own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Inexact

from .._errors import LogShapeError, PeexError
from .._hooks.axis_names import ANONYMOUS
from .._log import Log
from .._sites.patterns import nearest
from .._text import shown_arrays
from .places import SweptSite


KINDS = ("clean", "zero", "mean")


def check_source(
    source: Any, log: Mapping[str, Any], sites: Sequence[SweptSite]
) -> None:
    """**Raises:** if a source doesn't fit what the sites log (or the shapes of it)."""
    if not isinstance(source, Log):
        if source not in KINDS:
            raise TypeError(
                f"`source={source!r}` isn't known. Write one of "
                f"{', '.join(map(repr, KINDS))}, or give a `px.Log`. Values of the "
                'corrupted run are put into the clean one by `direction="noising"`.'
            )
        for site in sites if source == "mean" else ():
            _check_mean(site, log)
        return
    for site in sites:
        if site.key not in source:
            raise LogShapeError(
                f"The log given as `source` has nothing of the site {site.key!r}. "
                f"Nearest: {nearest(site.key, source)}. Log the same sites, with the "
                "same `where`."
            )
        mine = jax.eval_shape(lambda x: x, jtu.tree_leaves(source[site.key]))
        fits = jtu.tree_leaves(log[site.key])
        if [x.shape for x in mine] != [x.shape for x in fits]:
            raise LogShapeError(
                f"The log given as `source` has {shown_arrays(mine)} at the site "
                f"{site.key!r}, but the runs log {shown_arrays(fits)} there. Log a run "
                "on inputs of the same shapes."
            )


def _check_mean(site: SweptSite, log: Mapping[str, Any]) -> None:
    (x,) = jtu.tree_leaves(log[site.key])
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        raise PeexError(
            f'`source="mean"`: the site {site.key!r} logs {shown_arrays(x)}, of which '
            "there is no mean. Choose sites of floating-point numbers."
        )
    if not _averaged(site):
        raise PeexError(
            f'`source="mean"` is the mean over the axes that are patched whole, but '
            f"the last, and {' '.join(site.names)!r} has none of these at the site "
            f"{site.key!r}. Give the runs several examples, along an axis that is "
            'written `_`, as in "layer _ pos _", or means of your own as a `px.Log`.'
        )


def _averaged(site: SweptSite) -> tuple[int, ...]:
    return tuple(i for i, n in enumerate(site.names[:-1]) if n == ANONYMOUS)


def made_source(source: Any, given: Log, log: Log, sites: tuple[SweptSite, ...]) -> Log:
    """The log that is put into a run.

    **Arguments:**

    - `given`: of the run whose values are put in; `log`: of the one that they are put
        into.
    """
    if isinstance(source, Log):
        mine = {key: jtu.tree_leaves(source[key])[0] for key in log}
        return _each(lambda key, x: jnp.asarray(mine[key]).astype(x.dtype), log)
    if source == "zero":
        return _each(lambda key, x: jnp.zeros_like(x), log)
    return _means(given, sites) if source == "mean" else given


def _each(fn: Callable[[str, Any], Any], log: Log) -> Log:
    """A log of the same keys; a function makes the array at each."""
    one = lambda key: jtu.tree_map(lambda x: fn(key, x), log[key])
    return Log({key: one(key) for key in log})


@eqx.filter_jit
def _means(log: Log, sites: tuple[SweptSite, ...]) -> Log:
    by_key = {site.key: site for site in sites}

    def one(key: str, x: Inexact[Array, "..."]) -> Inexact[Array, "..."]:
        site = by_key[key]
        mean = x.reshape(site.split).mean(_averaged(site), keepdims=True)
        return jnp.broadcast_to(mean, site.split).reshape(site.shape)

    return _each(one, log)
