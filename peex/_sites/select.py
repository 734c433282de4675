"""Choosing sites: from what a user writes as `where` to the keys of a model.

Everything here looks at the structure of the model alone, when the wrapper is built, so
that what matches nothing is an error at once.
"""

import dataclasses
import functools as ft
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx

from .._engine.values import one_level, with_children
from .._errors import SiteNotFoundError
from .chosen import Chosen, is_wild
from .keys import Key, split, split_call, split_input, split_method
from .not_found import not_found, refuse_node, returns_nodes
from .patterns import filled, key_matches, matches, splits
from .places import Place, places
from .walk import is_function, unwrap


def select(
    model: Any, all_places: list[Place], where: Any, root_method: str
) -> tuple[tuple[Chosen, ...], tuple[tuple[str, tuple[Chosen, ...]], ...]]:
    """The sites that `where` chooses, in the order of the model, and for each thing
    that was asked for explicitly, what it chose (so that it can be checked to fire).
    `all_places` are those of the model.

    **Raises:** `SiteNotFoundError` where a part of `where` chooses nothing.
    """
    listed = [where] if isinstance(where, type) else where
    listed = listed if isinstance(listed, list | tuple | set | frozenset) else []
    classes = {part.__name__: part for part in listed if isinstance(part, type)}
    if where is None:
        chosen = [default_of(p, root_method) for p in all_places if p.is_leaf]
        return tuple(chosen), ()
    if isinstance(where, str):
        groups = [(where, _by_pattern(all_places, where, root_method))]
    elif isinstance(where, type):
        groups = [(where.__name__, _by_class(all_places, where, root_method))]
    elif isinstance(where, list | tuple | set | frozenset):
        groups = []
        for part in where:
            if not isinstance(part, str | type):
                refuse_node(part, all_places)
                raise TypeError(
                    "`where` is a pattern, a class, a list of these, or a function "
                    f"from the model to its nodes; got a list with {part!r} in it."
                )
            if isinstance(part, str):
                groups.append((part, _by_pattern(all_places, part, root_method)))
            else:
                chosen = _by_class(all_places, part, root_method)
                groups.append((part.__name__, chosen))
    elif isinstance(where, Mapping):
        groups = _by_name(all_places, where, root_method)
    elif callable(where):
        refuse_node(where, all_places)
        groups = _by_function(all_places, where, model, root_method)
    else:
        raise TypeError(
            "`where` is a pattern, a class, a list of these, or a function from the "
            f"model to its nodes; got {where!r}."
        )
    if not groups:
        raise SiteNotFoundError(
            "`where` is empty, so it matches nothing in the model. `where=None` "
            "chooses all leaf modules."
        )
    for name, chosen in groups:
        if not chosen:
            raise SiteNotFoundError(not_found(name, all_places, model, classes))
    wanted = {c for _, chosen in groups for c in chosen}
    # What is wanted of all calls isn't wanted of one of them once more.
    wanted = {
        c for c in wanted if dataclasses.replace(c, call=None) not in wanted - {c}
    }
    order = {p.name: i for i, p in enumerate(all_places)}
    ordered = sorted(
        wanted,
        key=lambda c: (
            *(order[c.place], c.method, not c.is_input, c.suffix, c.call or 0),
            c.alias or "",
        ),
    )
    return tuple(ordered), tuple((name, tuple(c)) for name, c in groups)


def default_of(place: Place, root_method: str) -> Chosen:
    """A place, by the method that is called."""
    return Chosen(place.name, root_method if place.key == () else "__call__")


def _by_class(all_places: list[Place], cls: Any, root_method: str) -> list[Chosen]:
    return [
        default_of(p, root_method)
        for p in all_places
        if isinstance(p.node, cls) and p.called
    ]


def _by_function(
    all_places: list[Place], where: Callable, model: Any, root_method: str
) -> list[tuple[str, list[Chosen]]]:
    # Called on a copy in which no two places share an object: as with
    # `equinox.tree_at`, one of two tied layers, or of two equal activations, can be
    # named. Nodes that were found in the model itself are known too.
    model = unwrap(model)
    copy = _copied(model)
    copies = places(copy, root_method)
    with returns_nodes():
        nodes = where(copy)
    if not isinstance(nodes, list | tuple):
        nodes = [nodes]
    groups = []
    for i, node in enumerate(nodes):
        at = [c.node is node for c in copies]
        if not any(at):
            at = [p.node is node for p in all_places]
        chosen = [
            default_of(p, root_method)
            for p, here in zip(all_places, at, strict=True)
            if here and (p.called or is_function(p.node))
        ]
        if not chosen:
            raise SiteNotFoundError(
                f"Node {i} that `where` returned, of type {type(node).__name__}, isn't "
                "a callable module or a function of the model. Return nodes of the "
                "model itself, as in `where=lambda m: [m.layers[0], m.head]`."
            )
        groups.append((chosen[0].key(root_method), chosen))
    return groups


def _copied(node: Any) -> Any:
    children, structure = one_level(node)
    if len(children) == 1 and children[0] is node:
        return ft.partial(node) if is_function(node) else node
    return with_children(node, structure, [_copied(x) for x in children])


