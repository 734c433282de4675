"""Logs of statistics that are merged where they are, over steps, examples and devices,
so that nothing grows: accumulators.
"""

import abc
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import ArrayLike, PyTree

from .. import _compat
from .._errors import LogValueError
from .callables import refuse_class
from .log_fns import AbstractLog, IdentityLog
from .step_hooks import AbstractStepHook


def _loops(keep: Sequence[str] | None) -> tuple[str, ...]:
    """Names of loops: a lone one, or several. (A number, that of a further loop on the
    same line, isn't known while the program is traced.)
    """
    names = [keep] if isinstance(keep, str) else keep or ()
    return tuple(name.partition("#")[0] for name in names)


class AbstractAccumulator(AbstractLog):
    """Base class of logs that are merged rather than stacked. What is recorded is of a
    monoid: two can be merged to one of the same structure, shapes and dtypes, in any
    order, and `empty` changes nothing. So a `vmap` merges its examples, `scan` and
    `while_loop` carry one through their steps, a branch that isn't taken gives `empty`,
    and a `shard_map` merges its devices: the log has none of these axes. Several calls
    of one module are merged as well, as far as their logs are alike.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        class Product(px.AbstractAccumulator):
            def __call__(self, value):
                return value

            def merge(self, a, b):
                return a * b

            def empty(self, like):
                return jnp.ones(like.shape, like.dtype)

        linear = eqx.nn.Linear(2, 2, key=jax.random.key(0))
        run = lambda m, x: jax.lax.scan(lambda x, _: (m(x), None), x, length=5)[0]
        _, log = px.ForwardHook(linear, None, Product(), method=run)(jnp.ones(2))
        log["."].shape  # (2,), whatever the length
        ```

    What `merge`, `merge_axis` and `empty` need must be static: where they are called,
    arrays in the fields of the accumulator are shapes only.

    `keep`, which all of them have, names loops (of a `scan`) over whose steps it isn't
    merged, as those over the layers of a stack: the log has a step axis for each of
    these, as others do. The name is that in `log.axes`, file and line: `"model.py:12"`.

    In the log of a [`peex.BackwardHook`][], which is made of cotangents, only what is
    added up can be had: see `to_sums`.
    """

    keep: tuple[str, ...] = eqx.field(
        static=True, default=(), kw_only=True, converter=_loops
    )

    @abc.abstractmethod
    def merge(self, a: PyTree[Any], b: PyTree[Any]) -> PyTree[Any]:
        """**Arguments:**

        - `a`, `b`: what `__call__` returned, or was merged of that.

        **Returns:**

        One of both: of the same structure, shapes and dtypes.
        """

    @abc.abstractmethod
    def empty(self, like: PyTree[Any]) -> PyTree[Any]:
        """**Arguments:**

        - `like`: what `__call__` returns, as `jax.ShapeDtypeStruct`s.

        **Returns:**

        What changes nothing that it is merged with: arrays of these shapes and dtypes.
        """

    def merge_axis(self, entries: PyTree[Any]) -> PyTree[Any]:
        """**Arguments:**

        - `entries`: what `__call__` returned for several examples, with one more axis
            in front.

        **Returns:**

        One of all of them. If it isn't overridden, by halves, with `merge`.
        """
        sizes = {x.shape[0] for x in jtu.tree_leaves(entries)}
        size = max(sizes, default=1)
        if size == 0:
            struct = lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
            return self.empty(jtu.tree_map(struct, entries))
        # A part of an axis that is sharded couldn't be taken.
        entries = jtu.tree_map(_compat.unsharded, entries)
        while size > 1:
            half = size // 2
            first, second, rest = (
                jtu.tree_map(lambda x, part=part: x[part], entries)
                for part in (slice(half), slice(half, 2 * half), slice(2 * half, None))
            )
            merged = jax.vmap(self.merge)(first, second)
            join = lambda x, y: jnp.concatenate([x, y.astype(x.dtype)])
            entries = jtu.tree_map(join, merged, rest)
            size = half + size % 2
        return jtu.tree_map(lambda x: x[0], entries)

    def summary(self, entry: PyTree[Any]) -> PyTree[Any]:
        """What `print(log)` and `log.scalars()` have of what was merged: a pytree of
        arrays, whose structure names them. By default, all of it.
        """
        return entry

    def to_sums(self, value: PyTree[ArrayLike]) -> PyTree[Any]:
        """What is recorded of a cotangent instead: arrays of which the sum over all
        calls, steps, examples and devices is wanted. It is for those to override that
        can be had of sums.
        """
        raise NotImplementedError

    def from_sums(self, sums: PyTree[Any]) -> PyTree[Any]:
        """What `__call__` would have returned, merged, from the sums of `to_sums`."""
        raise NotImplementedError


def accumulator_of(log_fn: Any) -> AbstractAccumulator | None:
    """The accumulator that a log is, everywhere or at some places only; `None` if it is
    none.
    """
    while isinstance(log_fn, AbstractStepHook):
        log_fn = getattr(log_fn, "hook", None)
    return log_fn if isinstance(log_fn, AbstractAccumulator) else None


def adds(accumulator: AbstractAccumulator) -> bool:
    """Whether it can be had of sums."""
    return type(accumulator).to_sums is not AbstractAccumulator.to_sums


class Summed(AbstractLog):
    """What an accumulator records of a cotangent."""

    accumulator: AbstractAccumulator

    def __call__(self, value: PyTree[ArrayLike]) -> PyTree[Any]:
        return self.accumulator.to_sums(value)


