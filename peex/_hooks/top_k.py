"""Which examples gave the largest values."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int, Real


class TopKEntry(eqx.Module):
    """What [`peex.TopK`][] has found so far, largest first.

    - `values`: shape `(k, ...)`.
    - `ids`: of these, of the same shape; -1 where there were fewer than `k`.
    """

    values: Real[Array, "k ..."]
    ids: Int[Array, "k ..."]


class TopK(eqx.Module):
    """The `k` largest values of each unit, with the ids of the examples that gave them:
    for the examples that a unit responds to most. It is for values that a call has
    returned, batch by batch.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        mlp = eqx.nn.MLP(2, 1, 8, depth=1, key=jax.random.key(0))
        hooked = eqx.filter_jit(px.ForwardHook(eqx.filter_vmap(mlp), where="layers.0"))
        top = px.TopK(3)
        found = None
        for i in range(4):
            xs = jax.random.normal(jax.random.key(i), (16, 2))
            _, log = hooked(xs)
            new = top.of(log["layers.0"], 16 * i + jnp.arange(16))
            found = new if found is None else top.merge(found, new)
        found.ids  # shape (3, 8): three examples for each of eight units
        ```
    """

    k: int = eqx.field(static=True)

    def __init__(self, k: int):
        """**Arguments:**

        - `k`: how many are kept of each unit.

        **Raises:** `ValueError` if that isn't positive.
        """
        if k < 1:
            raise ValueError(
                f"`px.TopK` keeps a positive number of values; got {k}, as which "
                "nothing would be kept. Write `px.TopK(10)`."
            )
        self.k = k

    def of(self, values: Real[Array, "n ..."], ids: Int[Array, " n"]) -> TopKEntry:
        """**Arguments:**

        - `values`: of one batch, examples in front.
        - `ids`: what tells the examples from others, as their places in a data set.

        **Returns:**

        A [`peex.TopKEntry`][]. Where there are fewer than `k` examples, the rest is the
        least value of the dtype (`-inf`), with the id -1.
        """
        ids = ids.reshape(-1, *(1,) * (values.ndim - 1))
        return self._largest(values, jnp.broadcast_to(ids, values.shape))

    def merge(self, a: TopKEntry, b: TopKEntry) -> TopKEntry:
        """The largest of both."""
        values = jnp.concatenate([a.values, b.values])
        return self._largest(values, jnp.concatenate([a.ids, b.ids]))

    def _largest(self, values: Any, ids: Any) -> TopKEntry:
        missing = max(0, self.k - len(values))
        if missing:
            is_float = jnp.issubdtype(values.dtype, jnp.inexact)
            least = -jnp.inf if is_float else jnp.iinfo(values.dtype).min
            more = jnp.full((missing, *values.shape[1:]), least, values.dtype)
            none = jnp.full(more.shape, -1, ids.dtype)
            values, ids = jnp.concatenate([values, more]), jnp.concatenate([ids, none])
        found, places = lax.top_k(jnp.moveaxis(values, 0, -1), self.k)
        ids = jnp.take_along_axis(jnp.moveaxis(ids, 0, -1), places, axis=-1)
        return TopKEntry(jnp.moveaxis(found, -1, 0), jnp.moveaxis(ids, -1, 0))
