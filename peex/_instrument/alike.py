"""Arguments of a hooked call that are like the model itself: its frozen half, averaged
weights, those that it started from.

The model that runs has other classes than the user's, so `jax.tree.map` and
`equinox.combine` would take it and such an argument for different things. So these are
made like the model, without sites, wherever they are in the arguments.
"""

from typing import Any

import jax.tree_util as jtu

from .._engine.values import each_child, is_state, is_unsorted, one_level, passes_by
from .classes import original_class, without_sites


def made_alike(instrumented: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of a call, with what is of the model's class in them made like the
    model that runs.
    """
    cls = original_class(instrumented)

    def inside(node: Any) -> Any:
        if type(node) is cls:
            return _alike(instrumented, node)
        return node if is_state(node) else each_child(node, inside)

    def one(arg: Any) -> Any:
        is_leaf = lambda x: type(x) is cls or passes_by(x)
        try:
            leaves = jtu.tree_leaves(arg, is_leaf=is_leaf)
        except ValueError:  # what JAX can't take apart
            return arg
        may_hold = any(type(x) is cls or is_unsorted(x) for x in leaves)
        return inside(arg) if may_hold else arg

    return tuple(map(one, args)), {name: one(arg) for name, arg in kwargs.items()}


def _alike(like: Any, node: Any) -> Any:
    """A copy of the model, or of a part of it, in the structure of `like`."""
    if type(node) is original_class(like):
        twins, _ = one_level(like)
        if len(twins) == len(one_level(node)[0]):
            twin = iter(twins)
            node = each_child(node, lambda child: _alike(next(twin), child))
    return without_sites(like, node)