def _by_name(
    all_places: list[Place], where: Mapping[Any, Any], root_method: str
) -> list[tuple[str, list[Chosen]]]:
    """As a dict chooses, from names of the user's own to patterns and classes."""
    groups = []
    for name, part in where.items():
        if not isinstance(name, str) or not name or "#" in name or "/" in name:
            raise TypeError(
                "A name of your own in `where` is a string without '#', which counts "
                "calls, and '/', which is in front of values inside of a module; got "
                f"{name!r}. Write `where={{'resid': 'layers.*'}}`."
            )
        if isinstance(part, str):
            shown, chosen = part, _by_pattern(all_places, part, root_method)
        elif isinstance(part, type):
            shown, chosen = part.__name__, _by_class(all_places, part, root_method)
        else:
            raise TypeError(
                "`where` is a pattern, a class, a list of these, or a dict from names "
                "of your own to patterns and classes, as `{'resid': 'layers.*'}`; got "
                f"{part!r} for the name {name!r}."
            )
        aliases = (".".join((name, *_told_apart(part, c))) for c in chosen)
        pairs = zip(chosen, aliases, strict=True)
        groups.append((shown, [dataclasses.replace(c, alias=a) for c, a in pairs]))
    keys = [c.key(root_method) for _, chosen in groups for c in chosen]
    for key in keys:
        if keys.count(key) > 1:
            raise TypeError(
                f"`where` gives the name {key!r} to two sites, and a log has one entry "
                "of each name. Write other names, or a pattern for each site."
            )
    return groups


def _told_apart(part: Any, chosen: Chosen) -> Key:
    """What is behind a name in the keys of the sites that it stands for: all that the
    wildcards of its pattern stand for; of a class, the key of the module.
    """
    key = split(chosen.place)
    if not isinstance(part, str):
        return key
    if chosen.inside is not None:
        part = next(around for around, name, _ in splits(part) if name == chosen.inside)
    if not is_wild(part):
        return ()
    part, _ = split_call(part)
    part, _ = split_input(part)
    return filled(split(split_method(part)[0]), key) or ()


def _by_pattern(
    all_places: list[Place], pattern: str, root_method: str
) -> list[Chosen]:
    chosen = _calls_by_pattern(all_places, pattern, root_method)
    for around, name, index in splits(pattern):
        if chosen:
            break
        modules = _calls_by_pattern(all_places, around, root_method)
        chosen = [
            dataclasses.replace(m, inside=name, index=index)
            for m in modules
            if not m.is_input
        ]
    return chosen


def _calls_by_pattern(
    all_places: list[Place], pattern: str, root_method: str
) -> list[Chosen]:
    """Modules; or, as in `"cell:in"`, the arguments of each, or as in `"cell#1"`, one
    further call.
    """
    chosen = _modules_by_pattern(all_places, pattern, root_method)
    module, call = split_call(pattern)
    module, is_input = split_input(module)
    if chosen or module == pattern:
        return chosen
    modules = _modules_by_pattern(all_places, module, root_method)
    return [dataclasses.replace(m, call=call, is_input=is_input) for m in modules]


def _modules_by_pattern(
    all_places: list[Place], pattern: str, root_method: str
) -> list[Chosen]:
    for place in all_places:
        # A key as it is listed is that place, whatever signs it holds.
        method = pattern.removeprefix(f"{place.name}:")
        if pattern == place.name and (place.called or is_function(place.node)):
            return [default_of(place, root_method)]
        if method != pattern and _has_method(place, method):
            return [Chosen(place.name, method)]
    path, method = split_method(pattern)
    parts = split(path)
    chosen = []
    for place in all_places:
        if not matches(parts, place.key):
            continue
        if method == "*":
            chosen += [Chosen(place.name, name) for name in _methods(place)]
        elif method:
            if _has_method(place, method):
                chosen.append(Chosen(place.name, method))
        elif place.called:
            chosen.append(default_of(place, root_method))
        elif is_function(place.node) and parts and parts[-1] not in ("*", "**"):
            # Functions are sites only where they are named.
            chosen.append(default_of(place, root_method))
    return chosen


def _has_method(place: Place, method: str) -> bool:
    is_module = isinstance(place.node, eqx.Module)
    return is_module and callable(getattr(type(place.node), method, None))


def _methods(place: Place) -> list[str]:
    """The methods that the class of a module has, apart from Equinox's own."""
    if not isinstance(place.node, eqx.Module):
        return []
    cls = type(place.node)
    fields = {field.name for field in dataclasses.fields(place.node)}
    names = {
        name: None
        for base in reversed(cls.__mro__)
        if base not in eqx.Module.__mro__
        for name in vars(base)
        if name == "__call__" or not (name.startswith("__") or name in fields)
    }
    is_method = lambda found: callable(found) and not isinstance(found, type)
    return [name for name in names if is_method(getattr(cls, name, None))]


def probe_patterns(
    model: Any, fn: Any, keys: Mapping[str, str], root_method: str
) -> list[str]:
    """The patterns of a dict of hooks or logs that only probes can match."""
    if not isinstance(fn, dict):
        return []
    all_places = places(model, root_method)
    return [
        pattern
        for pattern in fn
        if not any(key_matches(pattern, k, suffix) for k, suffix in keys.items())
        and any(
            _modules_by_pattern(all_places, around, root_method)
            for around, _, _ in splits(pattern)
        )
    ]
