"""Calling a module by a hook that stands around its call."""

import functools as ft
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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


class _Around(NamedTuple):
    """What stands around a call: the hook of a site, and whether it acts: a bool,
    traced where that isn't known.
    """

    site: Site
    hook: Callable[..., Any]
    acts: Any


def changed(
    sites: Sequence[Site], call: Made, module: Any, args: Any, kwargs: Any
) -> Made:
    """A call (of a module, if it is one of one) with the hooks of these sites around
    it, the first outermost.
    """
    # All are asked first, at each call: they are numbered by that.
    leaves = jtu.tree_leaves((module, args, kwargs))
    around = []
    for site in sites:
        if site.around is not None:
            hook, data = given_at(site, site.around, leaves)
            acts, hook = (True, hook) if data is None else hook.acting(data)
            around.append(_Around(site, hook, acts))
    # Those of one wrapper and name are each for other calls of the module.
    of_one = lambda each: (each.site.depth, each.site.alias)
    groups = [list(group) for _, group in itertools.groupby(around, of_one)]
    for group in reversed(groups):
        call = ft.partial(_with_one_of, group, call)
    return call


def _with_one_of(around: Sequence[_Around], call: Made, args: Any, kwargs: Any) -> Any:
    """A call with the hook that acts, of these of which one does at most. What is known
    not to act, or not to be what is called, isn't traced.
    """
    is_asked = lambda each: isinstance(each.acts, Tracer)
    for each in around:
        if not is_asked(each) and each.acts:
            return _run(each, call, args, kwargs)
    asks = [each for each in around if is_asked(each)]
    if not asks:
        return call(args, kwargs)
    dynamic, static = eqx.partition((args, kwargs), is_array)
    rest = types = None

    def original(dynamic: Any) -> Any:
        nonlocal rest, types
        args, kwargs = eqx.combine(dynamic, static)
        out, rest = eqx.partition(call(args, kwargs), is_array)
        types = jtu.tree_map(jax.typeof, out)
        return strong(out)

    def new(each: _Around, dynamic: Any) -> Any:
        args, kwargs = eqx.combine(dynamic, static)
        return strong(eqx.filter(_run(each, call, args, kwargs), is_array))

    which = [each.acts.astype(int) * i for i, each in enumerate(asks, 1)]
    branches = [original, *(ft.partial(new, each) for each in asks)]
    out = lax.switch(sum(which[1:], which[0]), branches, dynamic)
    return eqx.combine(jtu.tree_map(_compat.as_weak_as, out, types), rest)


def _run(around: _Around, call: Made, args: Any, kwargs: Any) -> Any:
    """What a hook makes of a call.

    **Raises:** `HookShapeError` for an output unlike that of the call.
    """
    site, hook, _ = around
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
