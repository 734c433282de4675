"""Arguments of a hooked call that are like the model itself: its frozen half, averaged
weights, those that it started from.

The model that runs has other classes than the user's, so `jax.tree.map` and
`equinox.combine` would take it and such an argument for different things. So these are
made like the model, without sites, wherever they are in the arguments.
"""

from collections.abc import Callable
from typing import Any

import jax.tree_util as jtu

from .._engine.values import is_state, one_level, with_children
from .classes import original_class, without_sites


def made_alike(instrumented: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of a call, with what is of the model's class in them made like the
    model that runs.
    """
    cls = original_class(instrumented)

    def inside(node: Any) -> Any:
        if type(node) is cls:
            return _alike(instrumented, node)
        return node if is_state(node) else _each_child(node, inside)

    def one(arg: Any) -> Any:
        is_leaf = lambda x: type(x) is cls or is_state(x)
        try:
            leaves = jtu.tree_leaves(arg, is_leaf=is_leaf)
        except ValueError:  # what JAX can't take apart
            return arg
        return inside(arg) if any(type(x) is cls for x in leaves) else arg

    return tuple(map(one, args)), {name: one(arg) for name, arg in kwargs.items()}


def _alike(like: Any, node: Any) -> Any:
    """A copy of the model, or of a part of it, in the structure of `like`."""
    if type(node) is original_class(like):
        twins, _ = one_level(like)
        if len(twins) == len(one_level(node)[0]):
            twin = iter(twins)
            node = _each_child(node, lambda child: _alike(next(twin), child))
    return without_sites(like, node)


def _each_child(node: Any, fn: Callable[[Any], Any]) -> Any:
    children, treedef = one_level(node)
    if len(children) == 1 and children[0] is node:
        return node  # a leaf
    new = [fn(child) for child in children]
    if all(a is b for a, b in zip(new, children, strict=True)):
        return node
    return with_children(node, treedef, new)
