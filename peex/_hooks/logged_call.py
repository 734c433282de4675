"""Calls that aren't made at some steps: what a log has of them is in their place."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
from jaxtyping import Array, Bool, PyTree

from .._engine.messages import Datum
from .._engine.site import Site
from .._log import Log
from .._sites.keys import split_call
from .call_hooks import AbstractCallHook
from .masks import broadcast
from .only_if import AbstractCallIf, FLAG
from .step_hooks import AbstractStepHook, nothing, SiteCall


class LoggedCall(AbstractCallHook, AbstractStepHook):
    """Puts what a log has of a call in its place, at some steps: the call isn't made.
    Where that can't be (its output isn't as the log has it, or the model takes
    derivatives there), it is.

    - `log`: of values themselves, as a call returned it.
    - `steps`: for each key of a call a bool for each of its steps. Traced, they are the
        predicates of a `cond`.
    """

    log: Log
    steps: dict[str, Bool[Any, "..."]]

    def __call__(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError  # it is given data first

    @property
    def local_half(self) -> AbstractCallIf:
        entries = []
        for key in self.steps:
            num_axes = len(self.log.axes[key])
            leaves = jtu.tree_leaves(self.log[key])
            own = [jax.ShapeDtypeStruct(x.shape[num_axes:], x.dtype) for x in leaves]
            entries.append((key, tuple(own)))
        return _LoggedIf(tuple(entries))

    def data_of_call(self, call: SiteCall, wanted: Any) -> Any:
        flag, shapes = wanted
        # What a log has isn't made of anything, so it has no derivative.
        if call.key in self.steps and not call.differentiated:
            values = jtu.tree_leaves(self.log[call.key])
            if [x.shape for x in values] == [x.shape for x in shapes]:
                steps = self.steps[call.key]
                steps = steps.reshape((1,) * len(call.axes.devices) + steps.shape)
                return broadcast(steps, flag.shape), values
        return jtu.tree_map(nothing, wanted)


class _LoggedIf(AbstractCallIf):
    entries: tuple[tuple[str, tuple[jax.ShapeDtypeStruct, ...]], ...] = eqx.field(
        static=True
    )

    def wants(self, value: Sequence[jax.ShapeDtypeStruct], site: Site) -> PyTree[Datum]:
        calls = (
            shapes for key, shapes in self.entries if split_call(key)[0] == site.key
        )
        return FLAG, [Datum(shape) for shape in next(calls, ())]

    def acting(self, data: Any) -> tuple[Any, AbstractCallHook]:
        acts, values = data
        return acts, _Logged(values)


class _Logged(AbstractCallHook):
    values: list[Array]

    def __call__(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        is_shape = lambda x: isinstance(x, jax.ShapeDtypeStruct)
        made = eqx.filter_eval_shape(call, *args, **kwargs)
        shapes, rest = eqx.partition(made, is_shape)
        leaves, structure = jtu.tree_flatten(shapes)
        kind = lambda x: (x.shape, x.dtype)
        if list(map(kind, leaves)) != list(map(kind, self.values)):
            return call(*args, **kwargs)
        return eqx.combine(structure.unflatten(self.values), rest)
