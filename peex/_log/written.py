"""A log as a file in the format of safetensors
(https://huggingface.co/docs/safetensors), and back.

Each array is a tensor of the file, by its name in the log, so that others can read it.
How the entries are made of them, the order, and the axes are JSON in its metadata.
"""

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._errors import LogValueError
from .axes import Axis
from .containers import fields, is_named_tuple, is_random_key, is_record, numbers_of
from .structure import axes_as_plain, axes_of_plain


_VERSION = 1
# Those that every version of safetensors hands back to NumPy. Others are written as
# their bytes.
_SIZES = ("8", "16", "32", "64")
_DTYPES = {
    *("bool", "float16", "bfloat16", "float32", "float64"),
    *(f"{kind}{size}" for kind in ("int", "uint") for size in _SIZES),
}


def write(
    path: str | os.PathLike[str],
    entries: Mapping[str, Any],
    counts: Mapping[str, Any],
    axes: Mapping[str, tuple[Axis, ...]],
) -> None:
    """See `Log.save`."""
    try:
        from safetensors.numpy import save_file
    except ImportError as error:
        raise _not_installed("log.save") from error
    tensors = _Tensors()
    described = {
        "version": _VERSION,
        "entries": [[key, tensors.add(key, x)] for key, x in entries.items()],
        "counts": [[key, tensors.add(f"{key}:count", x)] for key, x in counts.items()],
        "axes": axes_as_plain(axes),
    }
    save_file(tensors.arrays, path, {"peex.Log": json.dumps(described)})


def read(
    path: str | os.PathLike[str],
) -> tuple[dict[str, Any], dict[str, Any], dict[str, tuple[Axis, ...]]]:
    """See `Log.load`."""
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise _not_installed("px.Log.load") from error
    with safe_open(path, "np") as file:
        text = (file.metadata() or {}).get("peex.Log")
        names = list(file.keys())
        tensors = {name: file.get_tensor(name) for name in names}
    if text is None:  # of another library
        return {name: _as_jax(x) for name, x in tensors.items()}, {}, {}
    described = json.loads(text)
    if described["version"] > _VERSION:
        raise LogValueError(
            f"The file {os.fspath(path)!r} was written by a later version of peex: "
            f"version {described['version']} of this format, of which this one knows "
            f"{_VERSION}. Install that, by `pip install --upgrade peex`."
        )
    make = lambda listed: {key: _made(node, key, tensors) for key, node in listed}
    entries, counts = make(described["entries"]), make(described["counts"])
    return entries, counts, axes_of_plain(described["axes"])


def _not_installed(call: str) -> ImportError:
    return ImportError(
        f"`{call}` needs safetensors. Install it with "
        '`pip install "peex[safetensors]"`.'
    )


class _Tensors:
    """The arrays of a file by name; what they are of is described by nodes, which JSON
    can hold.
    """

    def __init__(self):
        self.arrays: dict[str, np.ndarray] = {}

    def add(self, name: str, node: Any) -> Any:
        """The node of a pytree whose arrays are called by this name and their place."""
        if node is None:
            return None
        if isinstance(node, bool | int | float):
            return {"number": node}
        if is_record(node):
            return self._add_record(name, node)
        if type(node) is dict:
            for key in node:
                if type(key) not in (str, int, float, bool):
                    raise LogValueError(
                        f"`log.save(...)` writes dicts whose keys are texts or "
                        f"numbers, but {name!r} has the key {key!r}. Write its text, "
                        f"as in `{{str(key): value for key, value in ...}}`."
                    )
            return {"dict": [[k, self.add(f"{name}/{k}", v)] for k, v in node.items()]}
        if type(node) in (list, tuple):
            parts = [self.add(f"{name}/{i}", x) for i, x in enumerate(node)]
            return {type(node).__name__: parts}
        return self._add_array(name, node)

    def _add_record(self, name: str, node: Any) -> Any:
        cls = type(node)
        if _class_of(_name_of(cls)) is not cls:
            raise LogValueError(
                f"`log.save(...)` can't write {name!r}, a {cls.__qualname__}: a file "
                "names a class by its module, where this one isn't, as one that is "
                "defined in a function. Define it at the top level of a module."
            )
        parts, static = fields(node)
        for field, value in static.items():
            if type(value) not in (str, int, float, bool, type(None)):
                raise LogValueError(
                    f"`log.save(...)` can't write {name!r}: the static field {field!r} "
                    f"of its {cls.__qualname__} is {value!r}, and only numbers and "
                    "texts can be. Record what it stands for, as a dict of arrays."
                )
        described = {k: self.add(f"{name}/{k}", v) for k, v in parts.items()}
        return {"class": _name_of(cls), "fields": described, "static": static}

    def _add_array(self, name: str, leaf: Any) -> Any:
        if not hasattr(leaf, "dtype"):
            raise LogValueError(
                f"`log.save(...)` can't write {name!r}, a {type(leaf).__name__}: a "
                "file holds arrays, in dicts, lists, tuples, named tuples and modules. "
                "Make it one of these, or leave it out by `log.select`."
            )
        array = numbers_of(leaf, name, "save(...)")
        while name in self.arrays or name == "__metadata__":
            name += "'"
        node = {"array": name}
        if is_random_key(leaf):
            node["random_key"] = str(jax.random.key_impl(leaf))
        if array.dtype.name not in _DTYPES:
            node |= {"dtype": array.dtype.name, "shape": list(array.shape)}
            array = np.frombuffer(array.tobytes(), np.uint8)
        self.arrays[name] = np.asarray(array, order="C")
        return node


def _made(node: Any, key: str, tensors: Mapping[str, np.ndarray]) -> Any:
    """What a node describes. `key` is the entry's."""
    if node is None:
        return None
    make = lambda node: _made(node, key, tensors)
    if "number" in node:
        return node["number"]
    if "dict" in node:
        return {k: make(v) for k, v in node["dict"]}
    if "list" in node:
        return [make(x) for x in node["list"]]
    if "tuple" in node:
        return tuple(make(x) for x in node["tuple"])
    if "class" in node:
        parts = {k: make(v) for k, v in node["fields"].items()}
        return _record(node["class"], key, parts | node["static"])
    array = tensors[node["array"]]
    if "dtype" in node:
        dtype = np.dtype(node["dtype"])  # JAX has made its own known to NumPy
        array = np.frombuffer(array.tobytes(), dtype).reshape(node["shape"])
    if "random_key" in node:
        return jax.random.wrap_key_data(jnp.asarray(array), impl=node["random_key"])
    return _as_jax(array)


def _as_jax(array: np.ndarray) -> Any:
    """As an array of JAX's, unless that would lose half of 64 bits."""
    if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
        return array
    return jnp.asarray(array)


def _name_of(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _class_of(name: str) -> Any:
    """The class of this name, if it is there: a file can't make Python import code."""
    module, _, path = name.partition(":")
    found = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _record(name: str, key: str, values: dict[str, Any]) -> Any:
    cls = _class_of(name)
    is_class = isinstance(cls, type)
    if is_class and is_named_tuple(cls) and set(cls._fields) == set(values):
        return cls._make(values[k] for k in cls._fields)
    if is_class and issubclass(cls, eqx.Module):
        made = object.__new__(cls)
        for k, value in values.items():
            object.__setattr__(made, k, value)
        return made
    module, _, path = name.partition(":")
    raise LogValueError(
        f"The entry {key!r} of the file is a {path} with the fields "
        f"{', '.join(values)}, but `{module}.{path}` isn't there, or is another one. "
        f"Import its module first, `import {module}`: reading a file imports nothing."
    )
