"""Hooks that act differently at each call, step and example.

Such a hook has two halves. At the top of the call, where a site's log would be, it
makes data of the site's whole shape: with the device, step and batch axes. At the site
it is given the slice of that data that belongs to this step and example; the engine
cuts it, as it stacks logs.
"""

import abc
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Bool, PyTree

from .._engine.apply import difference
from .._engine.messages import Axes
from .._errors import HookShapeError, LogShapeError, SiteNotFoundError
from .._log import Log
from .._sites.patterns import key_matches, nearest
from .callables import refuse_class


class AbstractLocal(eqx.Module):
    """The half of a step hook that is at the site."""

    @abc.abstractmethod
    def data_shapes(
        self, arrays: Sequence[jax.ShapeDtypeStruct]
    ) -> list[jax.ShapeDtypeStruct]:
        """What it wants for one step of one example, from the arrays of the value."""

    @abc.abstractmethod
    def __call__(
        self, value: PyTree[Array], data: Sequence[Array], key: str
    ) -> PyTree[Array]:
        """The hook, with the data for this step and example, and the key of the site
        (that of all its calls).
        """


class OnlyIf(AbstractLocal):
    """A hook that acts where the first of its data says so."""

    hook: Any

    def data_shapes(
        self, arrays: Sequence[jax.ShapeDtypeStruct]
    ) -> list[jax.ShapeDtypeStruct]:
        flag = jax.ShapeDtypeStruct((), jnp.dtype(bool))
        if isinstance(self.hook, AbstractLocal):
            return [flag, *self.hook.data_shapes(arrays)]
        return [flag]

    def __call__(
        self, value: PyTree[Array], data: Sequence[Array], key: str
    ) -> PyTree[Array]:
        chosen, *others = data
        local = isinstance(self.hook, AbstractLocal)
        new = self.hook(value, others, key) if local else self.hook(value)
        if difference(*jtu.tree_flatten(value), new) is not None:
            return new  # refused as that of any hook is
        pick = lambda new, old: lax.select(chosen, new, old)
        return jtu.tree_map(pick, new, value)


class AbstractStepHook(eqx.Module):
    """A hook with data for each call, step and example of a site."""

    @property
    @abc.abstractmethod
    def local_half(self) -> AbstractLocal:
        """The half at the site."""

    @abc.abstractmethod
    def data_of_call(
        self, key: str, call: int, shapes: Sequence[jax.ShapeDtypeStruct], axes: Axes
    ) -> list[Array]:
        """The data of one call of one site: arrays of `shapes`, which are those that
        the half at the site wants, with `axes` in front. `key` is that of the call, as
        in a log, and `call` its number.
        """


class AtStep(AbstractStepHook):
    """Applies a hook at chosen iterations of the loops around a site only: at some
    layers of a scanned stack, or at some time steps. The loop isn't unrolled, and the
    steps may be traced arrays, so that changing them compiles nothing anew.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        cell = eqx.nn.Linear(2, 2, key=jax.random.key(0))
        run = lambda cell, x: jax.lax.scan(lambda x, _: (cell(x), x), x, length=5)[0]
        hook = px.AtStep(px.ZeroHook(), [1, 3])
        out, log = px.ForwardHook(cell, hook, method=run)(jnp.ones(2))
        log["."]  # shape (5, 2): zeros at steps 1 and 3
        ```
    """

    hook: Any
    steps: Any

    def __init__(self, hook: Any, steps: Any):
        """**Arguments:**

        - `hook`: anything that `hook_fn` may be, but a dict. It runs at the other steps
            too, where what it returns is dropped (as by `jnp.where`): in a gradient it
            must have a finite derivative there.
        - `steps`: an integer, or a sequence or array of integers (shape `(n,)`, may be
            traced): steps of the outermost loop around the site, negative ones from the
            end. A tuple of such, for loops in loops: one for each step axis of the
            site's log, outermost first, `None` for all steps of that loop.

        A wrapper that is an argument of a jitted function has its steps traced there (a
        lone Python integer isn't), so their values aren't known: one that the loop
        doesn't have chooses nothing.

        **Raises:**

        `TypeError` for a hook that can't be called, or steps that aren't integers. When
        it is called, [`peex.HookShapeError`][] where there are fewer loops around the
        site than `steps` speaks of, or (of concrete steps) a loop has no such step.
        """
        refuse_class("The hook of an AtStep", hook)
        if not (callable(hook) or isinstance(hook, AbstractStepHook)):
            name = type(hook).__name__
            raise TypeError(
                f"AtStep was given a hook of type {name}, which can't be called with a "
                "value. Give it one hook, as in `px.AtStep(px.ZeroHook(), [1, 3])`: in "
                "a dict of hooks, each has its own AtStep."
            )
        self.hook = hook
        self.steps = (
            tuple(map(_checked_steps, steps))
            if isinstance(steps, tuple)
            else _checked_steps(steps)
        )

    @property
    def local_half(self) -> AbstractLocal:
        hook = self.hook
        return OnlyIf(hook.local_half if isinstance(hook, AbstractStepHook) else hook)

    def data_of_call(
        self, key: str, call: int, shapes: Sequence[jax.ShapeDtypeStruct], axes: Axes
    ) -> list[Array]:
        steps = self.steps if isinstance(self.steps, tuple) else (self.steps,)
        if len(steps) > len(axes.steps):
            raise HookShapeError(
                f"AtStep was given steps of {len(steps)} loops, but the site {key!r} "
                f"is inside of {len(axes.steps)}. Choose sites inside of loops, as in "
                "`px.ForwardHook(model, px.AtStep(hook, [0, 2]), where='layers.**')`."
            )
        chosen = jnp.ones((), bool)
        for i, size in enumerate(axes.steps):
            mine = _chosen(key, steps[i] if i < len(steps) else None, size)
            chosen = chosen[..., None] & mine.reshape((1,) * i + (size,))
        before, after = len(axes.devices), len(axes.batch)
        chosen = chosen.reshape((1,) * before + chosen.shape + (1,) * after)
        chosen = jnp.broadcast_to(chosen, axes.shape)
        if isinstance(self.hook, AbstractStepHook):
            return [chosen, *self.hook.data_of_call(key, call, shapes[1:], axes)]
        return [chosen]


