"""One hooked run of a call: of each site, and in both passes, the largest magnitude of
what it was given and of what it returned.
"""

import dataclasses
import functools as ft
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, PyTree

from .._errors import SiteLostError
from .._hooks.log_fns import AbstractLog
from .._log import Log
from .._wrappers.forward import ForwardHook
from .._wrappers.value_and_grad import value_and_grad
from .magnitude import magnitude


class Magnitude(AbstractLog):
    """Records the largest magnitude in a value."""

    def __call__(self, value: PyTree[Any]) -> PyTree[Any]:
        return magnitude(value)


class Recorded(eqx.Module):
    """What a run has shown, all as magnitudes: of the value, and of each array of the
    model, of the arguments and of the gradient (`None` for what isn't a floating-point
    one), and the logs of both passes.
    """

    value: Array
    model: PyTree[Any]
    args: PyTree[Any]
    gradients: PyTree[Any]
    forward: Log
    all_arguments: Log
    backward: Log


@dataclasses.dataclass(frozen=True)
class Question:
    """What is run: a function of the model and the arguments; and which sites are
    recorded in each pass. No backward pass where it isn't differentiated.
    `all_arguments` are those sites of which the keyword arguments are seen too, in the
    place of `"cell:in"`.
    """

    fn: Callable[..., Any]
    forward: tuple[str, ...]
    backward: tuple[str, ...]
    grad: bool
    all_arguments: tuple[str, ...] = ()

    def without(self, key: str) -> "Question | None":
        """Without a site that can't be brought out: of the backward pass first. `None`
        if it isn't one of these.
        """
        for name in ("backward", "all_arguments", "forward"):
            keys = getattr(self, name)
            if key in keys:
                return dataclasses.replace(
                    self, **{name: tuple(k for k in keys if k != key)}
                )
        return None


def record(
    question: Question, model: Any, args: Sequence[Any]
) -> tuple[Recorded, dict[str, str]]:
    """Runs it, compiled; again without the sites that turn out to be lost, which are
    returned with the reasons.
    """
    lost: dict[str, str] = {}
    while True:
        try:
            return record_compiled(question, model, tuple(args)), lost
        except SiteLostError as error:
            fewer = None if error.key is None else question.without(error.key)
            if error.key is None or fewer is None:
                raise
            lost[error.key] = error.why or str(error)
            question = fewer


@eqx.filter_jit
def record_compiled(question: Question, model: Any, args: tuple[Any, ...]) -> Recorded:
    """One such run.

    **Raises:** `SiteLostError`.
    """
    log, hooked, call = Magnitude(), model, question.fn
    wrap = ft.partial(ForwardHook, hook_fn=None, log_fn=log)
    if question.all_arguments:
        where = list(question.all_arguments)
        hooked = wrap(hooked, where=where, method=call, pre_hook=True, with_kwargs=True)
        call = _call
    if question.forward:
        hooked = wrap(hooked, where=list(question.forward), method=call)
        call = _call

    def step(hooked: Any, *args: Any) -> tuple[Any, Any]:
        out, forward, arguments = call(hooked, *args), Log(), Log()
        if question.forward:
            out, forward = out
        if question.all_arguments:
            out, arguments = out
        value = value_of(out)
        return scalar_of(value), (magnitude(value), forward, arguments)

    backward, gradients = Log(), None
    if question.grad:
        where = list(question.backward)
        both = value_and_grad(
            step,
            backward=log if where else None,
            where=where or None,
            has_aux=True,
        )
        ((_, seen), logs), gradients = both(hooked, *args)
        backward = logs.backward
    else:
        _, seen = step(hooked, *args)
    value, forward, arguments = seen
    return Recorded(
        value,
        _each(model),
        _each(args),
        _each(gradients),
        forward,
        arguments,
        backward,
    )


def _call(hooked: Any, *args: Any) -> Any:
    return hooked(*args)


def _each(tree: PyTree[Any]) -> PyTree[Any]:
    return jtu.tree_map(magnitude, eqx.filter(tree, eqx.is_inexact_array))


def value_of(out: PyTree[Any]) -> PyTree[Any]:
    """What is looked at: of a pair of a loss and more, the loss."""
    pair = isinstance(out, tuple | list) and len(out) == 2
    return out[0] if pair and _is_scalar(out[0]) else out


def scalar_of(value: PyTree[Any]) -> Array:
    """What is differentiated: the value, or the sum of its arrays."""
    if _is_scalar(value):
        return jnp.asarray(value)
    arrays = [x for x in jtu.tree_leaves(value) if eqx.is_inexact_array(x)]
    sums = [jnp.sum(jnp.abs(x) if jnp.iscomplexobj(x) else x) for x in arrays]
    total = sums[0] if sums else jnp.zeros(())
    for x in sums[1:]:
        total = total + x.astype(total.dtype)
    return total


def _is_scalar(x: Any) -> bool:
    return (
        isinstance(x, jax.Array)
        and x.shape == ()
        and jnp.issubdtype(x.dtype, jnp.floating)
    )
