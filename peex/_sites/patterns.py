"""Patterns: which keys they match, and which hook or log acts at a key by them."""

import difflib
import fnmatch
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from .._errors import SiteNotFoundError
from .keys import Key, split, split_call, split_input, split_method


def nearest(key: str, keys: Iterable[str], n: int = 20) -> str:
    """The keys, for an error message: those first that are most like `key`. From `n`
    on they are only counted.
    """
    keys = list(keys)
    close = difflib.get_close_matches(key.replace("*", ""), keys, n=5, cutoff=0.3)
    ordered = list(dict.fromkeys([*close, *keys]))
    more = f", and {len(ordered) - n} more" if len(ordered) > n else ""
    return ", ".join(map(repr, ordered[:n])) + more or "(there are none)"


def with_places(name: str, places: Mapping[str, str]) -> str:
    """All names, those most like `name` first, each with its place in the source."""
    close = difflib.get_close_matches(name, places, n=len(places) or 1, cutoff=0.3)
    names = dict.fromkeys([*close, *places])
    return ", ".join(f"{n!r} ({places[n]})" for n in names) or "(there are none)"


def splits(pattern: str) -> Iterator[tuple[str, str, int | None]]:
    """Where a pattern may end and the name of a value inside begin. A key of a dict may
    hold slashes itself.
    """
    for i, character in enumerate(pattern):
        if character == "/":
            name, _, index = pattern[i + 1 :].rpartition("#")
            if name and index.isdigit():
                yield pattern[:i], name, int(index)
            elif pattern[i + 1 :]:
                yield pattern[:i], pattern[i + 1 :], None


def matches(pattern: Key, key: Key) -> bool:
    """Whether a dotted pattern, in components, matches a key."""
    return filled(pattern, key) is not None


def filled(pattern: Key, key: Key) -> Key | None:
    """The components of a key that the wildcards of a pattern stand for; `None` if it
    doesn't match.
    """
    if not pattern:
        return None if key else ()
    head, *rest = pattern
    tail = tuple(rest)
    if head == "**":
        for i in range(len(key) + 1):
            found = filled(tail, key[i:])
            if found is not None:
                return (*key[:i], *found)
        return None
    if not key or not (key[0] == head or fnmatch.fnmatchcase(key[0], head)):
        return None
    found = filled(tail, key[1:])
    return found if found is None or key[0] == head else (key[0], *found)


def first_match(what: str, fn: Any, key: str, suffix: str) -> str | None:
    """What acts at one key, as `assign` says."""
    if not isinstance(fn, dict):
        return None if fn is None else what
    for pattern, one in fn.items():
        if key_matches(pattern, key, suffix):
            return None if one is None else f"{what}[{pattern!r}]"
    return None


def assign(
    what: str, fn: Any, keys: Mapping[str, str], probed: Container[str] = ()
) -> dict[str, str | None]:
    """Which hook or log acts at which key, by name (see `by_name` in
    `_wrappers/plan.py`). `keys` has with each what is behind the key of its module (see
    `Chosen.suffix`). Of a dict by pattern the first match wins; its value may be
    `None`, for nothing.

    **Raises:** `SiteNotFoundError` where a pattern matches none of the chosen sites,
    unless it is one of `probed`, for values that are met in a run only.
    """
    for pattern in fn if isinstance(fn, dict) else ():
        found = any(key_matches(pattern, k, suffix) for k, suffix in keys.items())
        if not found and pattern not in probed:
            raise SiteNotFoundError(
                f"The pattern {pattern!r} of `{what}` matches none of the chosen "
                f"sites. Nearest keys: {nearest(pattern, keys)}. If it is another "
                "place of the model, name it in `where` too, as in "
                f"`where={list(fn)!r}`."
            )
    return {k: first_match(what, fn, k, suffix) for k, suffix in keys.items()}


def key_matches(pattern: str, key: str, suffix: str) -> bool:
    """Whether a pattern matches a key, which ends with `suffix` if it is that of a
    value inside of a module.
    """
    if pattern == key:
        return True
    if not suffix:
        return _module_matches(pattern, key)
    module = key.removesuffix(suffix)
    ends = {suffix, suffix.partition("#")[0]}
    return any(
        any(fnmatch.fnmatchcase(end, pattern[i:]) for end in ends)
        and _module_matches(pattern[:i], module)
        for i, character in enumerate(pattern)
        if character == "/"
    )


def _module_matches(pattern: str, key: str) -> bool:
    if pattern == key:
        return True
    (pattern, call), (key, key_call) = split_call(pattern), split_call(key)
    (pattern, of_input), (key, key_of_input) = split_input(pattern), split_input(key)
    if of_input != key_of_input:
        return False
    path, method = split_method(pattern)
    key_path, key_method = split_method(key)
    same = method in ("*", key_method) and call in (None, key_call)
    return same and (path == key_path or matches(split(path), split(key_path)))


def logged_matches(pattern: str, key: str) -> bool:
    """Whether a pattern matches a key of a log, of which nothing else is known: what it
    has behind a slash is taken for the name of a value inside of a module.
    """
    return key_matches(pattern, key, key[key.index("/") :] if "/" in key else "")
