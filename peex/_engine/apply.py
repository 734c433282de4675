"""Hook and log applied to a value: what both directions share."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .. import _compat
from .._errors import HookShapeError, LogValueError
from .active_calls import Acting
from .notes import add_note
from .site import Site


def is_array(x: object) -> bool:
    return isinstance(x, jax.Array | np.ndarray | np.generic)


def apply(
    site: Site,
    structure: Any,
    arrays: Sequence[Any],
    hook_arrays: Sequence[Any],
    log_arrays: Sequence[Any],
    data: tuple[Any, Any] = (None, None),
) -> tuple[list[Any], list[Any], Any]:
    """What the hook makes of a value (its arrays, and the structure they are in), and
    the leaves and structure of what the log makes of that. `data` is what hook and log
    are given for this step and example, if they take such.

    **Raises:** `HookShapeError`, `LogValueError`.
    """
    arrays = list(arrays)
    # NumPy's pass by as they are if nothing changes them, but are given to hooks and
    # logs as what they are to JAX.
    seen = [x if isinstance(x, jax.Array) else jnp.asarray(x) for x in arrays]
    if site.only_logs:
        return arrays, seen, structure
    value = jtu.tree_unflatten(structure, seen)
    if site.hook is not None:
        hook = site.hook.thaw(hook_arrays)
        try:
            takes_data = site.hook.takes_data
            with Acting(site, is_log=False):
                value = hook(value, data[0], site) if takes_data else hook(value)
        except HookShapeError as error:
            if repr(site.key) in str(error):
                raise
            message = (
                f"The hook_fn of the site {site.key!r}, {_name(hook)}, can't act: "
                f"{error}"
            )
            raise HookShapeError(message) from None
        except Exception as error:
            what = f"the hook_fn of the site {site.key!r} ({_name(hook)})"
            add_note(error, what, [value], {})
            raise
        new = checked(site, seen, structure, value)
        pairs = zip(arrays, seen, new, strict=True)
        arrays = [old if y is x else y for old, x, y in pairs]
    if site.log is None:
        return arrays, [], jtu.tree_structure(None)
    log = site.log.thaw(log_arrays)
    try:
        takes_data = site.log.takes_data
        with Acting(site, is_log=True):
            logged = log(value, data[1], site) if takes_data else log(value)
    except Exception as error:
        what = f"the log_fn of the site {site.key!r} ({_name(log)})"
        add_note(error, what, [value], {})
        raise
    logs, treedef = log_leaves(site, logged)
    return arrays, logs, treedef


def _name(fn: Any) -> str:
    while hasattr(fn, "hook"):  # what is told more, or acts at some steps only
        fn = fn.hook
    return getattr(fn, "__name__", type(fn).__name__.lstrip("_"))


def log_leaves(site: Site, logged: Any) -> tuple[list[Any], Any]:
    """The arrays of what a log returned, and the structure that they are in.

    **Raises:** `LogValueError` for what isn't an array.
    """
    leaves, treedef = jtu.tree_flatten(logged)
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, bool | int | float | complex | np.ndarray | np.generic):
            leaves[i] = jnp.asarray(leaf)
        elif not isinstance(leaf, jax.Array):
            raise LogValueError(
                f"The log_fn of the site {site.key!r} returned a leaf of type "
                f"{type(leaf).__name__}; a log is a pytree of arrays. Return arrays, "
                "or None for nothing."
            )
        elif site.backward and jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
            raise LogValueError(
                f"The log_fn of the site {site.key!r} returned a random key, which "
                "can't be a cotangent, as the log of a backward hook is. Return "
                "`jax.random.key_data(key)`, or log it in the forward pass."
            )
    return leaves, treedef


def difference(
    old: Sequence[Any], structure: Any, value: Any
) -> tuple[str, str, str] | None:
    """How a value is unlike the one with these arrays and this structure: in what, and
    what was expected and got. `None` if it isn't.
    """
    leaves, new_structure = jtu.tree_flatten(value)
    if new_structure != structure:
        return "tree structure", str(structure), str(new_structure)
    for x, y in zip(old, leaves, strict=True):
        expected = _shown(x)
        got = _shown(y) if is_array(y) else f"a {type(y).__name__}"
        if got != expected:
            return "shape or dtype", expected, got
    return None


_INSTEAD = {
    "tree structure": "A hook returns a value like the one it was given; what you want "
    "to record goes to log_fn.",
    "shape or dtype": "Keep both, as in "
    "`lambda x: jnp.broadcast_to(new, x.shape).astype(x.dtype)`.",
}


def checked(site: Site, old: Sequence[Any], structure: Any, value: Any) -> list[Any]:
    """The leaves of what a hook returned, which must be like those it was given.

    **Raises:** `HookShapeError` if they aren't.
    """
    found = difference(old, structure, value)
    if found is not None:
        kind, expected, got = found
        what = "cotangent" if site.backward else "value"
        raise HookShapeError(
            f"The hook_fn of the site {site.key!r} changed the {kind} of its {what}: "
            f"expected {expected}, got {got}. {_INSTEAD[kind]}"
        )
    # What a hook makes anew is the same on all devices.
    return [
        _compat.as_weak_as(_compat.typed_as(y, jax.typeof(x)), jax.typeof(x))
        for x, y in zip(old, jtu.tree_leaves(value), strict=True)
    ]


def _shown(x: Any) -> str:
    return f"{x.dtype}{list(x.shape)}"
