"""Sites inside of `custom_linear_solve` and `custom_root`.

What runs is the solver, so its sites are logged, as further outputs of it (`aux`). The
other parts, from which the derivative is made, say nothing: they stand in the place of
autodiff.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jax import lax

from ... import _compat
from ..primitives import lost
from ..reading import of_jaxpr
from ..rule import (
    AbstractRunner,
    Arrays,
    Body,
    LogArrays,
    Outcome,
    Params,
    register,
    Rule,
)
from ..signature import join, Signature
from ..values import zeros


def _of_solver(jaxpr: Any) -> Signature:
    inside = of_jaxpr(jaxpr)
    if inside.asks:
        lost(
            inside.asks[0].site,
            "it is inside of a solver with an implicit derivative (such as "
            "`custom_linear_solve` or `custom_root`), which stands in the place of "
            "autodiff there.",
        )
    return inside


def _linear_signature(params: Params, operands: Sequence[Any]) -> Signature:
    return _of_solver(params["jaxprs"].solve)


def _linear_bodies(params: Params, operands: Sequence[Any]) -> list[Body]:
    # Its other parts are for the derivative.
    lengths, every = params["const_lengths"], range(len(operands))
    start, end = lengths.matvec + lengths.vecmat, sum(lengths)
    operands = [*every[start : start + lengths.solve], *every[end:]]
    return [Body(params["jaxprs"].solve, operands)]


def _run_linear(
    params: Params, args: Sequence[Any], arrays: Arrays, runner: AbstractRunner
) -> Outcome:
    jaxprs, lengths = params["jaxprs"], list(params["const_lengths"])
    starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    consts = [list(args[i:j]) for i, j in zip(starts, starts[1:], strict=False)]
    b = list(args[starts[-1] :])

    def part(i: int, x: Sequence[Any]) -> Outcome:
        return runner.run(jaxprs[i], [*consts[i], *x], arrays)

    def with_aux(outs: list[Any], logs: LogArrays) -> Any:
        return outs[: len(b)], (outs[len(b) :], logs)

    def solve(matvec: Any, x: Any) -> Any:
        del matvec
        return with_aux(*part(2, x))

    def transpose_solve(vecmat: Any, x: Any) -> Any:
        del vecmat
        outs, _ = part(3, x)
        specs = runner.inside(jaxprs.solve).taps
        return with_aux(outs, [[zeros(s) for s in spec.shapes] for spec in specs])

    x, (aux, logs) = lax.custom_linear_solve(
        lambda x: part(0, x)[0],
        b,
        solve,
        None if jaxprs.transpose_solve is None else transpose_solve,
        has_aux=True,
    )
    return [*x, *aux], logs


register(_compat.linear_solve_p, Rule(_linear_signature, _linear_bodies, _run_linear))


#
# `custom_root` is a high-level primitive from JAX 0.12 on (before, it is a function
# with a `custom_jvp`), and so is the linearized function that its tangent solver calls.
#


def _high_signature(params: Params, operands: Sequence[Any]) -> Signature:
    parts: Any = _compat.parts_of(params)
    whole = join(of_jaxpr(jaxpr).at_place(i) for i, jaxpr in enumerate(parts))
    if not isinstance(parts, _compat.Root):
        return whole
    # The other parts are run without being heard, but with the arrays of their hooks.
    return dataclasses.replace(_of_solver(parts.solve), shared=whole.arrays)


def _high_bodies(params: Params, operands: Sequence[Any]) -> list[Body]:
    parts: Any = _compat.parts_of(params)
    if parts is None:
        return []
    # Of a `custom_root`, the first is the solver, with its arguments in front.
    jaxpr, _ = _compat.open_jaxpr(parts[0])
    return [Body(jaxpr, range(len(jaxpr.invars)))]


def _run_high(
    params: Params, args: Sequence[Any], arrays: Arrays, runner: AbstractRunner
) -> Outcome:
    parts: Any = _compat.parts_of(params)
    if not isinstance(parts, _compat.Root):
        return runner.run(parts.apply, args, arrays)

    def part(i: int, args: Sequence[Any], shared: Any) -> Outcome:
        return runner.run(parts[i], args, Arrays([], shared))

    return _compat.bind_root(params, args, arrays.shared, part)


register(_compat.call_hi_primitive_p, Rule(_high_signature, _high_bodies, _run_high))
