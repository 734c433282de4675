"""The places of a model where a hook can be put."""

import dataclasses
import inspect
from typing import Any, NamedTuple

import equinox as eqx

from .keys import Key
from .walk import children, is_array_leaf, is_function, is_module, stands_in


class Place(NamedTuple):
    """Somewhere in a model where a hook can be put.

    - `called`: whether it is a module that can be called (the model itself: by its
        entry).
    - `is_leaf`: whether no such module is inside.
    """

    key: Key
    node: Any
    called: bool
    is_leaf: bool

    @property
    def name(self) -> str:
        return ".".join(self.key) or "."


def public_methods(node: Any) -> tuple[str, ...]:
    """The public methods that the class of a module has, other than `__call__` and
    those of Equinox; of what isn't a module, none.
    """
    cls = type(node)
    if not isinstance(node, eqx.Module):
        return ()
    fields = {f.name for f in dataclasses.fields(node)}
    names = set(dir(cls)) - set(dir(eqx.Module)) - fields
    public = (name for name in sorted(names) if not name.startswith("_"))
    return tuple(name for name in public if _is_method(cls, name))


def _is_method(cls: type, name: str) -> bool:
    found = inspect.getattr_static(cls, name)
    unusual = isinstance(found, classmethod | staticmethod | property | type)
    return callable(getattr(cls, name)) and hasattr(found, "__get__") and not unusual


def static_modules(model: Any) -> list[Place]:
    """The leaf modules in static fields, which JAX (and so a hook) doesn't see into."""
    found: list[Place] = []

    def visit(key: Key, node: Any) -> None:
        if isinstance(node, eqx.Module) and not stands_in(node):
            for field in dataclasses.fields(node):
                if field.metadata.get("static", False) and hasattr(node, field.name):
                    value = getattr(node, field.name)
                    found.extend(
                        p._replace(key=(*key, field.name, *p.key))
                        for p in places(value, "__call__")
                        if p.is_leaf
                    )
        for k, child in children(key, node):
            visit(k, child)

    visit((), model)
    return found


def places(model: Any, root_method: str) -> list[Place]:
    """All modules and functions of a model, parents first."""
    found: list[Place] = []

    def visit(key: Key, node: Any) -> bool:
        if is_array_leaf(node):
            return False
        here = len(found)
        callable_inside = False
        for k, child in children(key, node):
            callable_inside |= visit(k, child)
        callable_ = is_module(node)
        module = callable_ or (isinstance(node, eqx.Module) and not stands_in(node))
        entry = module and key == () and root_method != "__call__"
        if callable_ or entry:
            found.insert(here, Place(key, node, True, not callable_inside))
            return True
        if module or is_function(node):
            # Not a site by itself; but a method of it may be, or the function.
            found.insert(here, Place(key, node, False, False))
        return callable_inside

    visit((), model)
    return found
