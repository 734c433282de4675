"""Hooks that are told where they act: at which call of which site, step and example."""

import abc
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Int, PyTree

from .._engine.messages import Datum
from .._engine.site import Site
from .step_hooks import AbstractLocal, AbstractStepHook, SiteCall


class SiteIndex(eqx.Module):
    """Where a hook acts: what an [`peex.AbstractIndexedHook`][] is told.

    - `key`: of the site, that of all its calls.
    - `call`: which of these it is: in a log, call 2 is `"cell#2"`.
    - `step`: which iteration of the loops around the site, counted through all of them
        where there are several: of a loop of 5 in one of 3, step 7 is the third of 5 in
        the second of 3. Of a scanned stack, which layer. 0 outside of loops.
    - `example`: which one of a `vmap`, counted likewise through several; 0 where the
        value has no batch axis.
    - `device`: which one of a `shard_map`.
    """

    key: str = eqx.field(static=True)
    call: Int[Array, ""]
    step: Int[Array, ""]
    example: Int[Array, ""]
    device: Int[Array, ""]


class AbstractIndexedHook(AbstractStepHook):
    """Base class of hooks that do something else at each call, step or example: they
    are told which it is.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        class Noise(px.AbstractIndexedHook):
            key: jax.Array
            scale: float

            def __call__(self, value, *, at):
                key = self.key
                for index in (at.call, at.step, at.example):
                    key = jax.random.fold_in(key, index)
                return value + self.scale * jax.random.normal(key, value.shape)

        cell = eqx.nn.Linear(2, 2, key=jax.random.key(0))
        run = lambda cell, x: jax.lax.scan(lambda x, _: (cell(x), x), x, length=5)[0]
        hooked = px.ForwardHook(cell, Noise(jax.random.key(1), 0.1), method=run)
        out, log = hooked(jnp.ones(2))  # independent noise at each of five steps
        ```

    As other hooks with data for each step, it can't act in a `while` loop, whose steps
    aren't known before it runs ([`peex.SiteLostError`][]). A `vmap` around the wrapper
    isn't seen: what acts differently at its examples needs it inside, as in
    `px.ForwardHook(eqx.filter_vmap(model), hook)`.
    """

    @abc.abstractmethod
    def __call__(self, value: PyTree[ArrayLike], *, at: SiteIndex) -> PyTree[ArrayLike]:
        """**Arguments:**

        - `value`: as for [`peex.AbstractHook`][].
        - `at`: where it acts, a [`peex.SiteIndex`][].

        **Returns:**

        A pytree of the same structure, shapes and dtypes.
        """

    @property
    def local_half(self) -> AbstractLocal:
        return _Local(self)

    def data_of_call(self, call: SiteCall, wanted: Any) -> Int[Array, "..."]:
        axes = call.axes
        index, start = [jnp.full(axes.shape, call.number, jnp.int32)], 0
        for sizes in (axes.devices, axes.steps, axes.batch):
            index.append(_counted(sizes, start, axes.shape))
            start += len(sizes)
        return jnp.stack(index, axis=-1)


def _counted(sizes: Sequence[Any], start: int, shape: Sequence[Any]) -> Array:
    """Numbers along the axes of these sizes, of which `start` is the first."""
    count = jnp.zeros(shape, jnp.int32)
    for i, size in enumerate(sizes, start):
        here = lax.broadcasted_iota(jnp.int32, shape, i)
        count = count * jnp.asarray(size, jnp.int32) + here
    return count


class _Local(AbstractLocal):
    hook: AbstractIndexedHook

    def wants(self, value: Sequence[jax.ShapeDtypeStruct], site: Site) -> PyTree[Datum]:
        return Datum(jax.ShapeDtypeStruct((4,), jnp.dtype(jnp.int32)))

    def __call__(self, value: PyTree[Array], data: Any, site: Site) -> PyTree[Array]:
        call, device, step, example = data
        return self.hook(value, at=SiteIndex(site.key, call, step, example, device))
