"""Calling a module by a hook that stands around its call."""

import functools as ft
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
from jax import lax
from jax.core import Tracer

from .. import _compat
from .._engine.apply import difference, is_array
from .._engine.at_site import given_at
from .._engine.notes import add_note
from .._engine.site import Site
from .._engine.values import strong
from .._errors import HookShapeError


# A call, of the arguments by position and by name.
Made = Callable[[tuple[Any, ...], dict[str, Any]], Any]


def changed(
    sites: Sequence[Site], call: Made, module: Any, args: Any, kwargs: Any
) -> Made:
    """A call (of a module, if it is one of one) with the hooks of these sites around
    it, the first outermost.
    """
    # All are asked first, at each call: they are numbered by that.
    leaves = jtu.tree_leaves((module, args, kwargs))
    given = [given_at(site, site.around, leaves) for site in sites if site.around]
    for site, (hook, data) in reversed(list(zip(sites, given, strict=True))):
        acts, hook = (True, hook) if data is None else hook.acting(data)
        if isinstance(acts, Tracer):
            call = ft.partial(_either, site, hook, call, acts)
        elif acts:
            call = ft.partial(_run, site, hook, call)
    return call


def _either(
    site: Site,
    hook: Callable[..., Any],
    call: Made,
    acts: Any,
    args: Any,
    kwargs: Any,
) -> Any:
    """What a hook makes of a call where it acts, else the call."""
    dynamic, static = eqx.partition((args, kwargs), is_array)
    rest = types = None

    def original(dynamic: Any) -> Any:
        nonlocal rest, types
        args, kwargs = eqx.combine(dynamic, static)
        out, rest = eqx.partition(call(args, kwargs), is_array)
        types = jtu.tree_map(jax.typeof, out)
        return strong(out)

    def new(dynamic: Any) -> Any:
        args, kwargs = eqx.combine(dynamic, static)
        out = _run(site, hook, call, args, kwargs)
        return strong(eqx.filter(out, is_array))

    out = lax.cond(acts, new, original, dynamic)
    return eqx.combine(jtu.tree_map(_compat.as_weak_as, out, types), rest)


def _run(
    site: Site, hook: Callable[..., Any], call: Made, args: Any, kwargs: Any
) -> Any:
    """What a hook makes of a call.

    **Raises:** `HookShapeError` for an output unlike that of the call.
    """
    made: list[Any] = []

    def original(*args: Any, **kwargs: Any) -> Any:
        out = call(args, kwargs)
        made[:] = [_shapes(out)]
        return out

    name = type(hook).__name__
    try:
        out = hook(original, *args, **kwargs)
    except Exception as error:
        add_note(error, f"the hook_fn of the site {site.key!r} ({name})", args, kwargs)
        raise
    if not made:
        # Only traced: nothing of it runs, and no site in it is heard.
        made.append(_shapes(eqx.filter_eval_shape(call, args, kwargs)))
    old, structure = jtu.tree_flatten(made[0])
    found = difference(old, structure, eqx.filter(out, is_array))
    if found is not None:
        kind, wanted, got = found
        raise HookShapeError(
            f"The hook_fn of the site {site.key!r}, {name}, returned an output of "
            f"another {kind} than the call does: expected {wanted}, got {got}. Return "
            "one like it; to see what the call returns, `px.report(model, *args)`."
        )
    return out


def _shapes(out: Any) -> Any:
    """The arrays of an output as shapes, which keep no tracer alive."""
    is_known = lambda x: is_array(x) or isinstance(x, jax.ShapeDtypeStruct)
    shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jtu.tree_map(shape, eqx.filter(out, is_known))
