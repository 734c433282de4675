"""Calling a module with the sites around it."""

import contextlib
import functools as ft
import threading
from collections.abc import Callable, Sequence
from typing import Any, no_type_check

import equinox as eqx
import jax

from .. import _compat
from .._engine.active_calls import active_calls, Call, listener_at
from .._engine.at_site import at_site
from .._engine.notes import add_note
from .._engine.primitives import lost
from .._engine.site import ModuleKey, Side, Site
from .._engine.values import is_state
from .changed_call import changed
from .forward_pass import call_with_names, method_and_module
from .whole_call import given_to, WholeCall


@no_type_check  # what it calls may be looked for by its name
def around(
    sites: Sequence[Site | ModuleKey],
    calls: Sequence[Call | None],
    fn: Callable,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Calls `fn` with the sites around it, those of the outermost wrapper outermost.
    `calls` are the hooked calls that were running when the module was made.

    Where that is compiled, its operations carry the key of the module in their names,
    so that a profile names the layers.
    """
    # All in one function: JAX keeps the stack with each operation, at a cost that grows
    # with its depth.
    inside: list[Site] = []
    outside: list[Site] = []
    contexts: list[contextlib.AbstractContextManager[Any]] = []
    depth = -1
    key: str | None = None
    given: Any = None
    try:
        for site in sites:
            listener: Any = listener_at(site.depth)
            if not _is_spoken_to(site, listener, calls):
                continue
            key = site.module
            if site.depth != depth:
                depth = site.depth
                if listener.probes is not None and listener.probes.listens:
                    contexts.append(listener.probes.within(site.module))
            if isinstance(site, ModuleKey):
                continue
            if not (inside or outside) and _compat.is_compiled(_compat.current_trace()):
                scope = jax.named_scope(site.module)
                scope.__enter__()
                contexts.append(scope)
            if site.inside is not None:
                inside.append(site)
                continue
            outside.append(site)
            if site.side is Side.CALL:
                given = given_to(fn, args, kwargs)
            if not site.pre:
                continue
            if site.side is Side.ARGS_AND_KWARGS:
                args, kwargs = at_site(site, (args, kwargs))
            elif site.side is Side.INPUT and len(args) == 1:
                args = (at_site(site, args[0]),)
            else:
                args = at_site(site, args)
        call = ft.partial(call_with_names, inside, fn) if inside else None
        arounds = [site for site in outside if site.around is not None]
        if arounds:
            call = call or (lambda args, kwargs: fn(*args, **kwargs))
            _, module = method_and_module(fn)
            call = changed(arounds, call, module, args, kwargs)
        try:
            out = fn(*args, **kwargs) if call is None else call(args, kwargs)
        except Exception as error:
            if key is not None:
                add_note(error, _described(key, fn), args, kwargs)
            raise
        for site in reversed(outside):
            if site.pre:
                continue
            if site.side is Side.CALL:
                own = getattr(listener_at(site.depth), "own", {})
                at_site(site, WholeCall.of(given, out, own))
                continue
            if type(out) is tuple and len(out) == 2 and is_state(out[1]):
                # A stateful layer: the state isn't what it computed.
                new = at_site(site, out[0])
                out = out if new is out[0] else (new, out[1])
            else:
                out = at_site(site, out)
        return out
    finally:
        for context in reversed(contexts):
            context.__exit__(None, None, None)


def _described(key: str, fn: Callable) -> str:
    """A layer by its key and its class; a function by its name."""
    _, module = method_and_module(fn)
    name = getattr(fn, "__name__", type(fn).__name__)
    name = type(module).__name__ if isinstance(module, eqx.Module) else name
    return f"the model ({name})" if key == "." else f"the layer {key!r} ({name})"


def _is_spoken_to(
    site: Site | ModuleKey, listener: Any, calls: Sequence[Call | None]
) -> bool:
    """Whether the hooked call that a module was instrumented for is the one that is
    running at the depth of its site.

    **Raises:** `SiteLostError` if it isn't, and the hook can't act or the value can't
    be brought there.
    """
    mine = calls[site.depth] if site.depth < len(calls) else None
    if listener is not None and active_calls()[site.depth] is mine:
        return True
    if isinstance(site, ModuleKey):
        return False
    if mine is not None and not mine.ended:
        if mine.thread != threading.get_ident():
            lost(
                site,
                "it ran on another thread than the hooked call, which knows nothing of "
                "it. Run it on the same thread, as in `list(map(f, xs))`.",
            )
        return False  # in a derivative rule, where another wrapper is listened to
    if _compat.is_eval_trace(_compat.current_trace()) and (
        _compat.in_callback() or (mine is None and listener is None)
    ):
        lost(
            site,
            "it ran outside of the hooked call, in a function that a compiled program "
            "calls, as `jax.pure_callback` does.",
        )
    if mine is None:
        return False  # in a derivative rule: the function that it is of is heard
    hooks = [fn for fn in (site.hook, site.around) if fn is not None]
    if any(hook.shapes or hook.takes_data for hook in hooks):
        lost(
            site,
            "it ran after the hooked call had ended (in a derivative rule or a "
            "function that the model returned), where its hook's arrays don't exist.",
        )
    return False