class _OfLog(AbstractAccumulator):
    """Merges what another log records, array by array."""

    log_fn: Callable[[Any], Any] = IdentityLog()

    def __init__(
        self,
        log_fn: Callable[[Any], Any] = IdentityLog(),
        *,
        keep: Sequence[str] | None = (),
    ):
        """**Arguments:**

        - `log_fn`: what is merged: a log, or any function of a value to a pytree of
            arrays. By default, the value itself.
        - `keep`: the loops over whose steps it isn't merged.

        **Raises:** `TypeError` for anything else.
        """
        name = type(self).__name__
        refuse_class(f"The log of a {name}", log_fn)
        if isinstance(log_fn, AbstractStepHook | AbstractAccumulator) or not callable(
            log_fn
        ):
            raise TypeError(
                f"`px.{name}` was given a {type(log_fn).__name__}, whose results can't "
                f"be merged. Give it a log of a value, as in `px.{name}(px.NormLog())`"
                f"; at some steps only, that is `px.At(px.{name}(px.NormLog()), mask)`."
            )
        self.log_fn = log_fn
        self.keep = keep  # converted: see above

    def __call__(self, value: PyTree[ArrayLike]) -> PyTree[Any]:
        return jtu.tree_map(self._checked, self.log_fn(value))

    def _checked(self, x: Any) -> Any:
        x = jnp.asarray(x)
        unordered = not isinstance(self, Sum) and jnp.iscomplexobj(x)
        if unordered or jnp.issubdtype(x.dtype, jax.dtypes.extended):
            name = type(self).__name__
            raise LogValueError(
                f"`px.{name}` was given an array of {x.dtype}, which has no "
                f"{name.lower()}. Write what of it is wanted, as in `px.{name}"
                "(jnp.abs)`."
            )
        return self._one(x)

    def _one(self, x: Any) -> Any:
        return x


class Sum(_OfLog):
    """Adds up what a log records, over all calls, steps, examples and devices:
    `sum(log_fn(x))`. Of arrays of less than 32 bits, in float32 or int32.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        linear = eqx.nn.Linear(2, 2, key=jax.random.key(0))
        log_fn = px.Sum(px.HistogramLog([-1, 0, 1]))
        _, log = px.ForwardHook(eqx.filter_vmap(linear), None, log_fn)(jnp.ones((8, 2)))
        log["."].shape  # (4,): one histogram for all eight
        ```
    """

    def _one(self, x: Any) -> Any:
        if x.dtype == bool or jnp.dtype(x.dtype).itemsize < 4:
            is_float = jnp.issubdtype(x.dtype, jnp.inexact)
            return x.astype(jnp.float32 if is_float else jnp.int32)
        return x

    def merge(self, a: PyTree[Any], b: PyTree[Any]) -> PyTree[Any]:
        return jtu.tree_map(jnp.add, a, b)

    def merge_axis(self, entries: PyTree[Any]) -> PyTree[Any]:
        return jtu.tree_map(lambda x: jnp.sum(x, axis=0, dtype=x.dtype), entries)

    def empty(self, like: PyTree[Any]) -> PyTree[Any]:
        return jtu.tree_map(lambda x: jnp.zeros(x.shape, x.dtype), like)

    def to_sums(self, value: PyTree[ArrayLike]) -> PyTree[Any]:
        return self(value)

    def from_sums(self, sums: PyTree[Any]) -> PyTree[Any]:
        return sums


class Max(_OfLog):
    """The largest of what a log records, element by element, over all calls, steps,
    examples and devices. Where nothing was recorded, the least number of the dtype
    (`-inf`). A NaN stays.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        linear = eqx.nn.Linear(2, 2, key=jax.random.key(0))
        log_fn = px.Max(px.MaxAbsLog())
        _, log = px.ForwardHook(eqx.filter_vmap(linear), None, log_fn)(jnp.ones((8, 2)))
        log["."].shape  # ()
        ```
    """

    def merge(self, a: PyTree[Any], b: PyTree[Any]) -> PyTree[Any]:
        return jtu.tree_map(jnp.maximum, a, b)

    def merge_axis(self, entries: PyTree[Any]) -> PyTree[Any]:
        largest = lambda x: jnp.max(x, axis=0, initial=_end(x.dtype, -1))
        return jtu.tree_map(largest, entries)

    def empty(self, like: PyTree[Any]) -> PyTree[Any]:
        return jtu.tree_map(lambda x: jnp.full(x.shape, _end(x.dtype, -1)), like)


class Min(_OfLog):
    """The least of what a log records, as [`peex.Max`][] is the largest. Where nothing
    was recorded, the largest number of the dtype (`inf`).
    """

    def merge(self, a: PyTree[Any], b: PyTree[Any]) -> PyTree[Any]:
        return jtu.tree_map(jnp.minimum, a, b)

    def merge_axis(self, entries: PyTree[Any]) -> PyTree[Any]:
        least = lambda x: jnp.min(x, axis=0, initial=_end(x.dtype, 1))
        return jtu.tree_map(least, entries)

    def empty(self, like: PyTree[Any]) -> PyTree[Any]:
        return jtu.tree_map(lambda x: jnp.full(x.shape, _end(x.dtype, 1)), like)


def _end(dtype: Any, sign: int) -> Any:
    """The last number of a dtype, in this direction."""
    if dtype == bool:
        return jnp.array(sign > 0)
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.array(sign * jnp.inf, dtype)
    info = jnp.iinfo(dtype)
    return jnp.array(info.max if sign > 0 else info.min, dtype)
