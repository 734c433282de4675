"""What a window of steps holds of one array: what was recorded, merged."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float, UInt32

from .._hooks import two_words
from .._hooks.moments import Moments, MomentsEntry
from .stats import Recorded, Wanted


_MOMENTS = Moments()


class Window(eqx.Module):
    """Of one array, all that was recorded, merged over everything but the layers of a
    stack. Its size doesn't depend on how much that was.

    - `moments`: by name: of the finite elements (`values`), of the entropies of rows
        (`entropy`), of an `update` and of the `weight`.
    - `largest`: the largest of what was recorded, by name.
    - `counts`: what adds up, by name, as two words of 32 bits, low and high.
    - `wanted`: what is made of it.
    """

    moments: dict[str, MomentsEntry]
    largest: dict[str, Float[Array, "..."]]
    counts: dict[str, UInt32[Array, "... 2"]]
    wanted: Wanted = eqx.field(static=True)


def of_step(recorded: Recorded, over: Sequence[int], kept: Sequence[int]) -> Window:
    """What was recorded in one step.

    **Arguments:**

    - `over`, `kept`: which of its leading axes are merged, and which stay, in front.
    """

    def arranged(x: Any) -> Any:
        own = range(len(recorded.axes), x.ndim)
        return jnp.transpose(x, (*over, *kept, *own))

    numbers = arranged(recorded.numbers)
    x = {name: numbers[..., i] for i, name in enumerate(recorded.named)}
    ran = x["size"] > 0
    moments, largest = {}, {}
    for name in [name.removesuffix(".n") for name in x if name.endswith(".n")]:
        n, mean, m2 = (x.pop(f"{name}.{part}") for part in ("n", "mean", "m2"))
        moments[name] = MomentsEntry(mean, m2, _words(n))
    for name in ("max", "highest"):
        if name in x:
            largest[name] = jnp.where(ran, x.pop(name), -jnp.inf)
    if recorded.units is not None:
        units = arranged(recorded.units)
        largest["dead"] = jnp.where(ran[..., None], units, -jnp.inf)
    counts = {name: _words(y) for name, y in x.items()}
    if recorded.histogram is not None:
        counts["histogram"] = _words(arranged(recorded.histogram))
    window = Window(moments, largest, counts, recorded.wanted)
    for _ in over:  # one axis after the other: they may be sharded
        window = _along_first(window)
    return window


def _along_first(window: Window) -> Window:
    return Window(
        _MOMENTS.merge_axis(window.moments),
        jtu.tree_map(lambda x: jnp.max(x, 0, initial=-jnp.inf), window.largest),
        jtu.tree_map(two_words.summed, window.counts),
        window.wanted,
    )


def _words(count: Float[Array, "..."]) -> UInt32[Array, "... 2"]:
    low = count.astype(jnp.uint32)
    return jnp.stack([low, jnp.zeros_like(low)], axis=-1)


def empty(window: Window) -> Window:
    """What changes nothing that this is merged with, where its arrays are."""
    nothing = lambda tree: jtu.tree_map(jnp.zeros_like, tree)
    lowest = lambda x: jnp.full_like(x, -jnp.inf)
    return Window(
        nothing(window.moments),
        jtu.tree_map(lowest, window.largest),
        nothing(window.counts),
        window.wanted,
    )


def merged(a: Window, b: Window) -> Window:
    """One of both."""
    return Window(
        _MOMENTS.merge(a.moments, b.moments),
        jtu.tree_map(jnp.maximum, a.largest, b.largest),
        jtu.tree_map(two_words.added, a.counts, b.counts),
        a.wanted,
    )


def is_window(x: Any) -> bool:
    return isinstance(x, Window)


def is_recorded(x: Any) -> bool:
    return isinstance(x, Recorded)


def each(fn: Any, *trees: Any) -> Any:
    """Of each window in pytrees of these."""
    return jtu.tree_map(fn, *trees, is_leaf=is_window)
