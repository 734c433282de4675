"""Walking a model one level at a time, with the keys that its places have.

Choosing sites and putting them in both walk like this, so they agree on every name.
"""

import functools as ft
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TYPE_CHECKING, TypeVar

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np

from .. import _compat
from .._caches import weak_cache
from .._engine.values import one_level, with_children
from .keys import components, Key


def children(key: Key, node: Any) -> list[tuple[Key, Any]]:
    """The children of a pytree node with their keys; none of a leaf.

    A wrapper of Equinox's that stands for a module passes its own key on to it. So do
    peex's own, whose other children (hooks are modules too) aren't part of the model.
    """
    kind = _kind(node)
    if kind.array:
        return []  # known without asking JAX
    found, _ = jtu.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    if len(found) == 1 and found[0][1] is node:
        return []
    inside = _stood_for(node) if kind.stands_in else None
    if inside is not None:
        return [(key, inside[0])]
    names = components([entry for (entry,), _ in found])
    return [((*key, *n), child) for n, (_, child) in zip(names, found, strict=True)]


def parts_of(node: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """The same without the keys, and a function that rebuilds the node of such."""
    inside = _stood_for(node) if _kind(node).stands_in else None
    if inside is not None:
        wrapped, rewrap = inside
        return [wrapped], lambda new: rewrap(new[0])
    found, structure = one_level(node)
    return found, ft.partial(with_children, node, structure)


def field_names(module: Any) -> list[str]:
    """The names of the fields that hold the children of a module."""
    is_leaf = lambda x: x is not module
    entries, _ = jtu.tree_flatten_with_path(module, is_leaf=is_leaf)
    return [entry.name for (entry,), _ in entries]


class _Kind(NamedTuple):
    """What can be told of a node from its class."""

    array: bool
    module: bool
    stands_in: bool  # perhaps: a wrapper of Equinox's needn't hold a module
    callable_: bool


_kinds = weak_cache()


def _kind(node: Any) -> _Kind:
    cls = type(node)
    kind = _kinds.get(cls)
    if kind is None:
        ours = issubclass(cls, AbstractWrapper)
        kind = _kinds[cls] = _Kind(
            issubclass(cls, jax.Array | np.ndarray),
            issubclass(cls, eqx.Module),
            ours or _compat.may_stand_for(cls),
            callable(node),
        )
    return kind


def _stood_for(node: Any) -> tuple[Any, Callable[[Any], Any]] | None:
    if isinstance(node, AbstractWrapper):
        return node.model, lambda new: with_fields(node, model=new)
    return _compat.stood_for(node)


Wrapper = TypeVar("Wrapper", bound="AbstractWrapper")


class AbstractWrapper(eqx.Module):
    """A wrapper of peex's: stands for its `model`."""

    model: eqx.AbstractVar[Any]
    plan: eqx.AbstractVar[Any]

    if not TYPE_CHECKING:  # for which it would have every attribute

        def __getattr__(self, name: str) -> Any:
            """Called for what there isn't."""
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            path, model = "hooked", self
            while isinstance(model, AbstractWrapper):
                path, model = f"{path}.model", vars(model).get("model")
            if _is_method(model, name):
                message += (
                    f", but its model has: write `{path}.{name}(...)`, which runs "
                    f"without hooks, or wrap the model with `method={name!r}`, which "
                    "runs it with hooks"
                )
            elif inspect.getattr_static(model, name, ...) is not ...:
                message += f", but its model has: write `{path}.{name}`"
            raise AttributeError(message, name=name, obj=self)


def _is_method(model: Any, name: str) -> bool:
    """Whether it has a method of this name; nothing is run, as a property would be."""
    if name in getattr(model, "__dict__", {}):
        return False
    found = inspect.getattr_static(type(model), name, None)
    is_bound = hasattr(type(found), "__get__")
    return is_bound and (callable(found) or isinstance(found, classmethod))


def with_fields(wrapper: Wrapper, **fields: Any) -> Wrapper:
    """A copy of a wrapper with others in the place of these fields. What is in the rest
    is the very object.
    """
    new = object.__new__(type(wrapper))
    vars(new).update(vars(wrapper) | fields)
    return new


def unwrap(model: Any) -> Any:
    """The model inside of peex's wrappers, which `where` functions are given."""
    while isinstance(model, AbstractWrapper):
        model = model.model
    return model


def is_array_leaf(node: Any) -> bool:
    return _kind(node).array


def is_module(node: Any) -> bool:
    """A module that can be called, and doesn't only stand for another."""
    kind = _kind(node)
    return kind.module and kind.callable_ and not stands_in(node)


def stands_in(node: Any) -> bool:
    """A wrapper that passes its key on to what it wraps."""
    return _kind(node).stands_in and _stood_for(node) is not None


def is_function(node: Any) -> bool:
    """A leaf that is a function, as the activation of an MLP is."""
    return (
        callable(node)
        and not _kind(node).module
        and not isinstance(node, type)
        and jtu.all_leaves([node])
    )


class FunctionSite:
    """Marks what stands in a model for a function with sites around it (made in
    `_instrument/classes.py`).
    """


def is_function_site(node: object) -> bool:
    return isinstance(node, FunctionSite)
