"""Taking a value apart into its arrays, and putting others in their place.

What isn't changed is handed on as the very object: containers, their order, and what
else refers to them stay as they are without hooks.
"""

import collections
import dataclasses
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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


# What JAX takes apart, and puts together, by sorted keys.
_SORTED = (dict, collections.defaultdict)


def is_unsorted(x: object) -> bool:
    """Whether it is a dict that JAX can't take apart, since its keys, as enums or of
    several types, can't be sorted.
    """
    return type(x) in _SORTED and _sorted(x) is None


def passes_by(x: object) -> bool:
    return is_state(x) or is_unsorted(x)


def _sorted(node: Any) -> list[Any] | None:
    try:
        return sorted(node)
    except Exception:  # whatever a comparison of the keys' own raises
        return None


def states(tree: Any) -> Iterator[Any]:
    """The States in a pytree, and in dicts that JAX can't take apart."""
    for x in jtu.tree_leaves(tree, is_leaf=passes_by):
        if is_state(x):
            yield x
        elif is_unsorted(x):
            yield from states(list(x.values()))


def with_arrays(value: Any, leaves: Sequence[Any], new: Sequence[Any]) -> Any:
    """The value with `new` in the place of its `leaves`, in the order of JAX."""
    if all(a is b for a, b in zip(leaves, new, strict=True)):
        return value
    return _rebuilt(value, iter(new))


def _rebuilt(node: Any, new: Iterator[Any]) -> Any:
    if passes_by(node):
        return next(new)
    children, structure = one_level(node)
    if len(children) == 1 and children[0] is node:
        return next(new)
    return with_children(node, structure, [_rebuilt(child, new) for child in children])


def one_level(node: Any) -> tuple[list[Any], Any]:
    """The children of a node, in the order of JAX (of a dict that it can't sort, in its
    own), and the structure that they are in; of a leaf itself alone.
    """
    if type(node) is list:  # known without asking JAX
        return list(node), None
    if type(node) in _SORTED:
        keys = _sorted(node)
        keys = list(node) if keys is None else keys
        return [node[key] for key in keys], keys
    return jtu.tree_flatten(node, is_leaf=lambda x: x is not node)


def with_children(node: Any, structure: Any, children: Sequence[Any]) -> Any:
    """A node with other children than those that `one_level` found. A dict keeps its
    order.
    """
    if type(node) is list:
        return list(children)
    if type(node) in _SORTED:
        result = node.copy()
        result.update(zip(structure, children, strict=True))
        return result
    return jtu.tree_unflatten(structure, children)


def each_child(node: Any, fn: Callable[[Any], Any]) -> Any:
    """A node with what a function makes of its children: if these are the same, the
    very node, as a leaf is.
    """
    children, structure = one_level(node)
    if len(children) == 1 and children[0] is node:
        return node
    new = [fn(child) for child in children]
    if all(a is b for a, b in zip(new, children, strict=True)):
        return node
    return with_children(node, structure, new)


class _Hole:
    """Stands for an array that was taken out."""


def taken_out(value: Any) -> tuple[list[Any], Callable[[Iterable[Any]], Any]]:
    """The arrays in a value, and what puts others in their place."""
    arrays: list[Any] = []

    def take(x: Any) -> Any:
        if not eqx.is_array(x):
            return each_child(x, take)
        arrays.append(x)
        return _Hole()

    hollow = take(value)

    def filled(arrays: Iterable[Any]) -> Any:
        new = iter(arrays)
        fill = lambda x: next(new) if type(x) is _Hole else each_child(x, fill)
        return fill(hollow)

    return arrays, filled


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
    leaves = jtu.tree_leaves(inside, is_leaf=is_unsorted)
    return any(is_array(x) or (is_unsorted(x) and hidden_arrays(x)) for x in leaves)


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


def strong(tree: Any) -> Any:
    """Arrays of types that aren't weak: those of another branch may not be."""

    def one(x: Any) -> Any:
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.extended)
        return x if is_key else lax.convert_element_type(x, x.dtype)

    return jtu.tree_map(one, tree)
