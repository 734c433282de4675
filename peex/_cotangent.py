"""The derivative rule that brings cotangents out.

A mark becomes an identity with a second argument, the buffer, that does nothing. In
the backward pass the hook acts on the cotangent, and what the log makes of it is
returned as the cotangent of the buffer: so it is stacked, batched and summed as JAX
does with every cotangent, and comes back as the gradient with respect to the log.

Where the cotangent itself is logged, and nothing acts on it, that rule is linear, that
of adding the buffer: so `tie` is a primitive of its own, at a fraction of the cost of a
`custom_vjp`, and forward mode goes on working.
"""

import functools as ft
from collections.abc import Callable, Sequence
from typing import Any

import jax

from . import _compat
from ._act import act
from ._log import encode
from ._primitives import to_axis
from ._site import Ask, Mark


def attach(
    values: Sequence[Any],
    others: Sequence[Any],
    info: Mark,
    supply: Callable[[Ask], Sequence[Any]],
) -> list[Any]:
    """The values of a mark with its derivative rule."""
    shared = (list(supply(ask)) for ask in info.shared)
    hook_arrays = [] if info.site.hook is None else next(shared)
    log_arrays = [] if info.site.log is None else next(shared)
    buffers, data = list(others[: info.num_buffers]), list(others[info.num_buffers :])
    varying = _compat.varying(jax.typeof(x) for x in buffers)
    alike = all(
        _compat.varying([jax.typeof(x)]) == varying and x.dtype == b.dtype
        for x, b in zip(values, buffers, strict=False)
    )
    if info.site.only_logs and alike:
        return [tie_p.bind(x, b) for x, b in zip(values, buffers, strict=True)]
    given = hook_arrays, log_arrays, data
    outs: Any = _identity(info, varying, list(values), buffers, given)
    return list(outs)


def _with_batch(axis: Any, args: Any, dims: Any) -> tuple[Any, int | None]:
    if all(d is None for d in dims):
        return with_p.bind(*args), None
    args = [to_axis(x, d, 0, axis.size) for x, d in zip(args, dims, strict=True)]
    return with_p.bind(*args), 0


# The identity on its first argument, batched if any is.
with_p = _compat.Primitive("peex_with")
with_p.def_impl(lambda x, *others: x)
with_p.def_abstract_eval(lambda x, *others: x)
_compat.primitive_jvps[with_p] = lambda primals, tangents: (
    with_p.bind(*primals),
    tangents[0],
)
_compat.batchers[with_p] = _with_batch
_compat.register_lowering(with_p, lambda ctx, x, *others: [x])


def _tie_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    return tie_p.bind(*primals), _compat.add_tangents(*tangents)


def _tie_batch(axis: Any, args: Any, dims: Any) -> tuple[Any, int | None]:
    if all(d is None for d in dims):
        return tie_p.bind(*args), None
    value, buffer = (
        to_axis(x, d, 0, axis.size) for x, d in zip(args, dims, strict=True)
    )
    return tie_p.bind(value, buffer), 0


tie_p = _compat.Primitive("peex_tie")
tie_p.def_impl(lambda value, buffer: value)
tie_p.def_abstract_eval(lambda value, buffer: value)
_compat.primitive_jvps[tie_p] = _tie_jvp
_compat.linearize_as_sum(tie_p)
_compat.batchers[tie_p] = _tie_batch
_compat.register_lowering(tie_p, lambda ctx, value, buffer: [value])


@ft.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _identity(info, varying, values, buffers, given):
    del info, varying, buffers, given
    return values


def _identity_fwd(info, varying, values, buffers, given):
    del info, varying, buffers
    return values, given


def _identity_bwd(info, varying, given, cotangents):
    hook_arrays, log_arrays, data = given

    def one(cotangents, data):
        new, logs, _ = act(
            info.site, info.structure, cotangents, hook_arrays, log_arrays, data
        )
        # A log that doesn't depend on the cotangent is still one for each example.
        logs = [with_p.bind(x, *cotangents) for x in encode(logs)]
        return new, logs

    # Hook and log see one example, as the site does in the forward pass.
    for size, name in zip(reversed(info.batch), reversed(info.names), strict=True):
        one = jax.vmap(one, axis_size=size, axis_name=name)
    cotangents, logs = one(cotangents, data)
    return cotangents, _compat.as_varying(logs, varying), None


_identity.defvjp(_identity_fwd, _identity_bwd)
