"""Entries of a log that were merged, and can be merged further."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.core import Tracer

from .._engine.codec import Encoded
from .._engine.merging import thawed
from .._engine.site import Frozen, Site


class Merged(eqx.Module):
    """What an accumulator has merged.

    - `entry`: that, or in a backward log the sums of which it is had.
    - `monoid`: what merges it further.
    - `sums`: whether it is these sums.
    """

    entry: Any
    monoid: Frozen = eqx.field(static=True)
    sums: bool = eqx.field(static=True)

    @property
    def value(self) -> Any:
        """What the accumulator returns."""
        entry = decoded(self.entry)
        return thawed(self.monoid).from_sums(entry) if self.sums else entry

    @property
    def summary(self) -> Any:
        """What the accumulator says is shown of it."""
        return thawed(self.monoid).summary(self.value)

    @property
    def shown(self) -> Any:
        """The same, where it is known."""
        leaves = jtu.tree_leaves(self.entry)
        known = all(isinstance(x, jax.Array) for x in leaves)
        traced = any(isinstance(x, Tracer) for x in leaves)
        return self.summary if known and not traced else self.entry

    def empty(self, num_axes: int) -> "Merged":
        """What changes nothing that it is merged with. `num_axes` are its leading axes,
        over which it wasn't merged. (Its arrays may be shapes.)
        """
        whole = jax.eval_shape(lambda merged: merged.value, self)
        like = jtu.tree_map(lambda x: x.update(shape=x.shape[num_axes:]), whole)
        made = thawed(self.monoid).empty(like)
        made = jtu.tree_map(lambda x, s: jnp.broadcast_to(x, s.shape), made, whole)
        return Merged(made, self.monoid, False)

    def merge(self, other: "Merged", num_axes: int) -> "Merged":
        merge = thawed(self.monoid).merge
        for _ in range(num_axes):
            merge = jax.vmap(merge)
        return Merged(merge(self.value, other.value), self.monoid, False)


def decoded(entry: Any) -> Any:
    """An entry, integers of a backward log decoded."""
    is_encoded = lambda x: isinstance(x, Encoded)
    return jtu.tree_map(
        lambda x: x.decode() if is_encoded(x) else x, entry, is_leaf=is_encoded
    )


def held(site: Site, entry: Any, sums: bool = False) -> Any:
    """An entry as it is held in a log."""
    if not site.merges:
        return entry
    assert site.log is not None
    assert site.log.monoid is not None
    return Merged(entry, site.log.monoid, sums)


def unheld(entry: Any) -> Any:
    """What `held` was given."""
    return entry.entry if isinstance(entry, Merged) else entry
