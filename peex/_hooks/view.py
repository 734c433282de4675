"""Hooks that see a value with its axes split."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
from jaxtyping import Array, PyTree

from .._engine.apply import checked
from .._engine.messages import Datum
from .._engine.site import Site
from .._errors import HookShapeError
from .axis_names import AxisNames
from .only_if import check_hook
from .step_hooks import (
    AbstractLocal,
    AbstractStepHook,
    data_for,
    local_of,
    patterns_of,
    SiteCall,
)


class _View(AbstractLocal):
    hook: AbstractLocal
    names: AxisNames = eqx.field(static=True)

    def wants(self, value: Sequence[jax.ShapeDtypeStruct], site: Site) -> PyTree[Datum]:
        seen = [x.update(shape=_split(self.names, x.shape, site.key)) for x in value]
        return self.hook.wants(seen, site)

    def __call__(self, value: PyTree[Array], data: Any, site: Site) -> PyTree[Any]:
        old, structure = jtu.tree_flatten(value)
        seen = [x.reshape(_split(self.names, x.shape, site.key)) for x in old]
        new = self.hook(structure.unflatten(seen), data, site)
        new = checked(site, seen, structure, new)
        pairs = zip(new, old, strict=True)
        return structure.unflatten([y.reshape(x.shape) for y, x in pairs])


def _split(names: AxisNames, shape: Sequence[Any], key: str) -> tuple[Any, ...]:
    """The shape as the hook sees it. The names may be those of all that is logged:
    then the first are of axes that the value itself hasn't got.
    """
    gained = len(names.axes) - len(shape)
    if gained > 0:
        split = [factors for factors in names.axes[:gained] if len(factors) > 1]
        if split:
            raise HookShapeError(
                f"The names {names.text!r} of a View split an axis that the value of "
                f"the site {key!r}, of shape {tuple(shape)}, hasn't got there: of "
                f"{len(names.axes)} names, the first {gained} are of loops and "
                "batches. Split axes of the value, which are the last."
            )
        names = dataclasses.replace(names, axes=names.axes[gained:])
    return names.split(shape, f"The value of the site {key!r}")


class View(AbstractStepHook):
    """Applies a hook to a value with its axes split, and writes back what that returns:
    to heads of a projection, patches of an image, groups of channels.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        project = eqx.nn.Linear(4, 6, key=jax.random.key(0))
        second = jnp.array([False, True, False])[:, None]  # of 3 heads of 2 units
        hook = px.View(px.At(px.ZeroHook(), second), "(head=3 d)")
        out, _ = px.ForwardHook(project, hook)(jnp.ones(4))
        out  # zeros at 2 and 3
        ```

    Patterns are a small part of those of einops ([Rogozhnikov,
    2022](https://openreview.net/forum?id=oapKSVM2bcj)), read by peex itself: what is
    needed of them is splitting axes, for which one more dependency would be a lot.
    """

    hook: Any
    names: AxisNames = eqx.field(static=True)

    def __init__(self, hook: Any, names: str):
        """**Arguments:**

        - `hook`: as for [`peex.At`][]; also one with data. What it is told of shapes
            (the mask of an `At`, a log of [`peex.WithData`][]) is of the split ones;
            the source of a [`peex.PatchHook`][] is the log as it is.
        - `names`: a name for each axis of the value, `_` for any, `(head=9 d)` for one
            that is split, row by row. Also with those of the log in front, so that one
            pattern is right inside and outside of loops: `"layer pos (head=9 d)"`.

        **Raises:**

        `TypeError` for what is no such pattern; when it is called,
        [`peex.HookShapeError`][] if it doesn't fit the value.
        """
        check_hook("View", 'px.View(px.ZeroHook(), "pos (head=9 d)")', hook)
        self.hook = hook
        self.names = AxisNames.parse(names)

    @property
    def local_half(self) -> AbstractLocal:
        return _View(local_of(self.hook), self.names)

    @property
    def patterns(self) -> tuple[str, ...]:
        return patterns_of(self.hook)

    def data_of_call(self, call: SiteCall, wanted: Any) -> Any:
        num_axes = len(call.axes.shape)

        def split(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            shape = _split(self.names, x.shape[num_axes:], call.key)
            return x.update(shape=(*x.shape[:num_axes], *shape))

        seen = tuple(split(x) for x in call.seen)
        return data_for(self.hook, dataclasses.replace(call, seen=seen), wanted)
