"""Traces after one more step: `df/dtheta + (dh'/dh) E`."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .step import pull, Run
from .units import Units


Traces = dict[str, Any]


def advanced(
    run: Run,
    parameters: Sequence[Any],
    states: Sequence[Any],
    keys: Sequence[str],
    traces: Sequence[Traces],
) -> tuple[Any, list[Traces]]:
    """The output, and of each parameter the traces of the states with these keys."""
    new, out, vjp = pull(run, parameters, states)
    made: list[Traces] = [{} for _ in parameters]
    for j, key in enumerate(keys):
        by_parameter, by_state = _rows(vjp, new, j)
        for i, trace in enumerate(traces):
            dtype = trace[key].dtype
            total = by_parameter[i].astype(dtype)
            for before, derivative in zip(keys, by_state, strict=True):
                old = trace[before].astype(dtype)
                ndim = old.ndim - jnp.ndim(parameters[i])
                total += jnp.tensordot(derivative.astype(dtype), old, ndim)
            made[i][key] = total
    return out, made


def _rows(vjp: Any, new: Sequence[Any], j: int) -> tuple[list[Any], list[Any]]:
    """The derivatives of one state by parameters and states: its axes, then theirs."""
    size, shape = new[j].size, new[j].shape
    basis = jnp.eye(size, dtype=new[j].dtype).reshape(size, *shape)

    def row(one: Any) -> Any:
        return vjp([one if i == j else jnp.zeros_like(x) for i, x in enumerate(new)])

    rows = jax.vmap(row)(basis)
    return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), rows)


def advanced_diagonal(
    run: Run,
    parameters: Sequence[Any],
    states: Sequence[Any],
    keys: Sequence[str],
    traces: Sequence[Traces],
    units: Sequence[Units],
) -> tuple[Any, list[Traces]]:
    """The same with traces of one unit each, of which the derivatives by themselves are
    kept, also those of states of one shape by each other.
    """
    new, out, vjp = pull(run, parameters, states)
    made: list[Traces] = [{} for _ in parameters]
    for j, key in enumerate(keys):
        if not any(key in trace for trace in traces):
            continue
        ones = [
            jnp.ones_like(x) if i == j else jnp.zeros_like(x) for i, x in enumerate(new)
        ]
        # Each number of a parameter is in the derivative of one unit alone.
        by_parameter, _ = vjp(ones)
        _, by_state = _rows(lambda cotangents: ([], vjp(cotangents)[1]), new, j)
        for i, trace in enumerate(traces):
            if key not in trace:
                continue
            dtype = trace[key].dtype
            total = by_parameter[i].astype(dtype)
            for k, before in enumerate(keys):
                if before in trace:
                    size = new[j].size
                    diagonal = jnp.diagonal(by_state[k].reshape(size, size))
                    own = units[i].of(diagonal).astype(dtype)
                    total += own * trace[before].astype(dtype)
            made[i][key] = total
    return out, made
