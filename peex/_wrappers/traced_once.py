"""A loss and its gradient, with the model's Python run once.

The shapes of a backward log are known only when the loss has been traced; but the log
is a gradient with respect to buffers of these shapes, which must be there before. So
the loss is traced to a jaxpr, in which the buffers are placeholders; the jaxpr, in
which they are inputs, is what is differentiated.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .. import _compat
from .._engine.messages import BufferAsk
from .._engine.values import zeros
from .._log import Log
from .backward import BackwardCollector, note_on_tracing


buffer_p: Any = _compat.Primitive("peex_buffer")
buffer_p.multiple_results = True
buffer_p.def_abstract_eval(lambda *, avals: list(avals))


class PlaceholderCollector(BackwardCollector):
    """Answers with placeholders; the zeros that these stand for are in `buffers`, made
    on the trace `outside`.
    """

    def __init__(self, hook_fn: Any, log_fn: Any, outside: Any):
        super().__init__(hook_fn, log_fn, None)
        self.inlined: set[int] = set()
        self.buffers: list[Any] = []
        self._outside = outside
        self._zeros: dict[Any, Any] = {}

    def _make(self, key: str, info: BufferAsk) -> Sequence[Any]:
        with _compat.set_current_trace(self._outside):
            # Each is an input of its own, but they may be one array.
            for s in info.shapes:
                if s not in self._zeros:
                    self._zeros[s] = zeros(s)
            buffers = [self._zeros[s] for s in info.shapes]
            buffers = _compat.as_varying(buffers, info.varying)
        self.buffers += buffers
        return buffer_p.bind(avals=tuple(map(jax.typeof, buffers))) if buffers else []

    def inlines(self, eqn: Any) -> Any:
        """An equation as it is outside of this trace."""
        is_jit = eqn.primitive is _compat.jit_p
        if is_jit and id(eqn.params["jaxpr"]) in self.inlined:
            return eqn.replace(params=_compat.with_inlining(eqn.params, True))
        return eqn


def value_and_grad(
    fn: Callable[[Any], tuple[Any, Any, PlaceholderCollector]], model: Any
) -> tuple[Any, Any, Log]:
    """`fn(model)` returns a value, anything besides, and the collector of the call.
    Returns what is besides, the gradient of the value with respect to all arrays in
    `model`, and the log.
    """
    leaves, treedef = jtu.tree_flatten(model)
    kept: list[Any] = []

    def forward(*leaves: Any) -> list[Any]:
        value, out, collector = fn(treedef.unflatten(leaves))
        dynamic, static = eqx.partition(out, eqx.is_array)
        arrays, structure = jtu.tree_flatten(dynamic)
        kept[:] = structure, static, collector
        return [jnp.asarray(value), *arrays]

    try:
        traced = jax.make_jaxpr(forward)(*leaves)
    except _compat.VALUE_ERRORS as error:
        note_on_tracing(error, "`px.value_and_grad` traces the loss")
        raise
    structure, static, collector = kept
    # JAX differentiates a jit as a whole, and keeps what comes of it: far quicker than
    # operation by operation. So they are inlined only now.
    jaxpr, consts = _compat.with_inputs(traced, buffer_p, collector.inlines)

    def run(leaves: Any, buffers: Any) -> tuple[Any, list[Any]]:
        value, *arrays = _compat.eval_jaxpr(jaxpr, (), *consts, *leaves, *buffers)
        return value, arrays

    differentiated = jax.value_and_grad(run, argnums=(0, 1), has_aux=True)
    (_, arrays), (grads, logged) = differentiated(leaves, collector.buffers)
    out = eqx.combine(structure.unflatten(arrays), static)
    return out, treedef.unflatten(grads), collector.log_of(logged)
