"""Logs: what is recorded of a value.

A log is any callable from a value to a pytree of arrays, of any shapes and dtypes. It
is called where the value is, so a statistic is computed inside the loop or `vmap` that
it is in, and the whole value needn't be kept. To add a log, add a class here.
"""

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TYPE_CHECKING

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float, Int, PyTree


if TYPE_CHECKING:
    Edges = Sequence[float | int] | Float[ArrayLike, " n"]
else:
    Edges = Any  # checked by peex itself, whose error says what to write instead


class AbstractLog(eqx.Module):
    """Base class of logs that are modules.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        class Sparsity(px.AbstractLog):
            threshold: float

            def __call__(self, value):
                return jnp.mean(jnp.abs(value) < self.threshold)

        linear = eqx.nn.Linear(2, 2, key=jax.random.key(0))
        _, log = px.ForwardHook(linear, log_fn=Sparsity(0.1))(jnp.ones(2))
        ```
    """

    @abc.abstractmethod
    def __call__(self, value: PyTree[ArrayLike]) -> PyTree[Any]:
        """**Arguments:**

        - `value`: a pytree of arrays, as for [`peex.AbstractHook`][].

        **Returns:**

        A pytree of arrays, of any structure.
        """


class IdentityLog(AbstractLog):
    """Records the value itself."""

    def __call__(self, value: PyTree[ArrayLike]) -> PyTree[ArrayLike]:
        return value


class NoneLog(AbstractLog):
    """Records `None`: only that, and how often, the site ran."""

    def __call__(self, value: PyTree[ArrayLike]) -> None:
        del value
        return None


def _per_array(fn: Callable[[Any], Any], value: PyTree[ArrayLike]) -> PyTree[ArrayLike]:
    def one(x: Any) -> Any:
        if jnp.issubdtype(x.dtype, jax.dtypes.extended):
            return None  # random keys have no size
        if jnp.dtype(x.dtype).itemsize < 4 or x.dtype == bool:
            # Sums of half precision lose what a statistic is for.
            x = x.astype(jnp.float32)
        return fn(x)

    return jtu.tree_map(one, value)


class MeanLog(AbstractLog):
    """Records the mean of each array of the value: `sum(x) / n`, a scalar.

    Of arrays of less than 32 bits, in float32.
    """

    def __call__(self, value: PyTree[ArrayLike]) -> PyTree[ArrayLike]:
        return _per_array(jnp.mean, value)


class MeanStd(NamedTuple):
    """What [`peex.MeanStdLog`][] records, each with the structure of the value."""

    # (Of arrays; but JAX puts shapes and other things in their place, too.)
    mean: PyTree[Any]
    std: PyTree[Any]


jax.export.register_namedtuple_serialization(MeanStd, serialized_name="peex.MeanStd")


class MeanStdLog(AbstractLog):
    """Records mean and standard deviation of each array of the value, two scalars:
    `mean = sum(x) / n`, `std = sqrt(sum(|x - mean|^2) / n)` (of the population).

    Of arrays of less than 32 bits, in float32.
    """

    def __call__(self, value: PyTree[ArrayLike]) -> MeanStd:
        return MeanStd(_per_array(jnp.mean, value), _per_array(jnp.std, value))


class NormLog(AbstractLog):
    """Records the L2 norm of each array of the value: `sqrt(sum(|x|^2))`, a scalar.

    Of arrays of less than 32 bits, in float32.
    """

    def __call__(self, value: PyTree[ArrayLike]) -> PyTree[ArrayLike]:
        def norm(x: Any) -> Any:
            if not jnp.issubdtype(x.dtype, jnp.inexact):
                x = x.astype(float)  # squares of integers overflow
            return jnp.sqrt(jnp.sum(jnp.abs(x) ** 2))

        return _per_array(norm, value)


class MaxAbsLog(AbstractLog):
    """Records the largest absolute value in each array: `max(|x|)`, a scalar; 0 where
    the array is empty.

    Of arrays of less than 32 bits, in float32. Of signed integers, in unsigned ones:
    there the absolute value of the least doesn't overflow.
    """

    def __call__(self, value: PyTree[ArrayLike]) -> PyTree[ArrayLike]:
        def largest(x: Any) -> Any:
            size = jnp.abs(x)
            if jnp.issubdtype(x.dtype, jnp.signedinteger):
                size = size.astype(jnp.dtype(f"uint{8 * x.dtype.itemsize}"))
            return jnp.max(size, initial=0)

        return _per_array(largest, value)


class HistogramLog(AbstractLog):
    """Records how many elements of each array lie between given edges, int32 of shape
    `(len(edges) + 1,)`: the first count is of what is below `edges[0]`, the last of
    what is at or above `edges[-1]` (and of NaNs), and the one at `i` of
    `edges[i - 1] <= x < edges[i]`. Of complex values, by their absolute value.

    Nothing falls outside, and the value itself needn't be kept: inside a `scan`, there
    is one small histogram for each step.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        linear = eqx.nn.Linear(2, 2, key=jax.random.key(0))
        _, log = px.ForwardHook(linear, log_fn=px.HistogramLog([-1, 0, 1]))(jnp.ones(2))
        log["."].shape  # (4,)
        ```
    """

    edges: tuple[float, ...] | Float[Array, " n"]

    def __init__(self, edges: Edges):
        """**Arguments:**

        - `edges`: increasing numbers, shape `(n,)`, in the units of the value. Numbers
            (and an array of NumPy's) are static; an array of JAX's can be traced, and
            changed without compiling anew. Neither is trained: the gradient of these is
            `None` or zero.

        **Raises:**

        `ValueError` for anything else, as for edges that don't increase (of a traced
        array, whose values aren't known, only its shape is checked).
        """
        leaves = jtu.tree_leaves(edges)
        if any(isinstance(x, jax.Array) for x in leaves):
            self.edges = jnp.asarray(edges)
            known = not any(isinstance(x, Tracer) for x in leaves)
            numbers = np.asarray(edges) if known else np.arange(self.edges.size)
            numbers = numbers.reshape(self.edges.shape)
        else:
            try:
                numbers = np.asarray(edges, float)
            except (TypeError, ValueError):
                numbers = np.zeros(())
            self.edges = tuple(np.ravel(numbers).tolist())
        are_axis = numbers.ndim == 1 and numbers.size > 0 and np.isrealobj(numbers)
        if not are_axis or not np.all(numbers[:-1] < numbers[1:]):
            raise ValueError(
                "The `edges` of a HistogramLog are an increasing sequence of at least "
                f"one number, as in `px.HistogramLog([-1, 0, 1])`; got {edges!r}. "
                "Twenty bins of one width are `px.HistogramLog(jnp.linspace(low, high, "
                "21))`."
            )

    def __call__(self, value: PyTree[ArrayLike]) -> PyTree[Int[Array, " counts"]]:
        def count(x: Any) -> Any:
            x = jnp.abs(x) if jnp.iscomplexobj(x) else x
            # One comparison for each edge: compiled, these are fused into the sums, and
            # nothing of the size of the value is made.
            with jax.numpy_dtype_promotion("standard"):
                below = [x < e for e in lax.stop_gradient(self.edges)]
            least = [jnp.sum(b, dtype=jnp.int32) for b in below]
            bounds = jnp.stack([jnp.int32(0), *least, jnp.int32(x.size)])
            return jnp.diff(bounds)

        return _per_array(count, value)
