"""What is said where `where` chooses nothing: what may have been meant, and what there
is.
"""

import contextlib
import difflib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from .keys import Key, split
from .patterns import matches, nearest
from .places import Place, static_modules
from .walk import children, is_array_leaf, is_function


def not_found(
    name: str, all_places: Sequence[Place], model: Any, classes: Mapping[str, type]
) -> str:
    """That a part of `where` matches nothing. `classes` are those parts that are
    classes, by their names.
    """
    pattern = split(name)
    for place in static_modules(model):
        if matches(pattern, place.key) or isinstance(place.node, classes.get(name, ())):
            return (
                f"`where={name!r}` matches the module {place.name!r}, but this is in a "
                "static field, which JAX and so a hook doesn't see into. Declare the "
                "field without `eqx.field(static=True)`."
            )
    nothing = f"`where={name!r}` matches nothing in the model."
    if name in classes:
        return f"{nothing} {_of_class(classes[name], all_places)}"
    keys = [p.name for p in all_places if p.called or is_function(p.node)]
    meant = (
        _array(name, model)
        or _modules_inside(pattern, name, all_places)
        or _value_inside(pattern, all_places, keys)
    )
    return (
        f"{nothing}{meant} Nearest keys: {nearest(name, keys)}. A pattern is a dotted "
        "path in which `*` stands for one component and `**` for any number, as in "
        "'layers.*.attn'; `where='**'` is every callable module, and 'attn/softmax' a "
        "value inside of one."
    )


def _of_class(cls: type, all_places: Sequence[Place]) -> str:
    for place in all_places:
        if isinstance(place.node, cls) and not place.called:
            method = next(iter(_methods(place.node)), "method")
            return (
                f"{place.name!r} is one, but isn't called itself: name the method that "
                f"is, as in `where='{place.name}:{method}'`."
            )
    there = dict.fromkeys(type(p.node).__name__ for p in all_places if p.called)
    return f"The classes of its callable modules are: {', '.join(there) or 'none'}."


def _methods(module: Any) -> list[str]:
    """The public methods that the class of a module defines."""
    cls = type(module)
    defined = [name for name in vars(cls) if not name.startswith("_")]
    return [name for name in defined if inspect.isfunction(getattr(cls, name))]


def _array(name: str, model: Any) -> str:
    """If the name is that of an array."""
    if not is_array_leaf(_node_at(split(name), model)):
        return ""
    return (
        f" {name!r} is an array, of which nothing is called: its gradient is in that "
        "of the model. Hook the module that reads it."
    )


def _node_at(key: Key, model: Any) -> Any:
    node, here = model, ()
    while here != key:
        for k, child in children(here, node):
            if key[: len(k)] == k:
                here, node = k, child
                break
        else:
            return None
    return node


def _modules_inside(pattern: Key, name: str, all_places: Sequence[Place]) -> str:
    """If the pattern is of something that only holds modules."""
    called = [p for p in all_places if p.called]
    for more in ("*", "**"):
        inside = [p for p in called if matches((*pattern, more), p.key)]
        if inside:
            modules = (p.node for p in all_places if p.key == pattern)
            methods = [method for module in modules for method in _methods(module)]
            or_method = f"; or '{name}:{methods[0]}' for a method" if methods else ""
            return (
                " What it names isn't called, but holds modules that are: write "
                f"'{name}.{more}' for these, as {inside[0].name!r}{or_method}."
            )
    return ""


def _value_inside(
    pattern: Key, all_places: Sequence[Place], keys: Sequence[str]
) -> str:
    """If the pattern may be of a value inside of a forward pass."""
    if not pattern or not pattern[-1].isidentifier():
        return ""
    *around, name = pattern
    modules = [p for p in all_places if p.called and matches(tuple(around), p.key)]
    is_operation = any(hasattr(place, name) for place in (jax.nn, jnp, lax))
    like = difflib.get_close_matches(".".join(pattern), keys, cutoff=0.6)
    if not modules or (like and not is_operation):
        return ""
    here = f"{'.'.join(around) or '.'}/{name}"
    return (
        f" If {name!r} is a value inside of a forward pass, write {here!r} (of the "
        f"module {modules[0].name!r}) or '**/{name}' (of any module)."
    )


def refuse_node(where: Any, all_places: Sequence[Place]) -> None:
    """Refuses a module, or a function to be hooked, in the place of its name.

    **Raises:** `TypeError`.
    """
    name = getattr(where, "__name__", type(where).__name__)
    here = [p.name for p in all_places if p.node is where]
    if here:
        instead = f"Write `where={here[0]!r}`, or a `lambda m: ...` that returns it."
    elif isinstance(where, eqx.Module) and not isinstance(where, eqx.Partial):
        instead = (
            "It isn't part of this model, of which a node may be named, or returned, "
            "as by `where=lambda m: m.layers[0]`."
        )
    elif (getattr(where, "__module__", None) or "").startswith("jax."):
        instead = (
            f"Write `where='./{name}'` for what it computes in the model's own forward "
            f"pass, `where='**/{name}'` for that of any module."
        )
    else:
        return
    kind = "a module" if isinstance(where, eqx.Module) else "a function to be hooked"
    raise TypeError(
        f"`where` is a pattern, a class, a list of these, or a function from the model "
        f"to its nodes; got {kind}, {name}. {instead}"
    )


@contextlib.contextmanager
def returns_nodes() -> Iterator[None]:
    """Says what a function that is `where` is called with, if it fails."""
    try:
        yield
    except Exception as error:
        error.add_note(
            "`where` was given a function: it is called with the model, and returns "
            "nodes of it, as `lambda m: [m.layers[0], m.head]`."
        )
        raise
