"""Sites inside of `custom_linear_solve`.

What runs is the solver, so its sites are logged, as further outputs of it (`aux`). The
other parts, from which the derivative is made, say nothing: they stand in the place of
autodiff.
"""

from collections.abc import Sequence
from typing import Any

from jax import lax

from ._lift import evaluate, Feed, Logs, Params, Rule, zeros
from ._primitives import lost
from ._signature import of_jaxpr, Signature


def _of_solver(jaxpr: Any) -> Signature:
    inside = of_jaxpr(jaxpr)
    if inside.asks:
        lost(
            inside.asks[0].site,
            "it is inside of a solver with an implicit derivative (such as "
            "`custom_linear_solve`), which stands in the place of autodiff there.",
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
