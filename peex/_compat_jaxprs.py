"""Taking jaxprs apart and putting them together, in every version of JAX. As
`_compat.py`, of which this is a part.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.core as jax_core
import jax.extend.core as jex_core
from jax._src import effects

from ._compat_hijax import jaxprs_of


eval_jaxpr = jax_core.eval_jaxpr

# JAX merged `ClosedJaxpr` into `Jaxpr` at 0.12: then the two names are one class.
_jaxpr_types = (jex_core.Jaxpr, jex_core.ClosedJaxpr)


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


def sub_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """The jaxprs that a primitive holds in its parameters, without their constants."""
    for value in params.values():
        if is_jaxpr(value):
            yield open_jaxpr(value)[0]
        elif isinstance(value, tuple | list):
            for item in value:
                if is_jaxpr(item):
                    yield open_jaxpr(item)[0]
    for jaxpr in jaxprs_of(params):
        yield open_jaxpr(jaxpr)[0]


def part_of_jaxpr(jaxpr: Any, start: int, stop: int, ins: Any, outs: Any) -> Any:
    """Some of the equations of a jaxpr, as a jaxpr without constants."""
    return jex_core.Jaxpr(
        constvars=[],
        invars=list(ins),
        outvars=list(outs),
        eqns=jaxpr.eqns[start:stop],
        debug_info=debug_info("peex"),
    )


class _IsHeard(effects.Effect):
    """That somebody hears of an equation, whatever becomes of its results."""

    def __repr__(self) -> str:
        return "IsHeard"


_is_heard = _IsHeard()
for _allowed in (
    effects.control_flow_allowed_effects,
    effects.custom_derivatives_allowed_effects,
    effects.lowerable_effects,
    effects.partial_eval_kept_effects,
    effects.remat_allowed_effects,
):
    _allowed.add_type(_IsHeard)


def keep_unused(primitive: Any, abstract: Callable[..., list[Any]]) -> None:
    """Gives a primitive its shape rule, and an effect: where JAX drops what isn't used,
    as in a derivative, it leaves equations with effects alone.
    """
    primitive.def_effectful_abstract_eval(
        lambda *avals, **params: (abstract(*avals, **params), {_is_heard})
    )
