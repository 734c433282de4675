"""Taking jaxprs apart and putting them together, in every version of JAX. As
`_compat/jax.py`, of which this is a part.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.core as jax_core
import jax.extend.core as jex_core

from .hijax import parts_of


eval_jaxpr = jax_core.eval_jaxpr

# JAX merged `ClosedJaxpr` into `Jaxpr` at 0.12: then the two names are one class.
_jaxpr_types = (jex_core.Jaxpr, jex_core.ClosedJaxpr)
_plain_types = {bool, int, str, type(None)}


def debug_info(name: str) -> jex_core.DebugInfo:
    return jex_core.DebugInfo("peex", name, None, None)


def open_jaxpr(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """A jaxpr without its constants, and these (some are `ClosedJaxpr` before 0.12)."""
    if hasattr(jaxpr, "consts"):
        return jaxpr.jaxpr, jaxpr.consts
    return jaxpr, ()


def is_jaxpr(x: object) -> bool:
    return isinstance(x, _jaxpr_types)


def is_literal(operand: object) -> bool:
    """Whether an operand of an equation is a constant that is written there, rather
    than a variable.
    """
    return isinstance(operand, jex_core.Literal)


def sub_jaxprs(params: dict[str, Any]) -> list[Any]:
    """The jaxprs that a primitive holds in its parameters, without their constants."""
    found = []
    for value in params.values():  # of every primitive that is traced: quickly
        kind = type(value)
        if kind in _jaxpr_types:
            found.append(value)
        elif kind not in _plain_types and isinstance(value, tuple | list):
            found += [item for item in value if type(item) in _jaxpr_types]
    return [open_jaxpr(jaxpr)[0] for jaxpr in (*found, *(parts_of(params) or ()))]


def part_of_jaxpr(jaxpr: Any, start: int, stop: int, ins: Any, outs: Any) -> Any:
    """Some of the equations of a jaxpr, as a jaxpr without constants."""
    return jaxpr_of(jaxpr.eqns[start:stop], ins, outs)


def jaxpr_of(eqns: Sequence[Any], ins: Any, outs: Any) -> Any:
    """Equations as a jaxpr without constants."""
    return jex_core.Jaxpr(
        constvars=[],
        invars=list(ins),
        outvars=list(outs),
        eqns=list(eqns),
        debug_info=debug_info("peex"),
    )


def with_inputs(
    jaxpr: Any, primitive: Any, change: Callable[[Any], Any]
) -> tuple[Any, Sequence[Any]]:
    """A jaxpr in which the results of a primitive are further inputs, behind its own,
    as its constants are in front; and these constants. `change` changes the others of
    its equations.
    """
    opened, consts = open_jaxpr(jaxpr)
    made = [v for e in opened.eqns if e.primitive is primitive for v in e.outvars]
    new = jex_core.Jaxpr(
        constvars=[],
        invars=[*opened.constvars, *opened.invars, *made],
        outvars=opened.outvars,
        eqns=[change(eqn) for eqn in opened.eqns if eqn.primitive is not primitive],
        effects=opened.effects,
        debug_info=debug_info("peex"),
    )
    return new, consts


def scan_layout(params: dict[str, Any]) -> tuple[int, int]:
    """The number of constants and of carried values of a `scan` primitive.

    From 0.11 on they are the sizes of the parts of its input tree.
    """
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def is_inlined(params: dict[str, Any]) -> bool:
    """Whether JAX puts the body of a `jit` primitive with these parameters in its place
    when it traces what is around. (From 0.12 on `inline` is one of several ways.)
    """
    inline = params["inline"]
    return inline is True or getattr(inline, "name", None) == "JAX_EARLY"


def with_inlining(params: dict[str, Any], yes: bool) -> dict[str, Any]:
    """The parameters of a `jit` primitive that is inlined so, or isn't."""
    kind = type(params["inline"])
    inline = yes if kind is bool else getattr(kind, "JAX_EARLY" if yes else "AUTO")
    return {**params, "inline": inline}


def jit_options(params: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `jax.jit` that make a `jit` primitive with these parameters,
    apart from its shardings.
    """
    donated = [i for i, d in enumerate(params["donated_invars"]) if d]
    options: dict[str, Any] = {n: params[n] for n in ("keep_unused", "inline")}
    if donated:
        options["donate_argnums"] = tuple(donated)
    if params["compiler_options_kvs"]:
        options["compiler_options"] = dict(params["compiler_options_kvs"])
    return options


def jit_shardings(params: dict[str, Any]) -> tuple[Any, Any]:
    """The input and output shardings of a `jit` primitive, `None` where unspecified."""

    def given(shardings: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(
            None if type(s).__name__ == "UnspecifiedValue" else s for s in shardings
        )

    return given(params["in_shardings"]), given(params["out_shardings"])
