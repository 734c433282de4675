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
import inspect
import sys
import threading
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any, no_type_check

import equinox as eqx
import jax.tree_util as jtu

from .. import _compat
from .._engine.active_calls import active_calls
from .._engine.site import ModuleKey, Site
from .._engine.values import each_child, is_unsorted, one_level, with_children
from .._sites.walk import FunctionSite, is_function
from .around import around
from .site_map import SiteMap


# From a method's name to the sites around it, those of outer wrappers first.
SitesByMethod = Mapping[str, tuple[Site | ModuleKey, ...]]
_ATTRIBUTE = "__peex_sites__"
# The hooked calls that were running when an object was made. Not in its structure.
_CALLS = "__peex_calls__"


class Instrumented:
    """Marks the generated subclasses."""

    __peex_original__: type

    # A class of the user's may register its subclasses, or refuse to have any.
    def __init_subclass__(cls, **kwargs: Any) -> None:
        del kwargs


def _dict(module: Any) -> dict[str, Any]:
    # Equinox's own attribute lookup does more, at some cost.
    return object.__getattribute__(module, "__dict__")


class _Function(FunctionSite):
    """A function-valued leaf with sites around it. A pytree without leaves."""

    def __init__(self, fn: Callable, sites: SiteMap):
        self.fn = fn
        self.sites = sites
        self.calls = active_calls()
        ft.update_wrapper(self, fn, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        sites = self.sites["__call__"]
        return around(sites, self.calls, self.fn, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "fn"), name)


jtu.register_pytree_node(
    _Function,
    lambda function: ((), (function.sites, function.fn)),
    lambda aux, _: _Function(aux[1], aux[0].taken()),
)


_lock = threading.Lock()  # around what follows, and all that is put into a subclass
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


def _subclass(cls: type, methods: SitesByMethod) -> type:
    """The subclass of `cls`, with sites around these methods."""
    with _lock:
        if cls not in _subclasses:
            _subclasses[cls] = _make_subclass(cls)
        sub = _subclasses[cls]
        for name in methods:
            if name not in sub.__dict__:
                setattr(sub, name, _method(sub, name))
        return sub


_REPLACE: set[Any] = {
    getattr(dataclasses, name).__code__
    for name in ("replace", "_replace")  # the latter from Python 3.13 on
    if hasattr(dataclasses, name)
}


def _make_subclass(cls: type) -> type:
    @no_type_check  # the frame that calls is looked at
    def class_(self: Any) -> Any:
        """The original class; but what `dataclasses.replace` makes has the sites."""
        frame: Any = sys._getframe(1)
        if frame.f_code.co_name == "__getattribute__":  # Equinox's
            frame = frame.f_back
        if frame.f_code in _REPLACE:
            return ft.partial(_replaced, self)
        return cls

    namespace = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__class__": property(class_),
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
    # What else Equinox keeps; all others, as what `functools.cached_property` stores,
    # is of this one object.
    kept = (*static, *_compat.WRAPPER_FIELD_NAMES)

    def flatten(self: Any) -> tuple[Any, Any]:
        values = _dict(self)
        names = dynamic
        if not all([name in values for name in dynamic]):  # some were never set
            names = tuple([name for name in dynamic if name in values])
        others = tuple([(name, values[name]) for name in kept if name in values])
        children = tuple([values[name] for name in names])
        return children, (values[_ATTRIBUTE], names, others)

    def flatten_with_keys(self: Any) -> tuple[Any, Any]:
        children, aux = flatten(self)
        keys = map(jtu.GetAttrKey, aux[1])
        return tuple(zip(keys, children, strict=True)), aux

    @no_type_check
    def unflatten(aux: Any, children: Any) -> Any:
        sites, names, others = aux
        self = object.__new__(sub)
        attributes = _dict(self)
        attributes[_ATTRIBUTE] = sites.taken()
        attributes[_CALLS] = active_calls()
        attributes.update(zip(names, children, strict=True))
        attributes.update(others)
        return self

    jtu.register_pytree_with_keys(sub, flatten_with_keys, unflatten, flatten)
    return sub


def _hash(self: Any) -> int:
    # As Equinox does, which looks the fields up by class.
    return hash(tuple(getattr(self, f.name) for f in dataclasses.fields(self)))


class _WithoutSelf:
    """A `staticmethod` or `classmethod` with sites around it, where it is looked up on
    an instance: on the class it is the user's own.
    """

    def __init__(self, sub: Any, name: str, original: Any):
        self._sub: Any = weakref.ref(sub)
        self._name, self._original = name, original

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        bound = self._original.__get__(None, self._sub().__peex_original__)
        if instance is None:
            return bound

        def call(*args: Any, **kwargs: Any) -> Any:
            attributes = _dict(instance)
            sites = attributes[_ATTRIBUTE].get(self._name, ())
            return around(sites, attributes.get(_CALLS, ()), bound, args, kwargs)

        return ft.wraps(bound)(call)


