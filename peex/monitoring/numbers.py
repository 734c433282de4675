"""What is recorded of one array: sums, counts and extremes, of which statistics are had
once they are merged. Each is a formula of a value, in arrays of floating point alone,
since they may travel as cotangents; all are zero where nothing was recorded.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact


# A sum of ones in float32 is exact up to here.
_EXACT = 2**24
# Two counts below this are exact as one number in float32.
_PAIR = 2**12

Number = Float[Array, ""]
Numbers = dict[str, Number]


def moments(x: Float[Array, "..."], bad: Number) -> Numbers:
    """How many elements are finite (`n`), their `mean`, and `m2`, the sum of the
    squared distances from it: `m2 = sum(d^2) - sum(d)^2 / n`, with `d` the distance
    from one of the elements, so that a variance that is small next to the mean isn't
    lost. `bad` is how many aren't finite.
    """
    near = _one_of_three(x)
    d = jnp.where(jnp.abs(x) < jnp.inf, x - near, _of(x, 0))
    first, second = jnp.sum(d), jnp.sum(d * d)
    n = x.size - bad
    off = first / jnp.maximum(n, 1)
    m2 = jnp.maximum(second - first * off, 0)
    return {"n": n, "mean": jnp.where(n > 0, near + off, 0), "m2": m2}


def squares(x: Float[Array, "..."], bad: Number) -> Numbers:
    """How many elements are finite (`n`), and the sum of their squares (`m2`): what
    `rms` alone takes. With them goes a `mean` of zero, so that they are merged as
    moments are: those of a distance from zero.
    """
    m2 = jnp.sum(jnp.where(jnp.abs(x) < jnp.inf, x * x, _of(x, 0)))
    return {"n": x.size - bad, "mean": jnp.zeros_like(m2), "m2": m2}


def nonfinite(x: Float[Array, "..."]) -> Number:
    """How many elements are infinite or NaN."""
    return _count(~(jnp.abs(x) < jnp.inf), x)


def zeros_and_nonfinite(x: Float[Array, "..."]) -> tuple[Number, Number]:
    """How many elements are zero, and how many infinite or NaN."""
    if x.size >= _PAIR:
        return _count(x == 0, x), nonfinite(x)
    # Compiled, each sum over a value is a loop: this is one for both.
    size, one, none, pair = jnp.abs(x), _of(x, 1), _of(x, 0), _of(x, _PAIR)
    both = jnp.sum(jnp.where(size == 0, one, jnp.where(size < jnp.inf, none, pair)))
    bad = jnp.floor(both / _PAIR)
    return both - bad * _PAIR, bad


def _one_of_three(x: Float[Array, "..."]) -> Number:
    """The middle one of three elements: far from the others, as the first may be, are
    hardly two of these.
    """
    flat = x.reshape(-1)
    a, b, c = (flat[i] for i in (0, flat.size // 2, -1))
    a, b, c = (jnp.where(jnp.abs(y) < jnp.inf, y, 0) for y in (a, b, c))
    return jnp.maximum(jnp.minimum(a, b), jnp.minimum(jnp.maximum(a, b), c))


def largest(x: Float[Array, "..."]) -> Number:
    """`max(|x|)` of the finite elements."""
    size = jnp.abs(x)
    return jnp.max(jnp.where(size < jnp.inf, size, _of(x, 0)))


def highest(x: Float[Array, "..."]) -> Number:
    """`max(x)` of the finite elements; the least number there is if none are."""
    finite = jnp.abs(x) < jnp.inf
    return jnp.max(jnp.where(finite, x, _of(x, float(jnp.finfo(x.dtype).min))))


def flushed(x: Float[Array, "..."], dtype: Any) -> Number:
    """How many elements aren't zero, but smaller than the smallest normal number of a
    dtype.
    """
    size = jnp.abs(x)
    smallest = _in(x, jnp.finfo(dtype).smallest_normal)
    return _count((size > 0) & (size < smallest), x)


def saturated(x: Float[Array, "..."], dtype: Any) -> Number:
    """How many elements are finite, but beyond the largest number of a dtype."""
    size = jnp.abs(x)
    return _count((size > _in(x, jnp.finfo(dtype).max)) & (size < jnp.inf), x)


def entropy(p: Float[Array, "... k"]) -> Numbers:
    """Of probabilities along the last axis, `-sum(p log(p))` in nats: of how many rows
    (`n`), their mean entropy, and the sum of the squared distances from that (`m2`).
    """
    some = ~(p <= 0)  # NaNs too, so that their rows aren't finite
    each = -jnp.sum(jnp.where(some, p * jnp.log(jnp.where(some, p, 1)), 0), -1)
    return moments(each, nonfinite(each))


def alive(x: Float[Array, "..."], axis: int) -> Float[Array, "units"]:
    """For each unit, an index into one axis, 1 if it isn't zero somewhere."""
    if x.ndim == 0:
        x, axis = x[None], 0
    others = [i for i in range(x.ndim) if i != axis % x.ndim]
    return jnp.max((x != 0).astype(x.dtype), axis=tuple(others))


def as_numbers(x: Any) -> Float[Array, "..."]:
    """An array as real numbers that are summed: of complex ones, the absolute values;
    of less than 32 bits, and of integers, in float32.
    """
    x = jnp.abs(x) if jnp.iscomplexobj(x) else jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x.astype(float)
    return x.astype(jnp.float32) if jnp.dtype(x.dtype).itemsize < 4 else x


def _count(mask: Any, x: Any) -> Number:
    if mask.size > _EXACT:
        return jnp.sum(mask, dtype=jnp.uint32).astype(x.dtype)
    # As floats: compiled, these are added in one loop with the sums of values.
    return jnp.sum(jnp.where(mask, _of(x, 1), _of(x, 0)))


def _of(x: Any, number: float | int) -> Any:
    """A constant, made of a value: otherwise JAX takes what is made of constants alone
    out of the loop that it is in, and it is an array of the size of the value there.
    """
    never = jnp.signbit(x.reshape(-1)[0]) & False
    return never.astype(x.dtype) + number


def _in(x: Inexact[Array, "..."], number: Any) -> Any:
    """A number of another dtype in that of an array, as far as it fits in."""
    most = float(jnp.finfo(x.dtype).max)
    return jnp.asarray(min(float(number), most), x.dtype)