def _checked_steps(steps: Any) -> Any:
    if steps is None or type(steps) is int:
        return steps
    if isinstance(steps, list | range):
        # NumPy's stays concrete under jit; an item may be an array of JAX's.
        of_jax = any(isinstance(step, jax.Array) for step in steps)
        steps = (jnp if of_jax else np).asarray([*steps], None if steps else int)
    if not jnp.issubdtype(getattr(steps, "dtype", bool), jnp.integer):
        raise TypeError(
            f"AtStep was given steps {steps!r}, which aren't integers. Write the "
            "numbers of the steps, as in `px.AtStep(hook, [1, 3])`; of a mask, "
            "`px.AtStep(hook, jnp.flatnonzero(mask))`."
        )
    return steps


def _chosen(key: str, steps: Any, size: int) -> Bool[Array, " steps"]:
    if steps is None:
        return jnp.ones(size, bool)
    known = () if isinstance(steps, Tracer) else np.ravel(steps)
    outside = [step for step in known if not -size <= step < size]
    if outside:
        raise HookShapeError(
            f"AtStep was given step {outside[0]}, but the loop around the site {key!r} "
            f"has {size} steps: 0 to {size - 1}, or negative ones from the end."
        )
    steps = jnp.atleast_1d(jnp.asarray(steps)).astype(int)
    steps = jnp.where(steps < 0, steps + size, steps)
    return jnp.any(jnp.arange(size, dtype=steps.dtype)[:, None] == steps[None], axis=1)


class _Patch(AbstractLocal):
    masked: bool = eqx.field(static=True)

    def data_shapes(
        self, arrays: Sequence[jax.ShapeDtypeStruct]
    ) -> list[jax.ShapeDtypeStruct]:
        masks = [jax.ShapeDtypeStruct(x.shape, jnp.dtype(bool)) for x in arrays]
        return [*arrays, *masks] if self.masked else list(arrays)

    def __call__(
        self, value: PyTree[Array], data: Sequence[Array], key: str
    ) -> PyTree[Array]:
        leaves, treedef = jtu.tree_flatten(value)
        patch = list(data[: len(leaves)])
        if self.masked:
            masks = data[len(leaves) :]
            patch = [
                jnp.where(mask, new, old)
                for mask, new, old in zip(masks, patch, leaves, strict=True)
            ]
        return jtu.tree_unflatten(treedef, patch)