def _method(sub: Any, name: str) -> Any:
    """The method `name` of a subclass: the parent's, with its sites around."""
    cls = sub.__peex_original__
    found = inspect.getattr_static(cls, name)
    if isinstance(found, staticmethod | classmethod):
        return _WithoutSelf(sub, name, found)

    @no_type_check  # what it calls may be looked for by its name
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        original = getattr(cls, name)
        if type(original) is types.FunctionType:
            original = ft.partial(original, self)
        else:
            original = getattr(super(sub, self), name)
        attributes = _dict(self)
        sites = attributes[_ATTRIBUTE].get(name, ())
        return around(sites, attributes.get(_CALLS, ()), original, args, kwargs)

    original = getattr(cls, name)
    method = ft.wraps(original)(method)
    # Not what Equinox has made of it: of that, a function's `__wrapped__` is refused.
    method.__wrapped__ = inspect.unwrap(original)
    return method


def _with(old: SitesByMethod, new: SitesByMethod) -> SiteMap:
    merged = SiteMap(old)
    for name, added in new.items():
        merged[name] = merged.get(name, ()) + added
    return merged


def of_function(fn: Any, sites: SitesByMethod) -> Callable[[Any], Any]:
    """What puts these sites around a function. Those that it has already stay outside
    of them, as with modules.
    """
    if isinstance(fn, _Function):
        both = _with(fn.sites, sites)
        return lambda fn: _Function(fn.fn, both)
    new = SiteMap(sites)
    return lambda fn: _Function(fn, new)


def of_module(
    like: Any,
    sites: SitesByMethod | None,
    changes: Mapping[str, Callable[[Any], Any]] = types.MappingProxyType({}),
) -> Callable[[Any], Any]:
    """What copies a module of the structure of this one, with these sites added, and
    with changes in its fields.
    """
    cls: Any = type(like)
    original = original_class(like)
    if sites is not None:
        sites = _with(_dict(like).get(_ATTRIBUTE, {}), sites)
        cls = _subclass(original, sites)
    elif cls is not original:
        sites = _dict(like)[_ATTRIBUTE]
    fields = (f.name for f in dataclasses.fields(original))
    names = (*fields, *_compat.WRAPPER_FIELD_NAMES)

    def copied(node: Any) -> Any:
        new = object.__new__(cls)
        values, attributes = _dict(node), _dict(new)
        for name in names:
            if name in values:  # some were never set
                attributes[name] = values[name]
        for name, change in changes.items():
            attributes[name] = change(values[name])
        if sites is not None:
            attributes[_ATTRIBUTE] = sites
            attributes[_CALLS] = active_calls()
        return new

    return copied


def _replaced(self: Any, **changes: Any) -> Any:
    """What `dataclasses.replace` makes of a module with sites."""
    new = type(self).__peex_original__(**changes)
    return of_module(new, _dict(self)[_ATTRIBUTE])(new)


def original_class(node: Any) -> type:
    """The class of a module as the user knows it."""
    return getattr(type(node), "__peex_original__", type(node))


def without_sites(like: Any, node: Any) -> Any:
    """A module or function in the structure of an instrumented one, but without sites.
    (`None` stands for the function where only arrays were kept.)
    """
    if isinstance(like, _Function) and (node is None or is_function(node)):
        fn = like.fn if node is None else node
        return _Function(fn, SiteMap(dict.fromkeys(like.sites, ())))
    if isinstance(like, Instrumented) and type(node) is original_class(like):
        return of_module(node, dict.fromkeys(_dict(like)[_ATTRIBUTE], ()))(node)
    return node


def strip(value: Any) -> Any:
    """A value that the model returned, with every module in it as the user knows it.
    What has none inside is the very object.
    """
    holds = lambda x: isinstance(x, (Instrumented, _Function)) or is_unsorted(x)
    leaves = jtu.tree_leaves(value, is_leaf=holds)
    return _stripped(value) if any(map(holds, leaves)) else value


def _stripped(value: Any) -> Any:
    if isinstance(value, _Function):
        return value.fn
    if isinstance(value, Instrumented):
        plain = object.__new__(type(value).__peex_original__)
        _dict(plain).update(_dict(value))
        for name in (_ATTRIBUTE, _CALLS):
            del _dict(plain)[name]
        children, structure = one_level(plain)
        return with_children(plain, structure, [_stripped(x) for x in children])
    return each_child(value, _stripped)
