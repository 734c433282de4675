"""Noise that is another at each call, step and example of each site."""

import zlib
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
from jaxtyping import Array, ArrayLike, Key, PyTree, UInt32

from .indexed import AbstractIndexedHook, SiteIndex
from .per_array import calculate


class NoiseHook(AbstractIndexedHook):
    """Adds independent Gaussian noise: `x -> x + scale * e`, `e ~ N(0, 1)` (of complex
    arrays, complex with variance 1 in all), cast to the dtype of `x`. Integers, bools
    and random keys stay as they are. As for causal tracing ([Meng et al.,
    2022](https://arxiv.org/abs/2202.05262)).

    - `scale`: the standard deviation, in units of the value; must broadcast to it.
    - `key`: a random key. The key of the site is folded into it, and which call,
        device, step and example this is: equal keys make equal noise, whatever is
        hooked besides.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        mlp = eqx.nn.MLP(2, 1, 8, depth=2, key=jax.random.key(0))
        noise = px.NoiseHook(0.1, jax.random.key(1))
        out, _ = px.ForwardHook(mlp, noise, where="layers.0")(jnp.ones(2))
        ```
    """

    scale: ArrayLike
    key: Key[Array, ""] | UInt32[Array, "2"]

    def __call__(self, value: PyTree[ArrayLike], *, at: SiteIndex) -> PyTree[ArrayLike]:
        key = jr.fold_in(self.key, zlib.crc32(at.key.encode()))
        for index in (at.call, at.device, at.step, at.example):
            key = jr.fold_in(key, index)
        leaves, structure = jtu.tree_flatten(value)
        return structure.unflatten(
            [self._noisy(x, jr.fold_in(key, i)) for i, x in enumerate(leaves)]
        )

    def _noisy(self, x: Any, key: Any) -> Array:
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            return x

        def act(x: Any) -> Array:
            return x + self.scale * jr.normal(key, x.shape, x.dtype)

        return calculate(act, x, "scale", self.scale)
