"""What a program taps and asks for, found by walking its jaxpr once.

Walks are remembered by jaxpr (weakly), so a program that nests deep, or calls one
jitted function often, is walked once.
"""

import weakref
from collections.abc import Sequence
from typing import Any

from jax import lax

from .. import _compat
from .._caches import weak_cache
from .messages import ArraysAsk
from .primitives import ask_p, lost, mark_p, may_be_lost, tap_p
from .rule import rule_of
from .signature import EMPTY, join, Signature, TapSpec
from .site import Site


# The name of a `jit` that nobody listens to (see `quiet.py`).
QUIET = "peex_quiet"

_known = weak_cache()


def of_jaxpr(jaxpr: Any) -> Signature:
    """The signature of a jaxpr."""
    signature = _known.get(jaxpr)
    if signature is None:
        opened, _ = _compat.open_jaxpr(jaxpr)
        parts = enumerate(map(_of_equation, opened.eqns))
        signature = join(p.at_place(i) for i, p in parts if p is not EMPTY)
        _known[jaxpr] = _known[opened] = signature
    return signature


def _of_equation(eqn: Any) -> Signature:
    params = eqn.params
    if eqn.primitive is tap_p:
        shapes = tuple(v.aval for v in eqn.invars[params["num_values"] :])
        return Signature(taps=(TapSpec(params["info"], shapes),))
    if eqn.primitive is mark_p:
        return Signature(marked=params["info"].shared)
    if eqn.primitive is ask_p:
        info = params["info"]
        is_shared = isinstance(info, ArraysAsk)
        return Signature(shared=(info,)) if is_shared else Signature(asks=(info,))
    return of_primitive(eqn.primitive, params, eqn.invars)


_WITHOUT_BODY = {
    getattr(lax, f"{name}_p")
    for name in (
        "abs",
        "add",
        "and",
        "argmax",
        "argmin",
        "bitcast_convert_type",
        "broadcast_in_dim",
        "ceil",
        "clamp",
        "concatenate",
        "conv_general_dilated",
        "convert_element_type",
        "cos",
        "cumlogsumexp",
        "cumsum",
        "div",
        "dot_general",
        "dynamic_slice",
        "dynamic_update_slice",
        "eq",
        "erf",
        "exp",
        "expm1",
        "floor",
        "gather",
        "ge",
        "gt",
        "integer_pow",
        "iota",
        "is_finite",
        "le",
        "log",
        "log1p",
        "logistic",
        "lt",
        "max",
        "min",
        "mul",
        "ne",
        "neg",
        "not",
        "or",
        "pad",
        "pow",
        "reduce_and",
        "reduce_max",
        "reduce_min",
        "reduce_or",
        "reduce_sum",
        "reshape",
        "rev",
        "rsqrt",
        "select_n",
        "sign",
        "sin",
        "slice",
        "sort",
        "sqrt",
        "squeeze",
        "sub",
        "tan",
        "tanh",
        "transpose",
    )
}


def of_primitive(
    primitive: Any, params: dict[str, Any], operands: Sequence[Any]
) -> Signature:
    """The signature of a primitive, from the jaxprs among its parameters. The operands
    are values, or variables of a jaxpr.
    """
    if primitive in _WITHOUT_BODY:  # most of what a program is made of: quickly
        return EMPTY
    if primitive is _compat.jit_p:
        return EMPTY if params["name"] == QUIET else of_jaxpr(params["jaxpr"])
    jaxprs = _compat.sub_jaxprs(params)
    if not jaxprs:
        return EMPTY
    inside = [of_jaxpr(jaxpr) for jaxpr in jaxprs if jaxpr not in _excused]
    if not any(inside):
        return EMPTY
    rule = rule_of(primitive)
    if rule is None:
        why = (
            f"it is inside a `{primitive.name}`, which peex has no rule for (the "
            "library can add one, with `px.register_rule`)."
        )
        return Signature(lost=tuple((site, why) for site in join(inside).sites))
    return rule.signature(params, operands)


IN_RULE = "it is inside a derivative rule, and its hook holds arrays."


# The jaxprs of primitives that are excused.
_excused: weakref.WeakSet[Any] = weakref.WeakSet()


def excuse(params: dict[str, Any]) -> None:
    """Lets a primitive without a rule be, which a derivative rule has bound (as that of
    an implicit solver binds a linear one). What its sites say there isn't asked for,
    since the function that the derivative is of is heard, and is dropped where JAX
    runs it.

    **Raises:** `SiteLostError` if a hook asks for something there.
    """
    for jaxpr in _compat.sub_jaxprs(params):
        for site in of_jaxpr(jaxpr).sites:
            refuse_asks(site)
            may_be_lost(site)
        _excused.add(jaxpr)


def refuse_asks(site: Site) -> None:
    """Refuses a site in a derivative rule whose hook or log asks for something."""
    if site.backward or site.takes:
        lost(site, IN_RULE)
