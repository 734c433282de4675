"""Every use of a private API of Equinox; as `_compat/jax.py`, which is that of JAX.

Checked against Equinox 0.13.8.
"""

import functools as ft
from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import jax
import jax.core as jax_core
from equinox._module._flatten import WRAPPER_FIELD_NAMES as WRAPPER_FIELD_NAMES
from equinox.internal._noinline import (
    _noinline_impl as noinline_impl,
    noinline_p as noinline_p,
)

from .jaxprs import eval_jaxpr, open_jaxpr


def may_stand_for(cls: type) -> bool:
    """Whether it is the class of a wrapper of Equinox's."""
    return (
        issubclass(cls, eqx.Module)
        and cls.__module__.startswith("equinox.")
        and isinstance(getattr(cls, "__wrapped__", None), property)
        and cls.__name__ != "BoundMethod"
    )


def stood_for(module: object) -> tuple[Any, Callable[[Any], Any]] | None:
    """What a wrapper of Equinox's (`filter_vmap`, `filter_jit`, `filter_checkpoint`,
    ...) wraps, and a function that puts something else in its place; `None` for any
    other object. No wrapper documents its fields.
    """
    cls: Any = type(module)
    if not may_stand_for(cls):
        return None
    if cls.__name__ == "_JitWrapper":
        # Holds its function in two halves, which only `filter_jit` can make.
        def rewrap(new: Any) -> Any:
            halves = vars(eqx.filter_jit(new))
            names = ("_dynamic_fun", "_static_fun")
            return _with_fields(module, {name: halves[name] for name in names})

        return cls.__wrapped__.fget(module), rewrap
    wrapped = cls.__wrapped__.fget(module)
    for name, value in vars(module).items():
        inner = (value, lambda new: new) if value is wrapped else stood_for(value)
        if inner is not None and inner[0] is wrapped:
            return wrapped, ft.partial(_rewrap, module, name, inner[1])
    return None


def _rewrap(module: Any, name: str, inner: Callable[[Any], Any], new: Any) -> Any:
    return _with_fields(module, {name: inner(new)})


def _with_fields(module: Any, fields: dict[str, Any]) -> Any:
    new = object.__new__(type(module))
    vars(new).update(vars(module) | fields)
    return new


def saved_states(states: Iterable[eqx.nn.State]) -> Callable[[], None]:
    """What makes States usable once more, after new ones have been made of them."""
    saved = [(x, dict(vars(x))) for x in states]

    def restore() -> None:
        for state, content in saved:
            vars(state).update(content)

    return restore


def inline_noinline(
    is_hooked: Callable[[], bool], holds_sites: Callable[[Any], bool]
) -> None:
    """From now on, `equinox.internal.noinline` in a hooked call runs a function that
    holds sites as any other, under whatever transformation is active, instead of
    handing it to a callback that nothing comes out of.

    Equinox makes the primitive with `filter_primitive_def`; its first argument is the
    number under which the function is kept.
    """
    primitive: Any = noinline_p
    bind = primitive.bind

    def bind_inline(*dynamic: Any, treedef: Any, static: Any, flatten: Any) -> Any:
        params = {"treedef": treedef, "static": static, "flatten": flatten}
        index = dynamic[0]
        if not is_hooked() or isinstance(index, jax_core.Tracer):
            return bind(*dynamic, **params)
        run = lambda *others: noinline_impl(index, *others, **params)
        jaxpr, consts = open_jaxpr(jax.make_jaxpr(run)(*dynamic[1:]))
        if not holds_sites(jaxpr):
            return bind(*dynamic, **params)
        return eval_jaxpr(jaxpr, consts, *dynamic[1:])

    primitive.bind = bind_inline
