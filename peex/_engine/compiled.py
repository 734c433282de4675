"""Primitives that are bound again and run eagerly: compiled once, and kept."""

import weakref
from collections.abc import Callable, Hashable
from typing import Any

import jax

from .. import _compat
from .._caches import weak_cache
from .active_calls import this_thread
from .rule import AbstractRunner, Outcome, Params, Rule


# Run eagerly, a loop must not be compiled anew at every call, and a jitted function
# that is called often must not be traced anew at every call. So these are compiled, and
# kept by their jaxprs, weakly: the compiled function finds its parameters where each
# call puts them for as long as it takes, so that nothing here keeps a jaxpr alive.
_kept = weak_cache()


def compiled(
    primitive: Any,
    rule: Rule,
    params: Params,
    runner: AbstractRunner,
    kind: Hashable,
) -> Callable[..., Outcome]:
    """A primitive bound again by its rule, as a function of its operands and the
    [`Arrays`][] for its sites. Runners of one `kind` share what is compiled.
    """
    jaxprs = tuple(_compat.sub_jaxprs(params))
    key = (
        primitive,
        kind,
        tuple(weakref.ref(j) for j in jaxprs),
        tuple((name, _hashable(v)) for name, v in sorted(params.items())),
    )
    kept = _kept.setdefault(jaxprs[0], {})
    if key not in kept:

        def run(*args: Any) -> Outcome:
            assert rule.rebind is not None
            params, runner = this_thread.rebinding[-1]
            return rule.rebind(params, args[:-1], args[-1], runner)

        run.__name__ = run.__qualname__ = params.get("name", primitive.name)
        options = {} if rule.jit_options is None else rule.jit_options(params)
        kept[key] = jax.jit(run, **options)
    jitted = kept[key]

    def call(*args: Any) -> Outcome:
        this_thread.rebinding.append((params, runner))
        try:
            return jitted(*args)
        finally:
            this_thread.rebinding.pop()

    return call


def _hashable(value: Any) -> Any:
    """A parameter, for a key: of a jaxpr, its constants (it is in the key itself)."""
    if type(value) in (tuple, list):
        return tuple(_hashable(v) for v in value)
    if _compat.is_jaxpr(value):
        return tuple(id(c) for c in _compat.open_jaxpr(value)[1])
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value
