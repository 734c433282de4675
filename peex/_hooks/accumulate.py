"""Logs that were stacked, merged afterwards."""

import math
from collections.abc import Mapping
from typing import Any, TYPE_CHECKING

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import ArrayLike, Bool

from .._engine.site import freeze
from .._errors import LogShapeError
from .._log import Log
from .._log.merged import Merged
from .._text import shown_arrays
from .accumulators import AbstractAccumulator


if TYPE_CHECKING:
    AsLog = Log | Mapping[str, Any]
    Accumulator = AbstractAccumulator
    Mask = Bool[ArrayLike, "..."]
else:
    AsLog = Accumulator = Mask = Any  # checked by peex itself, as elsewhere


def accumulate(
    log: AsLog, accumulator: Accumulator, *, mask: Mask | None = None
) -> Log:
    """Merges what a log has stacked, over its leading axes: what an accumulator in the
    place of its `log_fn` would have recorded; and where that was for each step, as for
    the episodes of a rollout, some of it can be left out.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        cell = eqx.nn.Linear(2, 2, key=jax.random.key(0))
        run = lambda m, x: jax.lax.scan(lambda x, _: (m(x), None), x, length=5)[0]
        _, log = px.ForwardHook(cell, method=run)(jnp.ones(2))
        alive = jnp.array([True, True, True, False, False])
        px.accumulate(log, px.Moments(), mask=alive)["."].count  # 3
        ```

    **Arguments:**

    - `log`: a log of values (or of what is recorded of each), or a mapping like one.
        Entries whose site didn't run everywhere, as in a branch, are merged where it
        did (`log.counts`, which a backward log doesn't have: its zeros are merged).
    - `accumulator`: what merges them.
    - `mask`: where something is to be merged: of the shape of the leading axes (device,
        step and batch axes, as `log.axes` has them; with those that a transformation
        around the wrapper has added in front), or of the first of these.

    **Returns:**

    A log with the same keys, without these axes. It can be merged with others
    ([`peex.merge`][]).

    **Raises:**

    [`peex.LogShapeError`][] where an entry doesn't have the axes that `log.axes` or the
    mask say. `TypeError` for what is no log or no accumulator.
    """
    is_mask = mask is None or getattr(mask, "dtype", None) == bool
    is_accumulator = isinstance(accumulator, AbstractAccumulator)
    if not (isinstance(log, Mapping) and is_accumulator and is_mask):
        got = ", ".join(f"a {type(x).__name__}" for x in (log, accumulator))
        got += "" if mask is None else f", {getattr(mask, 'dtype', type(mask))}"
        raise TypeError(
            "`px.accumulate` takes a log, an accumulator and a mask of bools, as in "
            f"`px.accumulate(log, px.Moments(), mask=alive)`; got {got}."
        )
    log = log if isinstance(log, Log) else Log(log)
    monoid, _ = freeze("", accumulator)
    entries = {}
    for key in log:
        flags = _flags(key, log, mask)
        merged = _merged(accumulator, log[key], flags)
        entries[key] = Merged(merged, monoid, sums=False)
    return Log(entries)


def _flags(key: str, log: Log, mask: Any) -> Any:
    """Where something of an entry is merged, for each place along its leading axes."""
    leaves = jtu.tree_leaves(log[key])
    sizes = tuple(axis.size for axis in log.axes.get(key, ()))
    given = () if mask is None else np.shape(mask)
    shape = sizes if len(sizes) >= len(given) else given
    fits = all(
        np.shape(x)[: len(shape)] == shape and shape[: len(given)] == given
        for x in leaves
    )
    if not fits:
        raise LogShapeError(
            f"The log at {key!r}, {shown_arrays(leaves)}, can't be merged over its "
            f"leading axes: by `log.axes` they are of size {sizes}, and the mask is of "
            f"shape {given}. Give a mask of the shape of the leading axes or of the "
            "first of them; of all, where a transformation around the wrapper has "
            "added some in front: `mask=jnp.ones((batch, steps), bool)`."
        )
    flags = jnp.ones(shape, bool)
    if mask is not None:
        flags = flags & mask.reshape(given + (1,) * (len(shape) - len(given)))
    if key in log.counts:
        flags = flags & _ran(key, log.counts[key], shape)
    return flags


def _ran(key: str, count: Any, shape: tuple[int, ...]) -> Any:
    if np.shape(count) == shape:
        return count > 0
    raise LogShapeError(
        f"The log at {key!r} holds the last iterations of a `while` loop "
        "(`while_buffer`), behind which zeros may stand. Merge them where they are: "
        "`px.ForwardHook(model, log_fn=px.Moments())`."
    )


def _merged(accumulator: AbstractAccumulator, entry: Any, flags: Any) -> Any:
    """An entry, merged where the flags, of its leading axes, are set."""
    each = accumulator
    for _ in flags.shape:
        each = jax.vmap(each)
    if flags.ndim == 0:
        entry, flags = jtu.tree_map(lambda x: x[None], entry), flags[None]
        each = jax.vmap(each)
    made = each(entry)
    num, size = flags.ndim, math.prod(flags.shape)
    like = jtu.tree_map(lambda x: jax.ShapeDtypeStruct(x.shape[num:], x.dtype), made)
    empty = accumulator.empty(like)

    def kept(x: Any, none: Any) -> Any:
        x = x.reshape(size, *x.shape[num:])
        here = flags.reshape(size, *(1,) * (x.ndim - 1))
        return jnp.where(here, x, jnp.asarray(none).astype(x.dtype)[None])

    return accumulator.merge_axis(jtu.tree_map(kept, made, empty))
