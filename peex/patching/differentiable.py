"""What is refused of an experiment that takes gradients, before anything runs."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

from .._errors import LogShapeError, PeexError
from .._text import shown_arrays


def check_metric(metric: PyTree[jax.ShapeDtypeStruct], what: str) -> None:
    """**Raises:** `PeexError` for a metric (its shapes) that has no gradient."""
    leaves = jtu.tree_leaves(metric)
    floats = [jnp.issubdtype(x.dtype, jnp.floating) for x in leaves]
    if floats == [True] and leaves[0].shape == ():
        return
    raise PeexError(
        f"`px.patching.{what}` takes the gradient of the metric, which has to be one "
        f"floating-point number; this one is {shown_arrays(metric)}. Make one of it, "
        "as by `metric=lambda logits: jnp.mean(logits[:, 42])`; for each of several "
        "examples, call it under `jax.vmap`. `px.patching.sweep` takes any metric."
    )


def check_sites(log: Mapping[str, Any], what: str) -> None:
    """**Raises:** `PeexError` for values (of which a log has the shapes) that have no
    gradient.
    """
    for key in log:
        (x,) = jtu.tree_leaves(log[key])
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            raise PeexError(
                f"The site {key!r} logs {shown_arrays(x)}, which has no gradient, as "
                f"`px.patching.{what}` needs it. Choose one of floating-point numbers, "
                "as the output of an embedding instead of its input; "
                "`px.patching.sweep` takes any."
            )


def check_steps(steps: int | None, path: Any, source: Any) -> None:
    """**Raises:** `TypeError` for a way between the runs that there isn't."""
    if path not in ("input", "activation"):
        raise TypeError(
            f'`path={path!r}` isn\'t known. Write "input", for gradients at inputs '
            'between those of the two runs, or "activation", at values of a site '
            "between those."
        )
    if steps is None:
        return
    if steps < 1:
        raise TypeError(
            f"`steps={steps}` is at how many points the gradient is averaged: a "
            "positive integer, or None for that at the base alone."
        )
    if path == "input" and source != "clean":
        shown = repr(source) if isinstance(source, str) else "a log"
        raise TypeError(
            '`path="input"` goes from the inputs of one run to those of the other, so '
            f"what is put in are the values of that; got {shown} as `source`. Write "
            '`path="activation"`, which goes from the values of the base to those of '
            "`source`."
        )


def check_inputs(others: tuple[Any, ...], args: tuple[Any, ...]) -> None:
    """**Raises:** if there is no way from the inputs of one run to the other's."""
    mine, structure = jtu.tree_flatten(args)
    theirs, other_structure = jtu.tree_flatten(others)
    if structure != other_structure:
        raise LogShapeError(
            "The inputs of the two runs have different structures, so there is nothing "
            f"between them: {other_structure} and {structure}. Give both the same "
            'arguments, or write `path="activation"`.'
        )
    for (path, x), y in zip(jtu.tree_leaves_with_path(args), theirs, strict=True):
        if not _may_lie_between(x, y):
            raise PeexError(
                f"There is nothing between the inputs of the two runs: "
                f"args{jtu.keystr(path)} is {_shown(y)} in one and {_shown(x)} in the "
                "other, and only floating-point arrays can be interpolated. Write "
                '`path="activation"`, or give the model what comes of them, as '
                "embeddings of tokens, by a `method` that starts there."
            )


def _may_lie_between(x: Any, y: Any) -> bool:
    """Whether two leaves can be interpolated, or are the same."""
    if x is y:
        return True
    if eqx.is_inexact_array(x) and eqx.is_inexact_array(y):
        return x.shape == y.shape
    if isinstance(x, Tracer) or isinstance(y, Tracer):
        return False
    return np.shape(x) == np.shape(y) and bool(np.all(np.asarray(x == y)))


def _shown(x: Any) -> str:
    if not hasattr(x, "dtype"):
        return repr(x)
    return shown_arrays(jax.ShapeDtypeStruct(x.shape, x.dtype))
