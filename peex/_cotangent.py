"""The derivative rule that brings cotangents out.

A mark becomes an identity with a second argument, the buffer, that does nothing. In
the backward pass the hook acts on the cotangent, and what the log makes of it is
returned as the cotangent of the buffer: so it is stacked, batched and summed as JAX
does with every cotangent, and comes back as the gradient with respect to the log.
"""

import functools as ft
from collections.abc import Callable, Sequence
from typing import Any

import jax

from . import _compat
from ._act import act
from ._log import encode
from ._site import Ask, Mark


def attach(
    values: Sequence[Any],
    buffers: Sequence[Any],
    info: Mark,
    supply: Callable[[Ask], Sequence[Any]],
) -> list[Any]:
    """The values of a mark with its derivative rule."""
    shared = (list(supply(ask)) for ask in info.shared)
    hook_arrays = [] if info.site.hook is None else next(shared)
    log_arrays = [] if info.site.log is None else next(shared)
    varying = _compat.varying(jax.typeof(x) for x in buffers)
    outs: Any = _identity(
        info, varying, list(values), list(buffers), hook_arrays, log_arrays
    )
    return list(outs)


@ft.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _identity(info, varying, values, buffers, hook_arrays, log_arrays):
    del info, varying, buffers, hook_arrays, log_arrays
    return values


def _identity_fwd(info, varying, values, buffers, hook_arrays, log_arrays):
    del info, varying, buffers
    return values, (hook_arrays, log_arrays)


def _identity_bwd(info, varying, residuals, cotangents):
    hook_arrays, log_arrays = residuals

    def one(cotangents):
        cotangents, logs, _ = act(
            info.site, info.structure, cotangents, hook_arrays, log_arrays
        )
        return cotangents, encode(logs)

    # Hook and log see one example, as the site does in the forward pass.
    for size, name in zip(reversed(info.batch), reversed(info.names), strict=True):
        one = jax.vmap(one, axis_size=size, axis_name=name)
    cotangents, logs = one(cotangents)
    return cotangents, _compat.as_varying(logs, varying), None, None


_identity.defvjp(_identity_fwd, _identity_bwd)
