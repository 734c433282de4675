"""What entries of logs are made of, level by level; and their leaves as numbers."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from .._errors import LogValueError
from .statistics import known


def is_record(node: Any) -> bool:
    """A named tuple or a module: it has a class of its own, and fields."""
    return isinstance(node, eqx.Module) or is_named_tuple(type(node))


def is_named_tuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def fields(record: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of a named tuple or a module: those that are parts of the pytree, and those that
    are static.
    """
    if isinstance(record, tuple):
        return dict(zip(record._fields, record, strict=True)), {}  # pyright: ignore[reportAttributeAccessIssue]
    parts, static = {}, {}
    for field in dataclasses.fields(record):
        if field.name in vars(record):
            side = static if field.metadata.get("static", False) else parts
            side[field.name] = vars(record)[field.name]
    return parts, static


def as_plain(node: Any, name: str) -> Any:
    """A pytree as dicts, lists and numbers, as for JSON."""
    if node is None or isinstance(node, bool | int | float | str):
        return node
    if is_record(node):
        parts, _ = fields(node)
        return {k: as_plain(v, f"{name}/{k}") for k, v in parts.items()}
    if isinstance(node, dict):
        return {_text(k): as_plain(v, f"{name}/{_text(k)}") for k, v in node.items()}
    if isinstance(node, list | tuple):
        return [as_plain(v, f"{name}/{i}") for i, v in enumerate(node)]
    inside, _ = jtu.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    if len(inside) != 1 or inside[0][1] is not node:
        simple = lambda path: jtu.keystr(path, simple=True, separator="/")
        named = {simple(path): v for path, v in inside}
        return {k: as_plain(v, f"{name}/{k}") for k, v in named.items()}
    numbers = numbers_of(node, name, "to_dict()")
    if np.iscomplexobj(numbers):
        return {"real": np.real(numbers).tolist(), "imag": np.imag(numbers).tolist()}
    return numbers.tolist()


def _text(key: Any) -> str:
    """A key of a dict. (JSON has no others than texts.)"""
    return key if isinstance(key, str) else str(key)


def is_random_key(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)


def numbers_of(leaf: Any, name: str, call: str) -> np.ndarray:
    """The numbers of a leaf of a log; of random keys, their data. `call` is what was
    asked for, for the messages.

    **Raises:** `LogValueError` where they aren't known, or it is no array.
    """
    if is_random_key(leaf) and isinstance(leaf, jax.Array):
        leaf = leaf if isinstance(leaf, Tracer) else jax.random.key_data(leaf)
    numbers = known(leaf)
    if numbers is not None:
        return numbers
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise LogValueError(
            f"`log.{call}` takes a log of arrays, but {name!r} is of type "
            f"{type(leaf).__name__}. Leave it out, as in "
            f"`log.select([...]).{call}`, or put an array in its place."
        )
    why, instead = "it is a shape alone", f"Run the model, and write `log.{call}` then."
    if isinstance(leaf, Tracer):
        why = "JAX is tracing"
        instead = (
            "Return the log from the function that is transformed, and write "
            f"`log.{call}` outside of it."
        )
    elif isinstance(leaf, jax.Array) and leaf.is_deleted():
        why = "its array was donated or deleted"
        instead = f"Write `log.{call}` before, or don't donate the log."
    elif isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        why = "another process holds a part of it"
        instead = (
            "Gather it first, as by `jax.experimental.multihost_utils."
            "process_allgather(log, tiled=True)`, or reduce it where it is."
        )
    raise LogValueError(
        f"`log.{call}` needs the numbers of the log, but those of {name!r} aren't "
        f"known here: {why}. {instead}"
    )
