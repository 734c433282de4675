"""How a log is shown: its shapes, as Equinox shows a module, and as a table."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._engine.codec import Encoded
from .._show.folded import folded, MOST
from .._table import Column, Table
from .._text import shown_arrays
from .keys import leaf_name
from .statistics import known, statistics


def document(entries: Mapping[str, Any], counts: Any, kwargs: dict[str, Any]) -> Any:
    """A log for wadler_lindig, by which Equinox shows modules. Inside of something
    else, as a hook, only how many entries it has.
    """
    # Only that itself calls this.
    import wadler_lindig as wl

    inside = len(kwargs.get("seen_ids") or ()) > 1
    if inside:
        return wl.TextDoc(f"Log({_how_many(entries)})")

    def array(x: Any) -> Any:
        x = _seen(x)
        is_shape = isinstance(x, jax.ShapeDtypeStruct)
        return wl.array_summary(x.shape, x.dtype.name, None) if is_shape else x

    arrays = lambda entry: jtu.tree_map(array, entry, is_leaf=_is_encoded)
    shown = {name: arrays(entries[keys[0]]) for name, keys in _rows(entries)}
    text = wl.TextDoc("Log(") + wl.pdoc(shown, **kwargs)
    if counts:
        text += wl.TextDoc(", counts=") + wl.pdoc(counts, **kwargs)
    return text + wl.TextDoc(")")


def table(entries: Mapping[str, Any], counts: Mapping[str, Any]) -> Table:
    """A row for each array of each entry (as a log holds them). Of traced values, only
    their shapes are known.
    """
    names = ("mean", "std", "min", "max", "non-finite", "ran")
    rows: list[tuple[list[str], list[str]]] = []
    note = None
    for name, keys in _rows(entries):
        times = ""
        if len(keys) > 1:
            times = f" x{len(keys)}"
            note = note or f"One row for {len(keys)}: `{_stacked(name)}` has each."
        ran = _ran([counts[key] for key in keys if key in counts])
        # For each array of one entry, that of all of them.
        columns = zip(*(_leaves(entries[key]) for key in keys), strict=True)
        for column in [*columns] or [[((), None)]]:
            path, leaf = column[0]
            texts = [f"{leaf_name(name, path)}{times}", _shape(leaf)]
            rows.append((texts, [*_numbers([known(x) for _, x in column]), ran]))
    shown = [i for i in range(len(names)) if any(numbers[i] for _, numbers in rows)]
    return Table(
        [
            *(Column(name, flexible=True) for name in ("key", "shape")),
            *(Column(names[i], right=True) for i in shown),
        ],
        [(*texts, *(numbers[i] for i in shown)) for texts, numbers in rows],
        [_how_many(entries), *([note] if note else [])],
    )


def _how_many(entries: Mapping[str, Any]) -> str:
    return f"{len(entries):,} {'entry' if len(entries) == 1 else 'entries'}"


def _rows(entries: Mapping[str, Any]) -> Sequence[tuple[str, tuple[str, ...]]]:
    """Names, and the keys that each stands for."""
    if len(entries) <= MOST:
        return [(key, (key,)) for key in entries]
    shapes = lambda entry: tuple((path, _shape(leaf)) for path, leaf in _leaves(entry))
    return folded({key: shapes(entry) for key, entry in entries.items()})


def _stacked(name: str) -> str:
    """What has each of the entries of one row."""
    pattern = re.sub(r"\{[\d.,]+\}", "*", re.sub(r"#\{[\d.,]+\}", "", name))
    return f"log.stack({pattern!r})"


def _is_encoded(x: Any) -> bool:
    return isinstance(x, Encoded)


def _leaves(entry: Any) -> list[tuple[Any, Any]]:
    return jtu.tree_flatten_with_path(entry, is_leaf=_is_encoded)[0]


def _seen(leaf: Any) -> Any:
    """Integers of a backward log as their shape and dtype."""
    if not isinstance(leaf, Encoded) or not hasattr(leaf.parts, "shape"):
        return leaf
    return jax.ShapeDtypeStruct(leaf.parts.shape[:-1], leaf.dtype)


def _shape(leaf: Any) -> str:
    leaf = _seen(leaf)
    if leaf is None:
        return "-"
    is_array = hasattr(leaf, "dtype") and hasattr(leaf, "shape")
    return shown_arrays([leaf]) if is_array else type(leaf).__name__


def _numbers(arrays: Sequence[np.ndarray | None]) -> list[str]:
    """Mean, standard deviation, least, greatest, and how many aren't finite."""
    there = [x for x in arrays if x is not None]
    if len(there) < len(arrays):
        return [""] * 5
    found = statistics(there)
    bad = f"{found.bad:,}"
    if found.count == 0:
        return [""] * 4 + [bad]
    of_integers = not jnp.issubdtype(there[0].dtype, jnp.inexact)
    ends = [str(int(x)) if of_integers else f"{x:.4g}" for x in (found.low, found.high)]
    return [f"{found.mean:.4g}", f"{found.std:.4g}", *ends, bad]


def _ran(counts: Sequence[Any]) -> str:
    """How often a site ran, where that depends on the run."""
    there = [known(count) for count in counts]
    if not there or any(count is None for count in there):
        return ""
    return f"{sum(int(np.sum(count)) for count in there if count is not None)}x"
