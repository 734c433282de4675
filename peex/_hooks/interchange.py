"""Interchange interventions that are trained: which directions, or which places, of a
value carry what another run differs in.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Key, PyTree

from .._engine.messages import Datum
from .._engine.site import Site
from .._errors import HookShapeError
from .._log import Log
from .from_log import as_log, AsLog, PatchHook
from .masks import fitted, varied
from .per_array import calculate
from .step_hooks import AbstractLocal, AbstractStepHook, SiteCall


class _Rotation(AbstractLocal):
    weight: Float[Array, "size rank"]
    boundary: Float[Array, ""] | None
    temperature: float = eqx.field(static=True)

    def wants(self, value: Sequence[jax.ShapeDtypeStruct], site: Site) -> PyTree[Datum]:
        return [Datum(x) for x in value]

    def __call__(self, value: PyTree[Array], data: Any, site: Site) -> PyTree[Any]:
        leaves, structure = jtu.tree_flatten(value)
        pairs = zip(leaves, data, strict=True)
        return structure.unflatten([self._one(x, source) for x, source in pairs])

    def _one(self, x: Any, source: Any) -> Array:
        size, rank = self.weight.shape
        if x.ndim == 0 or x.shape[-1] != size:
            raise HookShapeError(
                f"it rotates vectors of size {size}, the value is "
                f"{x.dtype}{list(x.shape)}, whose last axis they must have. Write "
                f"`px.RotateHook(source, {x.shape[-1] if x.ndim else 1}, rank, key)`."
            )
        basis, _ = jnp.linalg.qr(self.weight)
        gate: Any = jnp.ones(rank, basis.dtype)
        if self.boundary is not None:
            places = jnp.arange(rank, dtype=basis.dtype) + 0.5
            gate = jax.nn.sigmoid((self.boundary * rank - places) / self.temperature)
        into = basis * gate[None]

        def act(x: Any) -> Array:
            difference = lax.stop_gradient(source).astype(x.dtype) - x
            coordinates = jnp.matmul(difference, into.astype(x.dtype))
            return x + jnp.matmul(coordinates, basis.astype(x.dtype).T)

        return calculate(act, x, "source", 0.0)


class RotateHook(AbstractStepHook):
    """Puts another run's value in the place of this one's along some directions only,
    which are trained: distributed alignment search ([Geiger et al.,
    2023](https://arxiv.org/abs/2303.02536)). On the last axis, `x -> x + (source - x) Q
    G Qᵀ`, with `Q` the orthonormal columns of the QR decomposition of `weight` and `G`
    the identity. With `boundary="learned"`, `G` is diagonal, for the `i`-th direction
    `sigmoid((boundary * rank - i - 1/2) / temperature)`, so that it is trained how many
    there are ([Wu et al., 2023](https://arxiv.org/abs/2305.08809)).

    `weight` (shape `(size, rank)`) and `boundary` (a number from 0 to 1) are trained
    through `grads.hook_fn` (see [`peex.trainable`][]); nothing flows into the source.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        mlp = eqx.nn.MLP(2, 1, 8, depth=2, key=jax.random.key(0))
        _, source = px.ForwardHook(mlp, where="layers.1")(jnp.ones(2))
        rotate = px.RotateHook(source, 8, 2, jax.random.key(1))
        out, _ = px.ForwardHook(mlp, rotate, None, where="layers.1")(jnp.zeros(2))
        ```
    """

    source: Log
    weight: Float[Array, "size rank"]
    boundary: Float[Array, ""] | None
    temperature: float = eqx.field(static=True)

    def __init__(
        self,
        source: AsLog,
        size: int,
        rank: int,
        key: Key[Array, ""] | Array,
        *,
        boundary: str | None = None,
        temperature: float = 0.1,
    ):
        """**Arguments:**

        - `source`: the log of another run, cut per call, step and example as that of a
            [`peex.PatchHook`][].
        - `size`: of the last axis of the value.
        - `rank`: how many directions, from 1 to `size`.
        - `key`: a random key, for the first directions.
        - `boundary`: `"learned"`, or `None` for all `rank` directions.
        - `temperature`: how soft the boundary is, in numbers of directions.

        **Raises:**

        `TypeError` for a rank that isn't one, or another boundary; when it is called,
        [`peex.LogShapeError`][] if the source doesn't fit, [`peex.HookShapeError`][] if
        the value hasn't this size.
        """
        if not 1 <= rank <= size:
            raise TypeError(
                f"RotateHook was given rank {rank}, which is how many of {size} "
                f"directions: from 1 to {size}."
            )
        if boundary not in (None, "learned"):
            raise TypeError(
                f"The boundary of a RotateHook is None or 'learned'; got {boundary!r}."
            )
        self.source = as_log("RotateHook", "px.RotateHook(log, size, 1, key)", source)
        self.weight, _ = jnp.linalg.qr(jr.normal(key, (size, rank)))
        self.boundary = jnp.asarray(0.5) if boundary else None
        self.temperature = temperature

    @property
    def local_half(self) -> AbstractLocal:
        return _Rotation(self.weight, self.boundary, self.temperature)

    def data_of_call(self, call: SiteCall, wanted: Any) -> Any:
        return PatchHook(self.source).data_of_call(call, wanted)


class _SoftMask(AbstractLocal):
    shape: tuple[int, ...] = eqx.field(static=True)
    temperature: float = eqx.field(static=True)
    has_source: bool = eqx.field(static=True)

    def wants(self, value: Sequence[jax.ShapeDtypeStruct], site: Site) -> PyTree[Datum]:
        float32 = jnp.dtype(jnp.float32)
        logits = [
            Datum(jax.ShapeDtypeStruct(varied(x.shape, [self.shape]), float32))
            for x in value
        ]
        return logits, [Datum(x) for x in value] if self.has_source else []

    def __call__(self, value: PyTree[Array], data: Any, site: Site) -> PyTree[Any]:
        logits, sources = data
        leaves, structure = jtu.tree_flatten(value)
        sources = sources or [None] * len(leaves)
        new = [self._one(*each) for each in zip(leaves, sources, logits, strict=True)]
        return structure.unflatten(new)

    def _one(self, x: Any, source: Any, logits: Any) -> Array:
        def act(x: Any) -> Array:
            gate = jax.nn.sigmoid(logits / self.temperature).astype(x.dtype)
            if source is None:
                return x - gate * x
            return x + gate * (lax.stop_gradient(source).astype(x.dtype) - x)

        return calculate(act, x, "source", 0.0)


class MaskHook(AbstractStepHook):
    """Puts another run's value, or zeros, in the place of this one's by a soft mask
    that is trained: `x -> (1 - m) x + m source`, `m = sigmoid(logits / temperature)`;
    at low temperatures it is a choice of layers, positions or units ([De Cao et al.,
    2020](https://arxiv.org/abs/2004.14992)).

    `logits` are trained through `grads.hook_fn` (see [`peex.trainable`][]); nothing
    flows into the source.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        mlp = eqx.nn.MLP(2, 1, 8, depth=2, key=jax.random.key(0))
        units = px.MaskHook(jnp.zeros(8))  # half of each unit, to start with
        hooked = px.ForwardHook(mlp, units, None, where="layers.1")
        grads = eqx.filter_grad(lambda hooked: hooked(jnp.ones(2))[0][0])(hooked)
        grads.hook_fn.logits  # shape (8,)
        ```
    """

    logits: Float[Array, "..."]
    source: Log | None
    temperature: float = eqx.field(static=True)

    def __init__(
        self,
        logits: Float[ArrayLike, "..."],
        source: AsLog | None = None,
        *,
        temperature: float = 1.0,
    ):
        """**Arguments:**

        - `logits`: broadcast to what is logged at the site, as the mask of a
            [`peex.At`][]: device, step and batch axes, then those of the value.
        - `source`: the log of another run, as that of a [`peex.PatchHook`][]; `None`
            for zeros.
        - `temperature`: by which the logits are divided.

        **Raises:**

        When it is called, [`peex.LogShapeError`][] if logits or source don't fit.
        """
        self.logits = jnp.asarray(logits)
        self.source = None
        if source is not None:
            self.source = as_log("MaskHook", "px.MaskHook(logits, log)", source)
        self.temperature = temperature

    @property
    def local_half(self) -> AbstractLocal:
        shape, has_source = self.logits.shape, self.source is not None
        return _SoftMask(shape, self.temperature, has_source)

    def data_of_call(self, call: SiteCall, wanted: Any) -> Any:
        shapes, sources = wanted
        logits = []
        for shape, x in zip(shapes, call.seen, strict=True):
            fit = fitted(call.key, self.logits, x, "The logits")
            logits.append(jnp.broadcast_to(fit, shape.shape).astype(shape.dtype))
        if self.source is None:
            return logits, []
        return logits, PatchHook(self.source).data_of_call(call, sources)
