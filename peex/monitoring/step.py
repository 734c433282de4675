"""One monitored step: loss, gradient, and what is recorded."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.tree_util as jtu

from .._log import Log
from .._sites.keys import split_call
from .._sites.walk import with_fields
from .._wrappers.forward import ForwardHook
from .._wrappers.value_and_grad import Logs, value_and_grad
from .stats import Stats, Switched


_ARGUMENTS = Stats("rms")


class Step(NamedTuple):
    """What came of a step.

    - `value`: what the loss returned.
    - `logs`: of both passes.
    - `arguments`: of the arguments of modules, where they are recorded too.
    """

    value: Any
    logs: Logs
    arguments: Log


def step_of(
    monitor: Any,
    on: Any,
    inputs: Sequence[tuple[str, str]],
    model: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Step, Any]:
    """A step, and its gradient. `inputs` are the keys of sites whose arguments are
    recorded, and those of these.
    """
    loss, trainable, has_aux = monitor.loss, monitor.trainable, monitor.has_aux
    hooked = model
    if inputs:
        where = list(dict.fromkeys(split_call(key)[0] for _, key in inputs))
        log = Switched(_ARGUMENTS, on)
        hooked = ForwardHook(model, None, log, where=where, method=loss)
        loss, has_aux = _Hooked(monitor.has_aux), True
        if not jtu.all_leaves([trainable]):  # like the model
            nothing = jtu.tree_map(lambda _: False, hooked)
            trainable = with_fields(nothing, model=trainable)
    both = value_and_grad(
        loss,
        forward=_switched(monitor.forward, on),
        backward=_switched(monitor.backward, on),
        where=monitor.where,
        has_aux=has_aux,
        trainable=trainable,
    )
    (value, logs), grads = both(hooked, *args, **kwargs)
    if not inputs:
        return Step(value, logs, Log()), grads
    _, (out, arguments) = value
    return Step(out, logs, arguments), grads.model


class _Hooked(NamedTuple):
    """The loss of a model of which the arguments are recorded."""

    has_aux: bool

    def __call__(self, hooked: Any, *args: Any, **kwargs: Any) -> Any:
        out, log = hooked(*args, **kwargs)
        return out[0] if self.has_aux else out, (out, log)


def _switched(stats: Any, on: Any) -> Any:
    if isinstance(stats, Mapping):
        return {pattern: _switched(one, on) for pattern, one in stats.items()}
    return None if stats is None else Switched(stats, on)
