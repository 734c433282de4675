"""Layers that the forward pass itself stacks share one name.

A model that does `jax.tree.map(stack, *self.layers)`, to scan over its layers, needs
layers of one structure; but each carries its own name there. JAX refuses, and shows the
two structures. From the names in them it follows which layers go together: they are
given one name, `layers.*`, and the call is made again.
"""

import re
from typing import NoReturn

from ._errors import SiteLostError


Prefix = tuple[str, ...]

# As `Site.__repr__` writes them.
_SITE = re.compile(r"<site ([^>]*)>")
# The number of a layer, and behind it its method or the name of a value inside.
_NUMBER = re.compile(r"^(\d+)($|[:/].*)")


def named(error: Exception) -> list[str]:
    """The keys of the sites that an error of JAX's shows."""
    return list(dict.fromkeys(_SITE.findall(str(error))))


def stacked(error: Exception) -> Prefix | None:
    """What the keys of the layers have in front of their number, if `error` is JAX's
    refusal to bring layers with different names together.
    """
    keys = [key.split(".") for key in named(error)]
    if len(keys) < 2:
        return None
    first, second = keys[:2]
    for i, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            numbered = _NUMBER.match(a) and _NUMBER.match(b)
            return tuple(first[:i]) if numbered else None
    return None


def grouped(key: str, prefixes: set[Prefix]) -> str:
    """The key, with `*` for the number behind each of these."""
    parts = key.split(".")
    for prefix in prefixes:
        n = len(prefix)
        if n < len(parts) and tuple(parts[:n]) == prefix:
            parts[n] = _NUMBER.sub(r"*\2", parts[n])
    return ".".join(parts)


def refuse(error: Exception) -> NoReturn:
    """Explains a refusal that can't be helped by sharing a name."""
    keys = ", ".join(repr(key) for key in named(error))
    raise SiteLostError(
        f"The model brings modules of different structure together, among them {keys}: "
        "a site carries its name and what acts there in its structure. Layers that are "
        "stacked in the forward pass need the same hook_fn and log_fn, as in "
        "`where='layers.*'`; or stack them when the model is built (`eqx.filter_vmap`)."
    ) from error