class PatchHook(AbstractStepHook):
    """Replaces each value by the same site's value in another run: activation patching
    ([Vig et al., 2020](https://arxiv.org/abs/2004.12265); [Meng et al.,
    2022](https://arxiv.org/abs/2202.05262)).

    The log is cut per call, step and example as it was put together. Its values are
    dynamic: patching with another run's compiles nothing anew.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        mlp = eqx.nn.MLP(2, 1, 8, depth=2, key=jax.random.key(0))
        clean, corrupted = jnp.ones(2), jnp.zeros(2)
        _, log = px.ForwardHook(mlp, where="layers.0")(clean)
        patched = px.ForwardHook(mlp, px.PatchHook(log), None, where="layers.0")
        out, _ = patched(corrupted)  # equals mlp(clean)
        ```
    """

    source_log: Log
    mask: Any
    patterns: tuple[str, ...] | None = eqx.field(static=True)

    def __init__(
        self,
        source_log: Log,
        mask: Any = None,
    ):
        """**Arguments:**

        - `source_log`: a log of values themselves (`px.IdentityLog`), with the sites
            that this hook acts on.
        - `mask`: where to replace; booleans that broadcast against the logged shape
            (the value's, with the step and batch axes in front). Or a dict from
            patterns over keys to these (the first that matches; `None` for everywhere):
            where none matches, nothing is replaced.

        **Raises:**

        `TypeError` for a mask of another type, [`peex.SiteNotFoundError`][] for a
        pattern of the mask that nothing in the log matches. When it is called,
        [`peex.LogShapeError`][] if the log, or a mask, doesn't fit.
        """
        self.source_log = source_log
        by_pattern = mask if isinstance(mask, dict) else {"**": mask}
        for pattern, one in by_pattern.items():
            if one is not None and not _is_mask(one):
                raise TypeError(
                    "The mask of a PatchHook is an array of booleans, a dict from "
                    f"patterns to these, or None; got {one!r}. Write "
                    "`px.PatchHook(log, mask={'cell': jnp.array([True, False])})`."
                )
            known = any(key_matches(pattern, k, _suffix(k)) for k in source_log)
            if isinstance(mask, dict) and not known:
                raise SiteNotFoundError(
                    f"The pattern {pattern!r} of the `mask` of a PatchHook matches "
                    f"nothing in its log. Nearest: {nearest(pattern, source_log)}."
                )
        # Not as a dict, whose keys JAX sorts.
        self.patterns = tuple(by_pattern) if isinstance(mask, dict) else None
        self.mask = tuple(by_pattern.values()) if isinstance(mask, dict) else mask

    @property
    def local_half(self) -> AbstractLocal:
        return _Patch(self.mask is not None)

    def data_of_call(
        self, key: str, call: int, shapes: Sequence[jax.ShapeDtypeStruct], axes: Axes
    ) -> list[Array]:
        if key not in self.source_log:
            raise LogShapeError(
                f"The site {key!r} is to be patched, but isn't in the source log, "
                f"which has {list(self.source_log)}. Choose the sites that it has: "
                "`px.ForwardHook(model, px.PatchHook(log), where=list(log))`."
            )
        leaves = [jnp.asarray(x) for x in jtu.tree_leaves(self.source_log[key])]
        shapes = shapes[: len(shapes) // 2] if self.mask is not None else shapes
        expected = [f"{s.dtype}{list(s.shape)}" for s in shapes]
        got = [f"{x.dtype}{list(x.shape)}" for x in leaves]
        if expected != got:
            raise LogShapeError(
                f"The patch of the site {key!r} doesn't fit: the value is "
                f"{', '.join(expected)}, the source log has {', '.join(got)}. Patch "
                "with the log of a run on inputs of the same shapes, of the values "
                "themselves (`log_fn=px.IdentityLog()`)."
            )
        if self.mask is None:
            return leaves
        return [*leaves, *(self._mask(key, x) for x in leaves)]

    def _mask(self, key: str, leaf: Array) -> Bool[Array, "..."]:
        mask: Any = self.mask
        if self.patterns is not None:
            pairs = zip(self.patterns, mask, strict=True)
            mine = [m for p, m in pairs if key_matches(p, key, _suffix(key))]
            mask = False if not mine else True if mine[0] is None else mine[0]
        try:
            return jnp.broadcast_to(jnp.asarray(mask, bool), leaf.shape)
        except ValueError:
            raise LogShapeError(
                f"The mask of a PatchHook, of shape {jnp.shape(mask)}, doesn't "
                f"broadcast against the log of the site {key!r}, {leaf.shape}."
            ) from None


def _is_mask(mask: Any) -> bool:
    return isinstance(mask, bool) or getattr(mask, "dtype", None) == bool


def _suffix(key: str) -> str:
    """What a key has behind that of a module, if it is of a value inside."""
    return key[key.index("/") :] if "/" in key else ""
