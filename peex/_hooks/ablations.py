"""Hooks that put something else in the place of a value, or take a part of it away."""

from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, ArrayLike, Float, PyTree

from .._errors import HookShapeError
from .hooks import AbstractHook
from .per_array import calculate, per_array


class ReplaceHook(AbstractHook):
    """Replaces a value by one that is the same at all steps and for all examples: `x ->
    value`, broadcast to the shape of `x` and cast to its dtype. For one of another run,
    [`peex.PatchHook`][].

    `value` is an array, or a pytree of these like the value of the site. Each must
    broadcast to what it replaces, else a [`peex.HookShapeError`][] is raised.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        mlp = eqx.nn.MLP(2, 1, 8, depth=2, key=jax.random.key(0))
        batched = lambda mlp, xs: jax.vmap(mlp)(xs)
        hidden = px.ForwardHook(mlp, where="layers.0", method=batched)
        _, log = hidden(jax.random.normal(jax.random.key(1), (100, 2)))
        # Mean ablation: what if the first layer always said the same?
        mean = px.ReplaceHook(jnp.mean(log["layers.0"], axis=0))
        out, _ = px.ForwardHook(mlp, mean, where="layers.0")(jnp.ones(2))
        ```
    """

    value: PyTree[ArrayLike]

    def __call__(self, value: PyTree[ArrayLike]) -> PyTree[ArrayLike]:
        structure = jtu.tree_structure(value)
        single = jtu.tree_structure(self.value) == jtu.tree_structure(0)
        if single and structure != jtu.tree_structure(0):
            return per_array(lambda x: _replaced(x, self.value), value)
        if jtu.tree_structure(self.value) != structure:
            raise HookShapeError(
                f"its value has the structure {jtu.tree_structure(self.value)}, the "
                f"value of the site {structure}. Give one array for all, or a pytree "
                "like the value."
            )
        return jtu.tree_map(_replaced, value, self.value)


def _replaced(x: Any, new: Any) -> Array:
    broadcast = lambda x: jnp.broadcast_to(jnp.asarray(new), x.shape)
    return calculate(broadcast, x, "value", new)


class MeanHook(AbstractHook):
    """Replaces every array of the value by its mean along `axis`, `None` for all axes:
    `x -> mean(x, axis)`, broadcast to the shape of `x` and cast to its dtype.

    The mean is one over the value that the site sees: one example, where the model maps
    over them. (That over examples: [`peex.ReplaceHook`][] with the mean of a log.)
    """

    axis: int | tuple[int, ...] | None = None

    def __call__(self, value: PyTree[ArrayLike]) -> PyTree[ArrayLike]:
        def mean(x: Any) -> Array:
            mean = jnp.mean(x, axis=self.axis, keepdims=True)
            return jnp.broadcast_to(mean, x.shape)

        return per_array(lambda x: calculate(mean, x, "mean", 0.0), value)


class ClampHook(AbstractHook):
    """Clips every array of the value: `x -> minimum(maximum(x, min), max)`, either of
    them `None` for no bound. They must broadcast to `x`, else a
    [`peex.HookShapeError`][] is raised.
    """

    min: ArrayLike | None = None
    max: ArrayLike | None = None

    def __call__(self, value: PyTree[ArrayLike]) -> PyTree[ArrayLike]:
        def clamp(x: Any) -> Array:
            for name, bound in (("min", self.min), ("max", self.max)):
                if bound is not None:
                    act = jnp.maximum if name == "min" else jnp.minimum
                    bounded = lambda x, act=act, bound=bound: act(x, bound)
                    x = calculate(bounded, x, name, bound)
            return x

        return per_array(clamp, value)


class ProjectHook(AbstractHook):
    """Takes a subspace out of the last axis of every array, or keeps it alone: with `P`
    the orthogonal projection onto the span of the rows of `basis`, `x -> x - P x`, or
    `x -> P x` if `keep`. `P = B⁺ B` by the pseudoinverse ([Penrose,
    1955](https://doi.org/10.1017/S0305004100030401)), so the rows needn't be orthogonal
    or independent. As for concepts that are erased ([Ravfogel et al.,
    2020](https://arxiv.org/abs/2004.07667)) and directions that are ablated.

    - `basis`: of shape `(directions, size)`, or `(size,)` for one direction. It is a
        leaf of the wrapper.
    - `keep`: whether what is in the subspace is kept, rather than taken out.

    **Raises:** [`peex.HookShapeError`][] if the last axis hasn't this size.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        linear = eqx.nn.Linear(2, 3, key=jax.random.key(0))
        hook = px.ProjectHook(jnp.array([0.0, 1.0, 0.0]))
        out, _ = px.ForwardHook(linear, hook)(jnp.ones(2))  # out[1] is 0
        ```
    """

    basis: Float[Array, "directions size"] | Float[Array, " size"]
    keep: bool = False

    def __call__(self, value: PyTree[ArrayLike]) -> PyTree[ArrayLike]:
        basis = jnp.atleast_2d(self.basis)
        basis = basis.astype(jnp.promote_types(basis.dtype, jnp.float32))
        size = basis.shape[1]

        def project(x: Any) -> Array:
            if x.ndim == 0 or x.shape[-1] != size:
                raise HookShapeError(
                    f"its basis is of vectors of size {size}, the value is "
                    f"{x.dtype}{list(x.shape)}, whose last axis they must have. Give "
                    "one of shape `(directions, size)`, or choose other sites with "
                    "`where`."
                )
            return calculate(act, x, "basis", 0.0)

        def act(x: Any) -> Array:
            coordinates = jnp.matmul(x, jnp.linalg.pinv(basis))
            projected = jnp.matmul(coordinates, basis)
            return projected if self.keep else x - projected

        return per_array(project, value)
