"""Counts of two words of 32 bits, low and high, along the last axis: a float32 couldn't
count beyond 2^24, and integers of 64 bits are off by default.
"""

from typing import Any

import jax.numpy as jnp


def of(n: Any) -> Any:
    """A count, below 2^64."""
    if not isinstance(n, int):  # a symbolic one, as in `jax.export`
        n = jnp.asarray(n).astype(jnp.uint32)
        return jnp.stack([n, jnp.zeros_like(n)])
    return jnp.array([n % 2**32, n >> 32], jnp.uint32)


def number(words: Any, dtype: Any) -> Any:
    """As one number of a floating point dtype."""
    low, high = words[..., 0], words[..., 1]
    return low.astype(dtype) + high.astype(dtype) * jnp.asarray(2.0**32, dtype)


def added(a: Any, b: Any) -> Any:
    """The sum of two counts of two words."""
    low = a[..., 0] + b[..., 0]
    carry = (low < a[..., 0]).astype(jnp.uint32)
    return jnp.stack([low, a[..., 1] + b[..., 1] + carry], axis=-1)


def summed(words: Any) -> Any:
    """The sum of counts along the first axis, by parts of 8 bits: so up to 2^24 of
    them don't overflow.
    """
    low, high = words[..., 0], words[..., 1]
    sum_ = lambda x: jnp.sum(x, axis=0, dtype=jnp.uint32)
    total = jnp.stack([jnp.zeros_like(sum_(low)), sum_(high)], axis=-1)
    for shift in (0, 8, 16, 24):
        part = sum_((low >> jnp.uint32(shift)) & jnp.uint32(255))
        over = part >> jnp.uint32(32 - shift) if shift else jnp.zeros_like(part)
        total = added(total, jnp.stack([part << jnp.uint32(shift), over], axis=-1))
    return total
