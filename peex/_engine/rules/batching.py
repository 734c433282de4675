"""Bringing logs out before JAX does something to a primitive that would run its bodies
otherwise than they are written.

JAX batches a `cond` with a batched index, and a `while` with a batched condition, by
running every branch for every example and selecting afterwards. A tap left inside would
hand out values of branches that an example didn't take; and each branch would ask for a
buffer of its own. And it solves a `custom_linear_solve` once more for the tangent.
"""

from collections.abc import Callable
from typing import Any

from ... import _compat
from ..active_calls import active_calls
from ..reading import of_jaxpr
from ..scope import EVERY, Scope
from ..trace import bring_out, Runner


# Taps and asks of every depth; marks become derivative rules at their own collector.
_LOGS = Scope(EVERY, takes_marks=False)


def _holds_logs(params: dict[str, Any]) -> bool:
    return any(_LOGS.part(of_jaxpr(jaxpr)) for jaxpr in _compat.sub_jaxprs(params))


def logs_out_first(primitive: Any) -> Callable[..., Any]:
    """A batching rule that brings logs out before the primitive is batched."""
    default = _compat.batchers[primitive]

    def rule(axis: Any, args: Any, dims: Any, **params: Any) -> Any:
        batched = primitive is not _compat.cond_p or dims[0] is not None
        if not batched or not _holds_logs(params):
            return default(axis, args, dims, **params)

        def run(*args: Any) -> list[Any]:
            return bring_out(primitive, args, params, Runner(_LOGS, active_calls()))

        return _compat.batch_as_is(run, axis, dims, args)

    return rule


def logs_before_tangents(primitive: Any) -> Callable[..., Any]:
    """A derivative rule that brings logs out first: JAX solves once more for the
    tangent, and its sites would be heard once more.
    """
    default = _compat.primitive_jvps[primitive]

    def rule(primals: Any, tangents: Any, **params: Any) -> Any:
        if not _holds_logs(params):
            return default(primals, tangents, **params)

        def run(*args: Any) -> list[Any]:
            return bring_out(primitive, args, params, Runner(_LOGS, active_calls()))

        return _compat.jvp_as_is(run, primals, tangents)

    return rule
