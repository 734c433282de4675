"""Count, mean and variance, merged."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float, Inexact, PyTree, UInt32

from . import two_words
from .accumulators import AbstractAccumulator


class MomentsEntry(eqx.Module):
    """What [`peex.Moments`][] records of one array.

    - `mean`: of all that was merged; 0 where there was nothing.
    - `m2`: the sum of the squared distances from the mean, `sum(|x - mean|^2)`.
    - `words`: how many there were, as two words, low and high, of 32 bits: a float32
        couldn't count beyond 2^24.
    """

    mean: Inexact[Array, "..."]
    m2: Float[Array, "..."]
    words: UInt32[Array, "... 2"]

    @property
    def count(self) -> Any:
        """How many there were: an int (an array of NumPy's of these, where a
        transformation around the wrapper has added axes), or, where it is traced, a
        floating point number.
        """
        if isinstance(self.words, Tracer):
            return two_words.number(self.words, self.m2.dtype)
        words = np.asarray(self.words).astype(np.int64)
        count = words[..., 0] + (words[..., 1] << 32)
        return int(count) if count.ndim == 0 else count

    @property
    def var(self) -> Float[Array, "..."]:
        """The variance (of the population), `m2 / count`; 0 where there was nothing."""
        return self.m2 / _like(_at_least_one(self._n), self.m2.ndim)

    @property
    def std(self) -> Float[Array, "..."]:
        """The standard deviation, `sqrt(var)`."""
        return jnp.sqrt(self.var)

    @property
    def _n(self) -> Any:
        return two_words.number(self.words, self.m2.dtype)


class _Summary(NamedTuple):
    mean: Any
    std: Any
    count: Any


class _Sums(eqx.Module):
    """Of which moments are had in a backward log: how many, the sums of the distances
    from the shift and of their squares, and the sum of the shifts.
    """

    n: Array
    first: Array
    second: Array
    shifts: Array


class Moments(AbstractAccumulator):
    """Count, mean and variance of each element of a value, over all calls, steps,
    examples and devices. The axes of the value itself are kept: `mean` and `std` of a
    layer of 64 units have shape `(64,)`.

    Two are merged as in [Chan et al.,
    1979](http://i.stanford.edu/pub/cstr/reports/cs/tr/79/773/CS-TR-79-773.pdf) (of
    which Welford's update is the case of one more value): with `d = mean_b - mean_a`,

    `mean = mean_a + d n_b / n`, `M2 = M2_a + M2_b + |d|^2 n_a n_b / n`

    so a variance that is small next to the mean isn't lost. Of arrays of less than 32
    bits, and of integers, in float32; random keys aren't recorded.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        cell = eqx.nn.GRUCell(3, 4, key=jax.random.key(0))

        def run(cell, xs):
            return jax.lax.scan(lambda h, x: (cell(x, h), None), jnp.zeros(4), xs)[0]

        _, log = px.ForwardHook(cell, None, px.Moments(), method=run)(jnp.ones((50, 3)))
        log["."].mean.shape, log["."].count  # ((4,), 50)
        ```

    In a backward log, whose parts are added up, they are had of count, sum and sum of
    squares (the count exact up to 2^24 in one backward pass). There a mean far from
    zero costs digits of the variance, unless `shift` is near to it.
    """

    axis: int | tuple[int, ...] | None = eqx.field(static=True)
    shift: ArrayLike

    def __init__(
        self,
        axis: int | tuple[int, ...] | None = (),
        shift: ArrayLike = 0.0,
        *,
        keep: Sequence[str] | None = (),
    ):
        """**Arguments:**

        - `axis`: axes of the value that are merged, too, as those of `jnp.mean`; `None`
            for all, so that mean and variance are numbers.
        - `shift`: in a backward log, what squares are summed of the distance from: a
            guess of the mean. It must broadcast against the value.
        - `keep`: the loops over whose steps they aren't merged, by name (as that of the
            loop over the layers of a scanned stack): see
            [`peex.AbstractAccumulator`][].
        """
        self.axis = axis
        self.keep = keep
        self.shift = shift

    def __call__(self, value: PyTree[ArrayLike]) -> PyTree[Any]:
        return jtu.tree_map(self._one, value)

    def _one(self, x: Any) -> MomentsEntry | None:
        if jnp.issubdtype(x.dtype, jax.dtypes.extended):
            return None
        x = _as_float(x)
        n = _at_least_one(jnp.asarray(self._size(x), x.dtype))
        mean = jnp.sum(x, self.axis, keepdims=True) / n
        m2 = jnp.sum(_square(x - mean), self.axis)
        return MomentsEntry(mean.reshape(m2.shape), m2, two_words.of(self._size(x)))

    def _size(self, x: Any) -> Any:
        """How many elements of an array are merged."""
        axes = range(x.ndim) if self.axis is None else self.axis
        axes = (axes,) if isinstance(axes, int) else axes
        return math.prod(x.shape[i] for i in axes)

    def merge(self, a: PyTree[Any], b: PyTree[Any]) -> PyTree[Any]:
        return _per_entry(_merged, a, b)

    def merge_axis(self, entries: PyTree[Any]) -> PyTree[Any]:
        return _per_entry(_merged_axis, entries)

    def empty(self, like: PyTree[Any]) -> PyTree[Any]:
        return jtu.tree_map(lambda x: jnp.zeros(x.shape, x.dtype), like)

    def summary(self, entry: PyTree[Any]) -> PyTree[Any]:
        """Mean, standard deviation and count."""
        one = lambda x: _Summary(x.mean, x.std, _as_array(x.count))
        return _per_entry(one, entry)

    def to_sums(self, value: PyTree[ArrayLike]) -> PyTree[Any]:
        return jtu.tree_map(self._sums, value)

    def _sums(self, x: Any) -> _Sums | None:
        if jnp.issubdtype(x.dtype, jax.dtypes.extended):
            return None
        x = _as_float(x)
        shift = jnp.broadcast_to(jnp.asarray(self.shift).astype(x.dtype), x.shape)
        n = jnp.asarray(self._size(x), _real(x))
        apart = x - shift
        sums = (jnp.sum(y, self.axis) for y in (apart, _square(apart), shift))
        return _Sums(n, *sums)

    def from_sums(self, sums: PyTree[Any]) -> PyTree[Any]:
        is_sums = lambda x: isinstance(x, _Sums)
        return jtu.tree_map(_of_sums, sums, is_leaf=is_sums)


def _per_entry(fn: Any, *entries: Any) -> Any:
    is_entry = lambda x: isinstance(x, MomentsEntry)
    return jtu.tree_map(fn, *entries, is_leaf=is_entry)


def _as_array(count: Any) -> Any:
    return count if isinstance(count, jax.Array) else np.asarray(count)


def _as_float(x: Any) -> Any:
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x.astype(float)
    return x.astype(jnp.float32) if jnp.dtype(x.dtype).itemsize < 4 else x


def _real(x: Any) -> Any:
    return jnp.finfo(x.dtype).dtype


def _square(x: Any) -> Any:
    return jnp.real(x * jnp.conj(x)) if jnp.iscomplexobj(x) else x * x


def _like(n: Any, ndim: int) -> Any:
    """Numbers, each for the elements of the last axes of an array of this rank."""
    return n.reshape(n.shape + (1,) * (ndim - n.ndim))


def _at_least_one(n: Any) -> Any:
    return jnp.where(n == jnp.zeros_like(n), jnp.ones_like(n), n)


def _merged(a: MomentsEntry, b: MomentsEntry) -> MomentsEntry:
    words = two_words.added(a.words, b.words)
    n = _at_least_one(two_words.number(words, a.m2.dtype))
    share = _like(b._n / n, a.m2.ndim)
    apart = b.mean - a.mean
    m2 = a.m2 + b.m2 + _square(apart) * (_like(a._n, a.m2.ndim) * share)
    return MomentsEntry(a.mean + apart * share.astype(apart.dtype), m2, words)


def _merged_axis(entry: MomentsEntry) -> MomentsEntry:
    """Along the first axis: by the mean of the means, and what rounding leaves of the
    distances from it.
    """
    words = two_words.summed(entry.words)
    ndim = entry.m2.ndim
    each = _like(entry._n, ndim)
    n = _like(_at_least_one(two_words.number(words, entry.m2.dtype)), ndim - 1)
    share = (each / n[None]).astype(entry.mean.dtype)
    mean = jnp.sum(share * entry.mean, axis=0)
    apart = entry.mean - mean[None]
    off = jnp.sum(share * apart, axis=0)
    m2 = jnp.sum(entry.m2 + each * _square(apart), axis=0) - n * _square(off)
    return MomentsEntry(mean + off, jnp.maximum(m2, jnp.zeros_like(m2)), words)


def _of_sums(sums: _Sums) -> MomentsEntry:
    n = _like(_at_least_one(sums.n), sums.second.ndim)
    off = sums.first / n.astype(sums.first.dtype)
    m2 = jnp.maximum(sums.second - n * _square(off), jnp.zeros_like(sums.second))
    high = jnp.floor(sums.n * jnp.asarray(2.0**-32, sums.n.dtype))
    low = sums.n - high * jnp.asarray(2.0**32, sums.n.dtype)
    words = jnp.stack([low, high], axis=-1).astype(jnp.uint32)
    shift = sums.shifts / n.astype(sums.first.dtype)
    return MomentsEntry(shift + off, m2, words)
