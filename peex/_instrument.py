"""Putting sites into a model, and taking them out again.

A chosen module is replaced by an instance of a subclass of its own class, made once for
each class, that carries its sites in the pytree structure and runs them around the
methods it was chosen for. So `isinstance`, attributes, properties and `super()` go on
working, and since the sites ride in the structure, they survive whatever rebuilds the
module: `vmap`, `scan`, `jit`, `checkpoint`. The user's model is never changed.
"""

import abc
import dataclasses
import functools as ft
import types
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import equinox as eqx
import jax.tree_util as jtu

from . import _fire
from ._site import Path, Site
from ._walk import children, is_function, stands_in


# From a method's name to the sites around it, those of outer wrappers first.
Sites = Mapping[str, tuple[Site | Path, ...]]
_ATTRIBUTE = "__peex_sites__"


class Instrumented:
    """Marks the generated subclasses."""

    __peex_original__: type

    # A class of the user's may register its subclasses, or refuse to have any.
    def __init_subclass__(cls, **kwargs: Any) -> None:
        del kwargs


def _dict(module: Any) -> dict[str, Any]:
    # Equinox's own attribute lookup does more, at some cost.
    return object.__getattribute__(module, "__dict__")


class _Function(eqx.Module):
    """A function-valued leaf with sites around it."""

    fn: Callable = eqx.field(static=True)
    sites: tuple[Site | Path, ...] = eqx.field(static=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _fire.call(self.sites, self.fn, args, kwargs)


def is_function_site(node: object) -> bool:
    return isinstance(node, _Function)


_subclasses: weakref.WeakKeyDictionary[type, type] = weakref.WeakKeyDictionary()
_metaclasses: weakref.WeakKeyDictionary[type, type] = weakref.WeakKeyDictionary()


def _metaclass(meta: type) -> type:
    """A subclass of a metaclass under which `type(self)(...)`, in a method of the
    model's, makes a plain instance of the original class.
    """
    if meta not in _metaclasses:

        def construct(cls: Any, *args: Any, **kwargs: Any) -> Any:
            return cls.__peex_original__(*args, **kwargs)

        _metaclasses[meta] = type(meta.__name__, (meta,), {"__call__": construct})
    return _metaclasses[meta]


def _subclass(cls: type) -> type:
    if cls not in _subclasses:
        _subclasses[cls] = _make_subclass(cls)
    return _subclasses[cls]


def _make_subclass(cls: type) -> type:
    namespace = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__peex_original__": cls,
    }
    if cls.__hash__ is eqx.Module.__hash__:
        namespace["__hash__"] = _hash
    # Not through the metaclass's own `__new__`: that would make a dataclass anew, and
    # run checks that are meant for classes that people write.
    meta = _metaclass(type(cls))
    sub = abc.ABCMeta.__new__(meta, cls.__name__, (Instrumented, cls), namespace)
    fields = dataclasses.fields(cls)
    static = tuple(f.name for f in fields if f.metadata.get("static", False))
    dynamic = tuple(f.name for f in fields if not f.metadata.get("static", False))

    def flatten(self: Any) -> tuple[Any, Any]:
        values = _dict(self)
        return (
            tuple(values.get(name, _missing) for name in dynamic),
            (
                values[_ATTRIBUTE],
                tuple(values.get(name, _missing) for name in static),
                tuple(
                    (k, v)
                    for k, v in values.items()
                    if k not in dynamic and k not in static and k != _ATTRIBUTE
                ),
            ),
        )

    def flatten_with_keys(self: Any) -> tuple[Any, Any]:
        values, aux = flatten(self)
        keys = (jtu.GetAttrKey(name) for name in dynamic)
        return tuple(zip(keys, values, strict=True)), aux

    def unflatten(aux: Any, values: Any) -> Any:
        sites, static_values, others = aux
        self = object.__new__(sub)
        attributes = _dict(self)
        attributes[_ATTRIBUTE] = sites
        attributes.update(zip(dynamic, values, strict=True))
        attributes.update(zip(static, static_values, strict=True))
        attributes.update(others)
        for name in [k for k, v in attributes.items() if v is _missing]:
            del attributes[name]
        return self

    jtu.register_pytree_with_keys(sub, flatten_with_keys, unflatten, flatten)
    return sub


