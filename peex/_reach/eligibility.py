"""Traces of how the state depends on the parameters: `px.eligibility`."""

import functools as ft
import math
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._errors import PeexError
from .._text import plural, shown_arrays, shown_bytes
from .._wrappers.types import Method
from .advance import advanced, advanced_diagonal
from .asked import asked_for
from .reach import analysed
from .state import NewState, State
from .step import Step
from .units import find_units, Units


class Eligibility(eqx.Module):
    """How the state of a recurrent model depends on its parameters; made by
    [`peex.eligibility`][]. A pytree of arrays: it can be what a scan carries, and be
    mapped over.

    **Attributes:**

    - `traces`: by parameter and state, an array of the shape of the state, then that of
        the parameter (with `diagonal=True` of the latter alone). `e[parameter]` is the
        array if there is one state, and otherwise a dict of them by state.
    """

    traces: dict[str, dict[str, Any]]
    keys: tuple[str, ...] = eqx.field(static=True)
    states: tuple[str, ...] = eqx.field(static=True)
    step: Step = eqx.field(static=True)
    structure: Any = eqx.field(static=True)
    units: tuple[Units, ...] | None = eqx.field(static=True)

    def advance(
        self, model: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, "Eligibility"]:
        """Runs the model for one step, and takes the traces with it.

        **Arguments:**

        - `model`, `*args`, `**kwargs`: as [`peex.eligibility`][] was given, with the
            state before the step.

        **Returns:**

        What the model returns, and the traces after the step.
        """
        parameters, states, run = self.step.split(model, args, kwargs)
        traces = [self.traces[key] for key in self.keys]
        if self.units is None:
            out, new = advanced(run, parameters, states, self.states, traces)
        else:
            out, new = advanced_diagonal(
                run, parameters, states, self.states, traces, self.units
            )
        made = dict(zip(self.keys, new, strict=True))
        where = lambda e: e.traces
        return out, eqx.tree_at(where, self, made)

    def gradient(self, state_cotangent: PyTree) -> Any:
        """The gradient of a loss by the parameters, through the state: the cotangent of
        the state times the traces.

        **Arguments:**

        - `state_cotangent`: the gradient of the loss by the state that the traces are
            of: like the state, several arguments as a tuple; or a dict by the keys of
            the states.

        **Returns:**

        A pytree like the model, with `None` where there is no trace, as
        `eqx.filter_grad` has it. Of a parameter that is held in several places the
        first has it all, and the others zeros.
        """
        cotangents = self._cotangents(state_cotangent)
        leaves: list[Any] = [None] * self.structure.num_leaves
        for i, key in enumerate(self.keys):
            parts = []
            for state, trace in self.traces[key].items():
                cotangent = cotangents[state].astype(trace.dtype)
                if self.units is None:
                    parts.append(jnp.tensordot(cotangent, trace, cotangent.ndim))
                else:
                    parts.append(self.units[i].of(cotangent) * trace)
            total = ft.reduce(jnp.add, parts).astype(self.step.dtypes[i])
            first, *others = self.step.parameters[i]
            leaves[first] = total
            for place in others:
                leaves[place] = jnp.zeros_like(total)
        return self.structure.unflatten(leaves)

    def _cotangents(self, given: Any) -> dict[str, Any]:
        by_key = isinstance(given, Mapping) and set(given) == set(self.states)
        leaves = [given[k] for k in self.states] if by_key else jtu.tree_leaves(given)
        wanted = [shape for shape, _ in self.step.shapes]
        if [jnp.shape(x) for x in leaves] != wanted:
            raise PeexError(
                f"The cotangent of the state is {shown_arrays(leaves)}, but the state "
                f"({', '.join(self.states)}) has the shapes {wanted}. Of a batch, map: "
                "`jax.vmap(lambda e, ct: e.gradient(ct))(es, cts)`."
            )
        pairs = zip(self.states, leaves, strict=True)
        return {key: jnp.asarray(x) for key, x in pairs}

    def __getitem__(self, key: str) -> Any:
        if key not in self.traces:
            raise KeyError(
                f"{key!r} has no trace. There are those of: {', '.join(self.keys)}."
            )
        traces = self.traces[key]
        return next(iter(traces.values())) if len(self.states) == 1 else dict(traces)

    @property
    def bytes(self) -> int:
        """What the traces take."""
        return sum(x.size * x.dtype.itemsize for x in jtu.tree_leaves(self.traces))

    def __repr__(self) -> str:
        kind = "" if self.units is None else "diagonal, "
        parameters = plural(len(self.keys), "parameter")
        states = ", ".join(self.states)
        size = shown_bytes(self.bytes)
        return f"<Eligibility: {kind}{parameters} by {states}, {size}>"


