"""Hooks: what changes a value on its way.

A hook is any callable from a value to a value of the same tree structure, shapes and
dtypes. Subclass `AbstractHook` if it holds arrays, which then are leaves of the wrapper
and can be trained. To add a hook, add a class here.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import ArrayLike, PyTree

from .._errors import HookShapeError


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


def _per_array(fn: Callable[[Any], Any], value: PyTree[Any]) -> PyTree[Any]:
    """Applies `fn` to every array; random keys, with which one can't calculate, are
    left as they are.
    """

    known: dict[int, Any] = {}

    def one(x: Any) -> Any:
        if jnp.issubdtype(x.dtype, jax.dtypes.extended):
            return x
        if id(x) not in known:  # one array that is there twice stays one
            known[id(x)] = fn(x)
        return known[id(x)]

    return jtu.tree_map(one, value)


class IdentityHook(AbstractHook):
    """Leaves the value as it is."""

    def __call__(self, value: PyTree[ArrayLike]) -> PyTree[ArrayLike]:
        return value


def _calculate(fn: Callable[[Any], Any], x: Any, name: str, other: Any) -> Any:
    """`fn(x)` in the dtype of `x`, calculated in one that both operands fit in, in the
    strict modes of JAX too.

    **Raises:** `HookShapeError` if the other operand doesn't broadcast to `x`.
    """
    shape = jnp.shape(other)
    try:
        broadcasts = jnp.broadcast_shapes(shape, x.shape) == tuple(x.shape)
    except ValueError:
        broadcasts = False
    if not broadcasts:
        raise HookShapeError(
            f"its {name} of shape {list(shape)} doesn't broadcast to the value, "
            f"{x.dtype}{list(x.shape)}. Give one that does, as "
            f"`jnp.zeros({tuple(x.shape)})`, or choose other sites with `where`."
        )
    wide = x
    if jnp.issubdtype(x.dtype, jnp.floating) and jnp.finfo(x.dtype).bits <= 8:
        wide = x.astype(jnp.float32)  # nothing else is promoted with these
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        result = jnp.asarray(fn(wide))
    if jnp.iscomplexobj(result) and not jnp.iscomplexobj(x):
        result = result.real
    return result.astype(x.dtype)


class ScaleHook(AbstractHook):
    """Multiplies every array of the value: `x -> scale * x`, calculated in a dtype that
    both fit in, and cast to that of `x`.

    A Python number is static; an array can be traced, trained and changed without
    compiling anew. It must broadcast against `x` without changing its shape, else a
    [`peex.HookShapeError`][] is raised.
    """

    scale: ArrayLike

    def __call__(self, value: PyTree[ArrayLike]) -> PyTree[ArrayLike]:
        scaled = lambda x: _calculate(lambda x: self.scale * x, x, "scale", self.scale)
        return _per_array(scaled, value)


class AddHook(AbstractHook):
    """Adds to every array of the value: `x -> x + offset`, calculated in a dtype that
    both fit in, and cast to that of `x`; as for a steering vector.

    `offset` must broadcast against `x` without changing its shape, else a
    [`peex.HookShapeError`][] is raised.
    """

    offset: ArrayLike

    def __call__(self, value: PyTree[ArrayLike]) -> PyTree[ArrayLike]:
        moved = lambda x: _calculate(
            lambda x: x + self.offset, x, "offset", self.offset
        )
        return _per_array(moved, value)


class ZeroHook(AbstractHook):
    """Replaces every array of the value by zeros: `x -> 0`."""

    def __call__(self, value: PyTree[ArrayLike]) -> PyTree[ArrayLike]:
        return _per_array(jnp.zeros_like, value)
