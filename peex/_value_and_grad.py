"""Loss, gradient and logs in one call, without `init`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx

from ._backward import BackwardHook
from ._forward import ForwardHook
from ._log import Log
from ._logs import IdentityLog


class Logs(NamedTuple):
    """The logs of [`peex.value_and_grad`][]; `None` for what wasn't asked for."""

    backward: Log | None
    forward: Log | None


def value_and_grad(
    loss: Callable[..., Any],
    *,
    backward: Any = IdentityLog(),
    forward: Any = None,
    hook_fn: Any = None,
    where: Any = None,
    pre_hook: bool = False,
    has_aux: bool = False,
) -> Callable[..., tuple[tuple[Any, Logs], Any]]:
    """Like `equinox.filter_value_and_grad`, with logs."""

    def run(model: Any, *args: Any, **kwargs: Any) -> tuple[tuple[Any, Logs], Any]:
        inner: Any = model
        method: Any = loss
        if forward is not None:
            inner = ForwardHook(
                model,
                None,
                forward,
                where=where,
                pre_hook=pre_hook,
                method=loss,
            )
            method = "__call__"
        hooked = BackwardHook(
            inner, hook_fn, backward, where=where, pre_hook=pre_hook, method=method
        )
        if backward is not None:
            hooked = hooked.init(*args, **kwargs)

        def call(hooked: BackwardHook, args: Any, kwargs: Any) -> tuple[Any, Any]:
            out = hooked(*args, **kwargs)
            out, log = out if forward is not None else (out, None)
            value = out[0] if has_aux else out
            return value, (out, log)

        (_, (out, log)), grads = eqx.filter_value_and_grad(call, has_aux=True)(
            hooked, args, kwargs
        )
        grad = grads.model if forward is None else grads.model.model
        return (out, Logs(None if backward is None else grads.log, log)), grad

    return run