def eligibility(
    model: Any,
    *args: Any,
    state: State = 1,
    new_state: NewState = None,
    where: Any = None,
    diagonal: bool = False,
    max_bytes: int | None = 2**30,
    method: Method = "__call__",
    **kwargs: Any,
) -> Eligibility:
    """Traces for learning a recurrent model forward in time: `E = dh/dtheta`, the
    derivative of the state by the parameters over all steps so far. It starts with
    zeros, and a step takes it to `df/dtheta + (dh'/dh) E` (real-time recurrent
    learning: Williams and Zipser, https://doi.org/10.1162/neco.1989.1.2.270). The
    gradient of a loss that depends on the state is then its cotangent times `E`, as
    backpropagation through all the steps has it, while no step is kept.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        cell = eqx.nn.GRUCell(3, 4, key=jax.random.key(0))
        h = jnp.zeros(4)
        e = px.eligibility(cell, jnp.ones(3), h)
        e.bytes  # 1600
        for x in jnp.ones((8, 3)):
            h, e = e.advance(cell, x, h)
        target = jnp.ones(4)
        grads = e.gradient(h - target)  # of 0.5 * jnp.sum((h - target) ** 2)
        grads.weight_hh.shape  # (12, 4)
        ```

    **Arguments:**

    - `model`, `*args`, `**kwargs`: as for one step of the model, or for a window of
        several. Arrays may be `jax.ShapeDtypeStruct`s.
    - `state`, `new_state`, `method`: as for [`peex.reach`][], but that the state is
        among the arguments.
    - `where`: the parameters: a pattern over their keys or those of modules around them
        (`"cell"`, `"**.weight_hh"`), several, or a function of the model that returns
        them. By default all that [`peex.reach`][] calls temporal; of those that are
        chosen only these have a trace.
    - `diagonal`: whether to keep only the diagonal of `dh'/dh`: how each unit depends
        on itself. Then a trace is as large as its parameter. It is exact where the
        recurrence is diagonal, and else an approximation (that of e-prop,
        https://doi.org/10.1038/s41467-020-17236-y). States of one shape have their
        units in common. Each number of a parameter must belong to one unit; which,
        is found by derivatives at some random values.
    - `max_bytes`: how many bytes the traces may take, `None` for any.

    **Returns:**

    A [`peex.Eligibility`][] of zeros, which `advance` takes on by a step.

    **Raises:**

    [`peex.PeexError`][] if no parameter reaches the state, if one doesn't belong to one
    unit, if they are complex, and if it were more than `max_bytes`.
    """
    if state is None:
        raise PeexError(
            "`px.eligibility` goes on from call to call, so its state is an argument "
            "of the model: give its position or name, as `state=1`, and for a model "
            "that scans a `method` that is one of its steps."
        )
    found = analysed(model, args, kwargs, state, new_state, method)
    kept = [
        (leaf, new)
        for leaf, new in zip(found.state, found.new, strict=True)
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
    ]
    keys = asked_for(model, found, where)
    parameters = [found.reach.parameters[key] for key in keys]
    step = Step(
        method,
        tuple(found.places[key] for key in keys),
        tuple(parameter.dtype for parameter in parameters),
        tuple(leaf.key for leaf, _ in kept),
        tuple((leaf.shape, leaf.dtype) for leaf, _ in kept),
        tuple(new for _, new in kept),
    )
    states = tuple(leaf.key for leaf, _ in kept)
    arrays = [*parameters, *(leaf for leaf, _ in kept)]
    for array in arrays:
        if jnp.issubdtype(array.dtype, jnp.complexfloating):
            raise PeexError(
                f"{array.key!r} is complex, and its derivative may be none of complex "
                "numbers. Keep its real and imaginary parts as two arrays."
            )
    units = None
    if diagonal:
        units = find_units(step, keys, states, model, args, kwargs)
    shapes: dict[str, dict[str, tuple[tuple[int, ...], Any]]] = {}
    for i, parameter in enumerate(parameters):
        mine = shapes.setdefault(parameter.key, {})
        for leaf, _ in kept:
            dtype = max(leaf.dtype, parameter.dtype, key=lambda d: jnp.finfo(d).bits)
            if units is None:
                mine[leaf.key] = (*leaf.shape, *parameter.shape), dtype
            elif units[i].shape == leaf.shape:
                mine[leaf.key] = parameter.shape, dtype
    _check_size(shapes, max_bytes)
    traces = {
        key: {state: jnp.zeros(*shape) for state, shape in mine.items()}
        for key, mine in shapes.items()
    }
    structure = jtu.tree_structure(model)
    return Eligibility(traces, tuple(keys), states, step, structure, units)


def _check_size(
    shapes: Mapping[str, Mapping[str, tuple[Sequence[int], Any]]],
    max_bytes: int | None,
) -> None:
    size = {
        key: sum(math.prod(shape) * dtype.itemsize for shape, dtype in mine.values())
        for key, mine in shapes.items()
    }
    total = sum(size.values())
    if max_bytes is None or total <= max_bytes:
        return
    largest = sorted(size, key=lambda key: size[key], reverse=True)[:5]
    shown = "; ".join(f"{key} {shown_bytes(size[key])}" for key in largest)
    raise PeexError(
        f"The traces would take {shown_bytes(total)} ({total} bytes), more than "
        f"`max_bytes={max_bytes}`. The largest: {shown}. Choose fewer parameters with "
        "`where`, keep the diagonal alone with `diagonal=True`, or allow more, as "
        f"`max_bytes={total}`."
    )
