"""Layers that the forward pass itself stacks share one name.

A model that does `jax.tree.map(stack, *self.layers)`, to scan over its layers, needs
layers of one structure; but each carries its own name there. Where `jax.tree.map`
brings layers together whose names differ in their number alone, what it makes is given
one name, `layers.*` (see `_instrument/site_map.py`).
"""

import re
from collections.abc import Sequence
from typing import NoReturn

from .._errors import SiteLostError
from .keys import Key, split


Prefix = Key

# As `Site.__repr__` writes them.
_SITE = re.compile(r"<site ([^>]*)>")
# The number of a layer, and behind it its method or the name of a value inside.
_NUMBER = re.compile(r"^(\d+|\*)($|[:/].*)")


# Of a generated class and the original one, JAX shows the same name.
_KINDS = re.compile(
    r"has a subtree of type\s*<class '(.*)'>\s*but at the same key path the full "
    r"pytree has a subtree of different type\s*<class '(.*)'>",
    re.DOTALL,
)
# What stands for a function with sites.
_FUNCTION = "peex._instrument.classes._Function"


def keys_in(error: Exception) -> list[str]:
    """The keys of the sites that an error of JAX's shows."""
    return list(dict.fromkeys(_SITE.findall(str(error))))


def common(first: str, second: str) -> Prefix | None:
    """What two keys have in front of the number in which they differ; `None` if they
    differ in something else.
    """
    a, b = split(first), split(second)
    if len(a) != len(b):
        return None
    places = [i for i, pair in enumerate(zip(a, b, strict=True)) if pair[0] != pair[1]]
    if len(places) != 1:
        return None
    (i,) = places
    numbers = _NUMBER.match(a[i]), _NUMBER.match(b[i])
    if None in numbers or numbers[0][2] != numbers[1][2]:  # pyright: ignore[reportOptionalSubscript]
        return None
    return tuple(a[:i])


def grouped(key: str, prefixes: Sequence[Prefix]) -> str:
    """The key, with `*` for the number behind each of these."""
    parts = list(split(key))
    for prefix in prefixes:
        n = len(prefix)
        if n < len(parts) and tuple(parts[:n]) == prefix:
            parts[n] = _NUMBER.sub(r"*\2", parts[n])
    return ".".join(parts) or "."


def refuse(error: Exception) -> NoReturn:
    """Explains JAX's refusal to bring modules with different sites together."""
    layers = (
        "Layers that are stacked or averaged in the forward pass must all be sites and "
        "need the same hook_fn and log_fn, as in `where='layers.*'` (with `px.AtStep` "
        "for some of them); or stack them when the model is built (`eqx.filter_vmap`). "
        "Call the modules where one of several is chosen, as in "
        "`lax.cond(p, self.a, self.b, x)`."
    )
    copies = (
        "A copy of the model (its frozen half, an average of it, what it started from) "
        "goes through the call whole and as an argument, as in `loss(model, copy, x)`, "
        "so that it is made alike: neither closed over, nor a part of it alone. To "
        "freeze parameters, write `px.value_and_grad(loss, trainable=...)`."
    )
    keys = ", ".join(repr(key) for key in keys_in(error))
    among, causes = f", among them {keys}" if keys else "", (layers, copies)
    kinds = _kinds(error)
    if kinds is not None:
        name = "function" if _FUNCTION in kinds else kinds[0].rpartition(".")[2]
        among, causes = f", one {name} with a site and one without", (copies, layers)
    raise SiteLostError(
        f"The model brings modules of different structure together{among}: a site "
        "carries its name and what acts there in the structure of its module. "
        f"{causes[0]} {causes[1]} Or hook the module around them."
    ) from error


# How functions say it that were traced or compiled before, without hooks.
_FIXED = re.compile(
    "Closure-converted function called with different dynamic arguments"
    "|Function compiled with input pytree does not match the input pytree"
)


def refuse_fixed(error: Exception) -> None:
    """Explains it if a function refuses the model's modules with their sites, since it
    was made of them without hooks.
    """
    if _FIXED.search(str(error)) is None:
        return
    raise SiteLostError(
        "The model gives its own modules to a function that was traced or compiled "
        "before, without hooks (by `equinox.filter_closure_convert`, or by `lower` and "
        "`compile`): it takes no modules with sites, and nothing inside of it can be "
        "hooked. Choose sites outside of these modules with `where`, or have the "
        "function made inside of the call."
    ) from error


def is_refusal(error: Exception) -> bool:
    """Whether JAX says by an error that structures differ, and they do so by sites."""
    if type(error) not in (TypeError, ValueError):
        return False  # not what derives from these
    return bool(keys_in(error)) or _kinds(error) is not None


def _kinds(error: Exception) -> tuple[str, str] | None:
    """The two classes that an error of JAX's is about, if they differ by sites."""
    found = re.search(_KINDS, str(error))
    if found is None:
        return None
    kinds = found[1], found[2]
    return kinds if kinds[0] == kinds[1] or _FUNCTION in kinds else None
