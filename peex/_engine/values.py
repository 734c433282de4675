"""Taking a value apart into its arrays, and putting others in their place.

What isn't changed is handed on as the very object: containers, their order, and what
else refers to them stay as they are without hooks.
"""

import collections
import copy
import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax

from .. import _compat
from .apply import is_array


def is_state(x: object) -> bool:
    """Whether it is a State of Equinox's, which passes by as a whole."""
    return isinstance(x, eqx.nn.State)


def with_arrays(value: Any, leaves: Sequence[Any], new: Sequence[Any]) -> Any:
    """The value with `new` in the place of its `leaves`, in the order of JAX."""
    if all(a is b for a, b in zip(leaves, new, strict=True)):
        return value
    return _rebuilt(value, iter(new))


def _rebuilt(node: Any, new: Iterator[Any]) -> Any:
    if is_state(node):
        return next(new)
    children, treedef = one_level(node)
    if len(children) == 1 and children[0] is node:
        return next(new)
    return with_children(node, treedef, [_rebuilt(child, new) for child in children])


def one_level(node: Any) -> tuple[list[Any], Any]:
    """The children of a node, in the order of JAX; of a leaf itself alone."""
    return jtu.tree_flatten(node, is_leaf=lambda x: x is not node)


def with_children(node: Any, treedef: Any, children: Sequence[Any]) -> Any:
    """A node with other children than those that `one_level` found."""
    if isinstance(node, dict) and not isinstance(node, collections.OrderedDict):
        # JAX takes dicts apart, and puts them together, by sorted keys.
        keys = jtu.tree_unflatten(treedef, range(len(children)))
        result = copy.copy(node)
        result.update((key, children[keys[key]]) for key in node)
        return result
    return jtu.tree_unflatten(treedef, children)


def hidden_arrays(leaf: Any) -> bool:
    """Whether something that JAX takes for a leaf, since its type isn't a pytree, is a
    container with arrays in it.
    """
    if isinstance(leaf, Mapping):
        inside = list(leaf.values())
    elif isinstance(leaf, list | tuple | set | frozenset | collections.deque):
        inside = list(leaf)
    elif isinstance(leaf, types.SimpleNamespace):
        inside = list(vars(leaf).values())
    elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
        inside = [getattr(leaf, f.name, None) for f in dataclasses.fields(leaf)]
    else:
        return False
    return any(map(is_array, jtu.tree_leaves(inside)))


def once(leaves: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Each array once, and for each leaf where in that list it is. (A shape may be
    written once for several arrays.)
    """
    unique: dict[Any, Any] = {}
    names = [id(x) if eqx.is_array(x) else -1 - i for i, x in enumerate(leaves)]
    for name, x in zip(names, leaves, strict=True):
        unique.setdefault(name, x)
    places = {name: i for i, name in enumerate(unique)}
    return list(unique.values()), [places[name] for name in names]


def eval_shape(fn: Callable[..., Any], *args: Any) -> Any:
    """As `equinox.filter_eval_shape`; an array that is there twice is one inside."""
    leaves, treedef = jtu.tree_flatten(args)
    unique, places = once(leaves)

    def run(unique: list[Any]) -> Any:
        return fn(*treedef.unflatten([unique[i] for i in places]))

    return eqx.filter_eval_shape(run, unique)


def zeros(shape: Any) -> Any:
    """Zeros of a shape and dtype (and of the same type as to meshes); for random keys,
    keys of zeros.
    """
    if not jnp.issubdtype(shape.dtype, jax.dtypes.prng_key):
        made = jnp.zeros(shape.shape, shape.dtype)
        return _compat.typed_as(made, shape)
    return lax.full(shape.shape, 0, shape.dtype)
