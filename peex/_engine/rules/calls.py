"""`jit`, `checkpoint`, and calls that stand for their body: its sites, as they are."""

from collections.abc import Sequence
from typing import Any

from ... import _compat
from ..reading import of_jaxpr
from ..rule import AbstractRunner, Arrays, Body, Outcome, Params, register, Rule
from ..signature import Signature
from .bind import bind_checkpoint


def _jaxpr(params: Params) -> Any:
    (jaxpr,) = (params[k] for k in ("jaxpr", "call_jaxpr") if k in params)
    return jaxpr


def _signature(params: Params, operands: Sequence[Any]) -> Signature:
    return of_jaxpr(_jaxpr(params))


def _bodies(params: Params, operands: Sequence[Any]) -> list[Body]:
    return [Body(_jaxpr(params), range(len(operands)))]


def _run(
    params: Params, args: Sequence[Any], arrays: Arrays, runner: AbstractRunner
) -> Outcome:
    return runner.run(_jaxpr(params), args, arrays)


def _jit_options(params: Params) -> dict[str, Any]:
    options = _compat.jit_options(params)
    ins, outs = _compat.jit_shardings(params)
    # Arguments: the primitive's, then the arrays for its sites. Results: its own, then
    # logs.
    if any(s is not None for s in ins):
        options["in_shardings"] = (*ins, None)
    if any(s is not None for s in outs):
        options["out_shardings"] = (list(outs), None)
    return options


def _run_checkpoint(
    params: Params, args: Sequence[Any], arrays: Arrays, runner: AbstractRunner
) -> Outcome:
    def run(args: Any, arrays: Arrays) -> Outcome:
        return runner.run(params["jaxpr"], args, arrays)

    # With the primitive's own parameters: `jax.checkpoint` has none for what makes this
    # a recomputation, and keeps the function, with all it closes over. (What runs once
    # more there is tapped no more: see `_recompute_tap` in `primitives.py`.)
    return bind_checkpoint(run, params, list(args), arrays)


register(
    _compat.jit_p,
    Rule(
        _signature,
        _bodies,
        _run,
        sees_into=True,
        forwards=True,
        jit_options=_jit_options,
    ),
)
register(
    _compat.remat_p,
    Rule(_signature, _bodies, _run_checkpoint, sees_into=True, forwards=True),
)
for _p in (_compat.closed_call_p, _compat.call_p):
    register(_p, Rule(_signature, _bodies, _run, sees_into=True))
register(_compat.eval_jaxpr_p, Rule(_signature, _bodies, _run))
