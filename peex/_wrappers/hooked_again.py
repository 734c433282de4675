"""Models that are hooked already."""

import pathlib
import sys
import warnings
from typing import Any, no_type_check

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from .. import _compat
from .._sites.walk import AbstractWrapper


_HERE = f"{pathlib.Path(__file__).parents[1]}/"


def is_hooked(model: Any) -> bool:
    """Whether a model is wrapped by peex, or something inside of it is.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import peex as px

        linear = eqx.nn.Linear(2, 2, key=jax.random.key(0))
        px.is_hooked(linear)  # False
        px.is_hooked(eqx.filter_vmap(px.ForwardHook(linear)))  # True
        ```

    **Arguments:**

    - `model`: any pytree.
    """
    is_wrapper = lambda x: isinstance(x, AbstractWrapper)
    return any(map(is_wrapper, jtu.tree_leaves(model, is_leaf=is_wrapper)))


@no_type_check  # frames are counted
def warn_if_hooked_again(wrapper: Any) -> None:
    """Warns, where the wrapper was made, if its model is wrapped in the same way."""
    inner = wrapper.model
    while isinstance(inner, AbstractWrapper):
        if _alike(inner, wrapper):
            break
        inner = inner.model
    else:
        return
    name = type(wrapper).__name__
    warnings.warn(
        f"This model is wrapped in an equal {name} already, of the same sites and with "
        "the same hook_fn and log_fn, so what they do is done twice. If that wasn't "
        "meant (as where a cell of a notebook was run again), wrap the model itself, "
        f"`px.{name}(hooked.model, ...)`, or keep apart what is wrapped: `hooked = "
        f"px.{name}(model)`. `px.is_hooked(model)` says whether a model is.",
        UserWarning,
        stacklevel=_level(),
    )


def _alike(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    try:
        if a.plan != b.plan:
            return False
        (x, tree_x), (y, tree_y) = (
            jtu.tree_flatten((wrapper.hook_fn, wrapper.log_fn)) for wrapper in (a, b)
        )
        return tree_x == tree_y and all(map(_equal, x, y))
    except (TypeError, ValueError):
        return False  # a static field that can't be compared (a NumPy array)


def _equal(x: Any, y: Any) -> bool:
    if x is y:
        return True
    if not (eqx.is_array_like(x) and eqx.is_array_like(y)):
        return bool(x == y)
    if any(
        isinstance(z, Tracer)
        or (isinstance(z, jax.Array) and not z.is_fully_addressable)
        or jax.numpy.issubdtype(getattr(z, "dtype", bool), jax.dtypes.extended)
        for z in (x, y)
    ):
        return False
    return np.array_equal(np.asarray(x), np.asarray(y))


@no_type_check
def _level() -> int:
    """Of the first frame above the caller's that isn't of peex or what it calls."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        if _compat.is_of_model(file) and not file.startswith(_HERE):
            return level
        frame, level = frame.f_back, level + 1
    return level
