"""Sites inside of `custom_linear_solve` and `custom_root`.

What runs is the solver, so its sites are logged, as further outputs of it (`aux`). The
other parts, from which the derivative is made, say nothing: they stand in the place of
autodiff.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jax import lax

from ..._compat import bind_root, parts_of, Root
from ..lift import evaluate, Feed, Logs, Params, Rule, zeros
from ..primitives import lost
from ..signature import join, of_jaxpr, Signature


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


def _linear_signature(params: Params) -> Signature:
    return _of_solver(params["jaxprs"].solve)


def _run_linear(
    params: Params, args: Sequence[Any], feed: Feed
) -> tuple[list[Any], Logs]:
    jaxprs, lengths = params["jaxprs"], list(params["const_lengths"])
    starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    consts = [list(args[i:j]) for i, j in zip(starts, starts[1:], strict=False)]
    b = list(args[starts[-1] :])

    def part(i: int, x: Sequence[Any]) -> tuple[list[Any], Logs]:
        return evaluate(jaxprs[i], [*consts[i], *x], feed)

    def with_aux(outs: list[Any], logs: Logs) -> Any:
        return outs[: len(b)], (outs[len(b) :], logs)

    def solve(matvec: Any, x: Any) -> Any:
        del matvec
        return with_aux(*part(2, x))

    def transpose_solve(vecmat: Any, x: Any) -> Any:
        del vecmat
        outs, _ = part(3, x)
        specs = feed.whose.part(_linear_signature(params)).taps
        return with_aux(outs, [[zeros(s) for s in spec.shapes] for spec in specs])

    x, (aux, logs) = lax.custom_linear_solve(
        lambda x: part(0, x)[0],
        b,
        solve,
        None if jaxprs.transpose_solve is None else transpose_solve,
        has_aux=True,
    )
    return [*x, *aux], logs


linear_solve = Rule(_linear_signature, _run_linear)


#
# `custom_root` is a high-level primitive from JAX 0.12 on (before, it is a function
# with a `custom_jvp`), and so is the linearized function that its tangent solver calls.
#


def _high_signature(params: Params) -> Signature:
    parts: Any = parts_of(params)
    whole = join(of_jaxpr(jaxpr) for jaxpr in parts)
    if not isinstance(parts, Root):
        return whole
    # The other parts are run without being heard, but with the arrays of their hooks.
    return dataclasses.replace(_of_solver(parts.solve), shared=whole.arrays)


def _run_high(
    params: Params, args: Sequence[Any], feed: Feed
) -> tuple[list[Any], Logs]:
    parts: Any = parts_of(params)
    if not isinstance(parts, Root):
        return evaluate(parts.apply, args, feed)
    whose = feed.whose.alike()  # the derivative is made after the call

    def part(i: int, args: Sequence[Any], shared: Any) -> tuple[list[Any], Logs]:
        return evaluate(parts[i], args, Feed([], shared, whose))

    return bind_root(params, args, feed.shared, part)


custom_root = Rule(_high_signature, _run_high)
