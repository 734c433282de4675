"""Hooks: what changes a value on its way.

A hook is any callable from a value to a value of the same tree structure, shapes and
dtypes. Subclass `AbstractHook` if it holds arrays, which then are leaves of the wrapper
and can be trained. To add a hook, add a class here.
"""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import ArrayLike, PyTree

from .per_array import calculate, per_array


class AbstractHook(eqx.Module):
    """Base class of hooks that are modules.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        class Clip(px.AbstractHook):
            limit: jax.Array

            def __call__(self, value):
                return jnp.clip(value, -self.limit, self.limit)

        linear = eqx.nn.Linear(2, 2, key=jax.random.key(0))
        hooked = px.ForwardHook(linear, hook_fn=Clip(jnp.array(0.1)))
        ```
    """

    @abc.abstractmethod
    def __call__(self, value: PyTree[ArrayLike]) -> PyTree[ArrayLike]:
        """**Arguments:**

        - `value`: a pytree of arrays: the output of a module, its arguments (for a pre
            hook), or the cotangents of these (for a backward hook). What isn't an array
            in it is `None`. Of a stateful layer, which returns `(output, state)`, it is
            the output alone.

        **Returns:**

        A pytree of the same structure, shapes and dtypes.
        """


class IdentityHook(AbstractHook):
    """Leaves the value as it is."""

    def __call__(self, value: PyTree[ArrayLike]) -> PyTree[ArrayLike]:
        return value


class ScaleHook(AbstractHook):
    """Multiplies every array of the value: `x -> scale * x`, calculated in a dtype that
    both fit in, and cast to that of `x`.

    A Python number is static; an array can be traced, trained and changed without
    compiling anew. It must broadcast against `x` without changing its shape, else a
    [`peex.HookShapeError`][] is raised.
    """

    scale: ArrayLike

    def __call__(self, value: PyTree[ArrayLike]) -> PyTree[ArrayLike]:
        scaled = lambda x: calculate(lambda x: self.scale * x, x, "scale", self.scale)
        return per_array(scaled, value)


class AddHook(AbstractHook):
    """Adds to every array of the value: `x -> x + offset`, calculated in a dtype that
    both fit in, and cast to that of `x`; as for a steering vector.

    `offset` must broadcast against `x` without changing its shape, else a
    [`peex.HookShapeError`][] is raised.
    """

    offset: ArrayLike

    def __call__(self, value: PyTree[ArrayLike]) -> PyTree[ArrayLike]:
        moved = lambda x: calculate(lambda x: x + self.offset, x, "offset", self.offset)
        return per_array(moved, value)


class ZeroHook(AbstractHook):
    """Replaces every array of the value by zeros: `x -> 0`."""

    def __call__(self, value: PyTree[ArrayLike]) -> PyTree[ArrayLike]:
        return per_array(jnp.zeros_like, value)
