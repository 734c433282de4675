"""One call of a model, taken out of a run to be made again by itself."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jax.core import Tracer
from jaxtyping import PyTree

from .._engine.apply import is_array
from .._engine.messages import Tap
from .._engine.numbering import Numbering
from .._engine.site import Side
from .._engine.values import is_state, passes_by, states
from .._errors import PeexError, SiteNotFiredError
from .._hooks.log_fns import IdentityLog
from .._instrument.classes import strip
from .._log import Axis, described
from .._wrappers.hook_collector import HookCollector
from .._wrappers.plan import plan
from .._wrappers.run import call_method, run
from .._wrappers.types import Method


@dataclasses.dataclass(frozen=True)
class _Again:
    """How a call is made again.

    - `method`: which one of the module, where it isn't a function.
    - `names`: of the axes, as those of `vmap`.
    - `mapped`: which leaves of the module and its arguments have the axes.
    """

    method: str
    names: tuple[Any, ...]
    mapped: tuple[bool, ...]


class Isolated(eqx.Module):
    """One call of a model, with all that it was given; made by
    `peex.CallTree.isolate`. Called, without arguments, it makes that call again, alone.

    A pytree, as the model is: it can be given to `eqx.filter_jit`, or differentiated.

    - `key`: of the call.
    - `module`: the module that was called, as it was there: in a `scan` over stacked
        layers, all layers.
    - `args`, `kwargs`: what it was called with, with what isn't an array.
    - `output`: what it returned; of a stateful layer, the pair of that and the state.
    - `axes`: the leading axes of the arrays in `args`, `kwargs` and `output`, those of
        the loops and `vmap`s around the call, as [`peex.Log`][] has them. The model's
        own arrays have none, in `module` and wherever they are arguments; of what it
        made of these (slices of a stack, or what it handed into a `jit`), `module`
        holds arrays with these axes.
    """

    key: str = eqx.field(static=True)
    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    axes: tuple[Axis, ...] = eqx.field(static=True)
    _again: _Again = eqx.field(static=True, repr=False)

    @property
    def state(self) -> tuple[PyTree, PyTree]:
        """The `eqx.nn.State` before and after the call; `None` where there is none."""
        before, after = states((self.args, self.kwargs)), states(self.output)
        return next(before, None), next(after, None)

    def __call__(self) -> Any:
        """Makes the call again: under a `vmap` for each batch axis, with the name that
        it had, step by step for each step axis.

        **Returns:**

        What it returns, with the same axes in front as `output`, which it equals.

        **Raises:**

        [`peex.PeexError`][] for a call that uses a named axis along which none of its
        arrays lies, or one of a device mesh: it can't be made alone.
        """
        # (Taken apart and put together, a State can be used once more.)
        leaves, structure = jtu.tree_flatten((self.module, self.args, self.kwargs))
        rest: Any = None

        def call(mapped: list[Any], /) -> Any:
            nonlocal rest
            here = iter(mapped)
            pairs = zip(leaves, self._again.mapped, strict=True)
            module, args, kwargs = structure.unflatten(
                [next(here) if m else x for x, m in pairs]
            )
            if isinstance(module, eqx.Module | type):
                out = call_method(module, self._again.method, args, kwargs)
            else:
                out = module(*args, **kwargs)
            out, rest = eqx.partition(out, is_array)
            return out

        run: Callable[[Any], Any] = call
        for axis, name in reversed(
            list(zip(self.axes, self._again.names, strict=True))
        ):
            run = _each(run, axis, name)
        mapped = [x for x, m in zip(leaves, self._again.mapped, strict=True) if m]
        try:
            return eqx.combine(run(mapped), rest)
        except NameError as error:
            if "unbound axis name" not in str(error):
                raise
            raise PeexError(
                f"The call {self.key!r} can't be made alone: it uses a named axis "
                f"around it, and none of what it was given lies along that ({error}). "
                "Isolate the call around it, which the axis is part of."
            ) from error


def _each(call: Callable[[Any], Any], axis: Axis, name: Any) -> Callable[[Any], Any]:
    """A call at each index of an axis. There needn't be an array that has it."""
    if axis.kind == "step":

        def loop(mapped: Any) -> Any:
            step = lambda _, xs: (None, call(xs))
            return lax.scan(step, None, mapped, length=axis.size)[1]

        return loop
    each = jax.vmap(lambda _, xs: call(xs), axis_name=name)
    return lambda mapped: each(jnp.arange(axis.size), mapped)


class _CallCollector(HookCollector):
    """Records whole calls.

    - `own`: the arrays of the model, by their `id`.
    """

    def __init__(self, arrays: list[Any]):
        super().__init__(None, IdentityLog())
        self.own = {id(x): i for i, x in enumerate(arrays)}


def isolate(
    key: str,
    where: str,
    model: Any,
    method: Method,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Isolated:
    """Runs a model for one call of it: the one with this key, which is chosen so."""
    own = jtu.tree_leaves(model)
    planned = plan(model, None, IdentityLog(), where, False, False, method)
    planned = dataclasses.replace(planned, side=Side.CALL)
    afresh = lambda x: jtu.tree_map(lambda y: y, x) if is_state(x) else x
    args, kwargs = jtu.tree_map(afresh, (args, kwargs), is_leaf=passes_by)
    make = lambda: _CallCollector(own)
    _, collector = run(planned, model, make, False, args, kwargs)
    _refuse_unlike(key, collector.records)
    number = Numbering()
    ((info, arrays),) = (
        record for record in collector.records if number(record[0].site) is not None
    )
    if info.counted:
        *arrays, count = arrays
        if not isinstance(count, Tracer) and not count.any():
            raise SiteNotFiredError(
                f"The call {key!r} wasn't made: it is in a branch that these arguments "
                "don't lead to."
            )
    whole = info.treedef.unflatten(arrays)
    given, output, mapped = strip(whole.taken(own))
    (axes,) = described({key: info.axes}).values()
    # Of the axes of a log, the last are those of batches.
    names = (None,) * (len(axes) - len(info.axes.names)) + info.axes.names
    # (Of layers that share a name there are several, called alike.)
    chosen, *_ = planned.chosen[0]
    module, args, kwargs = given
    again = _Again(chosen.method, names, tuple(mapped))
    return Isolated(key, module, args, kwargs, output, axes, again)


def _refuse_unlike(key: str, records: list[tuple[Tap, list[Any]]]) -> None:
    """**Raises:** `PeexError` where two branches may make one call otherwise."""
    counted = [(info, arrays) for info, arrays in records if info.counted]
    if not counted:
        return
    like = lambda info, arrays: (
        info.treedef,
        *((x.shape[len(info.axes.shape) :], x.dtype) for x in arrays),
    )
    if len({like(*record) for record in counted}) > 1:
        raise PeexError(
            f"The call {key!r} can't be told from others of its module: it is made in "
            "branches, or loops of unknown length, with arguments of other shapes, or "
            "that differ in what isn't an array. Isolate the call around these."
        )
