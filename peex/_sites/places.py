"""The places of a model where a hook can be put."""

import dataclasses
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