@jtu.register_static
class _Missing:
    """A field that was never set (as in Equinox, it has no leaves)."""

    def __eq__(self, other: object) -> bool:
        return type(other) is _Missing

    def __hash__(self) -> int:
        return hash(_Missing)


_missing = _Missing()


def _hash(self: Any) -> int:
    # As Equinox does, which looks the fields up by class.
    return hash(tuple(getattr(self, f.name) for f in dataclasses.fields(self)))


def _method(cls: type, name: str) -> Callable:
    """The method `name` of a subclass of `cls`: the parent's, with its sites around."""

    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        original = getattr(cls, name)
        if type(original) is types.FunctionType:
            original = ft.partial(original, self)
        else:
            original = getattr(super(_subclass(cls), self), name)
        sites = _dict(self)[_ATTRIBUTE].get(name, ())
        return _fire.call(sites, original, args, kwargs)

    return ft.wraps(getattr(cls, name))(method)


class _SiteMap(dict[str, tuple[Site | Path, ...]]):
    """A mapping that can be part of a pytree structure."""

    def __hash__(self) -> int:
        return hash(tuple(self.items()))


def _attach(node: Any, sites: Sites) -> Any:
    """One module with sites; those that it has already stay outside the new ones."""
    if is_function(node):
        return _Function(node, sites["__call__"])
    if isinstance(node, _Function):
        return _Function(node.fn, node.sites + sites["__call__"])
    attributes = _dict(node)
    merged = dict(attributes.get(_ATTRIBUTE, {}))
    sub = type(node) if isinstance(node, Instrumented) else _subclass(type(node))
    for name, added in sites.items():
        merged[name] = merged.get(name, ()) + added
        if name not in sub.__dict__:
            setattr(sub, name, _method(sub.__peex_original__, name))
    new = object.__new__(sub)
    _dict(new).update(attributes)
    _dict(new)[_ATTRIBUTE] = _SiteMap(merged)
    return new


def instrument(model: Any, sites: Mapping[str, Sites]) -> Any:
    """The model with `sites` (by the key of their module) put in."""

    def visit(key: tuple[str, ...], node: Any) -> Any:
        found = children(key, node)
        if found is not None:
            parts, rebuild = found
            new = [visit(k, child) for k, child in parts]
            if any(a is not b for a, (_, b) in zip(new, parts, strict=True)):
                node = rebuild(new)
        # What stands for another has the same key, but isn't the site.
        mine = None if stands_in(node) else sites.get(".".join(key) or ".")
        return node if mine is None else _attach(node, mine)

    return visit((), model)


class Memo(dict[Any, Any]):
    """Remembers instrumented structures for one wrapper, and the hash of its plan. It
    isn't part of what that is: a copy starts with an empty one.
    """

    plan_hash: int | None = None

    def __reduce__(self) -> Any:
        return Memo, ()

    def instrument(
        self, model: Any, key: Hashable, sites: Callable[[], Mapping[str, Sites]]
    ) -> Any:
        """As the function does. What results is remembered by `key` and the structure
        of the model, which the sites depend on alone.
        """
        leaves, treedef = jtu.tree_flatten(model)
        try:
            known = self.get((key, treedef))
        except (TypeError, ValueError):
            # A static field that can't be hashed, or compared (a NumPy array).
            return instrument(model, sites())
        if known is not None:
            return known.unflatten(leaves)
        new = instrument(model, sites())
        new_leaves, new_treedef = jtu.tree_flatten(new)
        # A function with sites is no leaf any more; that isn't remembered.
        if len(leaves) == len(new_leaves):
            if len(self) >= 16:
                self.clear()
            self[key, treedef] = new_treedef
        return new


def strip(tree: Any) -> Any:
    """A value that the model returned, with every module in it as the user knows it."""
    is_ours = lambda x: isinstance(x, Instrumented | _Function)
    if not any(is_ours(x) for x in jtu.tree_leaves(tree, is_leaf=is_ours)):
        return tree

    def one(node: Any) -> Any:
        if isinstance(node, _Function):
            return node.fn
        if not isinstance(node, Instrumented):
            return node
        new = object.__new__(type(node).__peex_original__)
        new.__dict__.update(node.__dict__)
        del new.__dict__[_ATTRIBUTE]
        leaves, treedef = jtu.tree_flatten(new, is_leaf=is_ours)
        return jtu.tree_unflatten(treedef, [one(x) for x in leaves])

    return jtu.tree_map(one, tree, is_leaf=is_ours)
