"""Keys: how the path of a place is written, and taken apart again.

The components of a path are joined by dots. A key of a dict may hold dots itself, as in
models ported from PyTorch: then it is several components. Where something else has the
name that this would give, it is one component, in quotes.
"""

import collections
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .._engine.site import INPUT


Key = tuple[str, ...]

# What is behind the key of a module in longer ones.
_MARKS = ".:/#"
_DOT = r'\.(?=(?:[^"]*"[^"]*")*[^"]*$)'
_CALL = r"#(\d+)$"


def split(text: str) -> Key:
    """The components of a key or pattern: at the dots that aren't in quotes."""
    if text in (".", ""):
        return ()
    return tuple(re.split(_DOT, text)) if '"' in text else tuple(text.split("."))


def split_method(text: str) -> tuple[str, str]:
    """The path and the method of a module's key, the latter `""` if it has none."""
    if '"' not in text:
        path, _, method = text.partition(":")
        return path, method
    path, colon, method = text.rpartition(":")
    return (path, method) if colon and '"' not in method else (text, "")


def split_input(text: str) -> tuple[str, bool]:
    """A key, and whether it is that of the arguments of a module."""
    return text.removesuffix(INPUT), text.endswith(INPUT)


def split_call(text: str) -> tuple[str, int | None]:
    """A key, and which further call of the module it is, if it says so."""
    found = re.search(_CALL, text)
    return (text[: found.start()], int(found[1])) if found else (text, None)


def components(entries: Sequence[Any]) -> list[Key]:
    """For each child of a pytree node, by its JAX key, the components of its name."""
    texts = [_text(entry) for entry in entries]
    names = collections.Counter(texts)
    return [
        (f'"{text}"',)
        if isinstance(getattr(entry, "key", None), str) and _is_ambiguous(text, names)
        else tuple(text.split("."))
        for entry, text in zip(entries, texts, strict=True)
    ]


def _text(entry: Any) -> str:
    for attribute in ("name", "key", "idx"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)


def _is_ambiguous(text: str, names: Mapping[str, int]) -> bool:
    """Whether a key of a dict among these names would be taken for something else."""
    if "" in text.split(".") or names[text] > 1:
        return True
    return any(text[:i] in names for i, mark in enumerate(text) if mark in _MARKS)


def input_key(site: str, number: int) -> str:
    """The key in a log of the arguments of a call, by its site and which of its calls
    it is.
    """
    return f"{site}:in#{number}" if number else f"{site}:in"
