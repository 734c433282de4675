"""Hooks and logs at some steps of loops only."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool

from .._errors import HookShapeError
from .masks import broadcast
from .only_if import AbstractSomewhere, check_hook, LogIf, OnlyIf
from .step_hooks import AbstractLocal, data_for, local_of, SiteCall


class AtStep(AbstractSomewhere):
    """Applies a hook, or a log, at chosen iterations of the loops around a site only:
    at some layers of a scanned stack, or at some time steps. The short form of
    [`peex.At`][] for this. The loop isn't unrolled, the other steps don't run the hook,
    and the steps are arrays, so that changing them compiles nothing anew.

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

        - `hook`: as for [`peex.At`][].
        - `steps`: an integer, or a sequence or array of integers (shape `(n,)`, may be
            traced): steps of the outermost loop around the site, negative ones from the
            end. A tuple of such, for loops in loops: one for each step axis of the
            site's log, outermost first, `None` for all steps of that loop.

        A wrapper that is an argument of a jitted function has its steps traced there,
        so their values aren't known: one that the loop doesn't have chooses nothing.

        **Raises:**

        `TypeError` for a hook that can't be called, or steps that aren't integers. When
        it is called, [`peex.HookShapeError`][] where there are fewer loops around the
        site than `steps` speaks of, or (of concrete steps) a loop has no such step.
        """
        check_hook("AtStep", "px.AtStep(px.ZeroHook(), [1, 3])", hook)
        self.hook = hook
        self.steps = (
            tuple(map(_checked_steps, steps))
            if isinstance(steps, tuple)
            else _checked_steps(steps)
        )

    @property
    def local_half(self) -> AbstractLocal:
        return OnlyIf(local_of(self.hook))

    @property
    def log_half(self) -> AbstractLocal:
        return LogIf(self.hook, False)

    def data_of_call(self, call: SiteCall, wanted: Any) -> Any:
        axes, key = call.axes, call.key
        steps = self.steps if isinstance(self.steps, tuple) else (self.steps,)
        if len(steps) > len(axes.steps):
            raise HookShapeError(
                f"AtStep was given steps of {len(steps)} loops, but the site {key!r} "
                f"is inside of {len(axes.steps)}. Choose sites inside of loops, as in "
                "`px.ForwardHook(model, px.AtStep(hook, [0, 2]), where='layers.**')`."
            )
        acts, inner = wanted
        chosen = jnp.ones((), bool)
        for i, size in enumerate(axes.steps):
            mine = _chosen(key, steps[i] if i < len(steps) else None, size)
            chosen = chosen[..., None] & mine.reshape((1,) * i + (size,))
        chosen = chosen.reshape((1,) * len(axes.devices) + chosen.shape)
        return broadcast(chosen, acts.shape), data_for(self.hook, call, inner)


def _checked_steps(steps: Any) -> Any:
    if steps is None:
        return steps
    if type(steps) is int:
        return np.asarray(steps)  # no static number, for which all is compiled anew
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
