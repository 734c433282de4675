"""Sites inside of functions with rules of their own, for derivatives or batching.

`jax.custom_jvp` and `jax.custom_vjp` are rebuilt with the logs as further outputs. The
rule is kept as it is: it says nothing of the logs, whose derivatives are zero. So
forward logs come out; a cotangent can't, since the rule stands in the place of
autodiff.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ... import _compat
from ..collector import Collector
from ..messages import ArraysAsk, Ask
from ..primitives import lost
from ..reading import IN_RULE, of_jaxpr
from ..rule import (
    AbstractRunner,
    Arrays,
    Body,
    Outcome,
    Params,
    register,
    Rule,
)
from ..scope import Scope
from ..signature import Signature
from ..trace import detached, Runner


Shared = dict[tuple[int, str], Any]


def _signature(params: Params, operands: Sequence[Any]) -> Signature:
    inside = of_jaxpr(params["call_jaxpr"])
    if inside.asks:
        lost(
            inside.asks[0].site,
            "it is inside a function with a derivative rule of its own (a `custom_jvp` "
            "or `custom_vjp`), which stands in the place of autodiff there.",
        )
    return inside


def _bodies(params: Params, operands: Sequence[Any]) -> list[Body]:
    return [Body(params["call_jaxpr"], range(len(operands)))]


class _Function:
    """The sites inside of one such function, which is held as a jaxpr: JAX may run its
    derivative rule long after the call, when the function itself can't be traced again.
    So nothing of the call is kept here: no tracer, and not the collector itself.
    """

    def __init__(self, jaxpr: Any, collector: Collector):
        self.jaxpr, _ = _compat.open_jaxpr(jaxpr)
        signature = collector.scope.part(_signature({"call_jaxpr": jaxpr}, ()))
        self.signature = signature.at_place(next(collector.places))
        self.runner = Runner(collector.scope, collector.owners)

    def run(self, consts: Sequence[Any], args: Sequence[Any], shared: Any) -> Outcome:
        arrays = Arrays([], shared)
        return self.runner.run(self.jaxpr, args, arrays, consts=consts)


def _found(
    fun: Any, args: Sequence[Any], collector: Collector
) -> tuple[_Function, list[Any]] | None:
    """A function with its sites, and the constants that it closes over; `None` if it
    has no sites.
    """
    if _compat.holds_no_module(fun):
        return None
    jaxpr = jax.make_jaxpr(_compat.fresh(fun).call_wrapped)(*args)
    sites = _Function(jaxpr, collector)
    return (sites, list(_compat.open_jaxpr(jaxpr)[1])) if sites.signature else None


def _collected(
    call: Callable[..., Outcome],
    sites: _Function,
    consts: list[Any],
    args: Sequence[Any],
    collector: Collector,
) -> list[Any]:
    """The outputs of a function that was given its rule back; its logs are recorded."""
    # The rule gives no derivative with respect to a hook's arrays.
    shared = {
        info.name: [lax.stop_gradient(x) for x in collector.supply(info)]
        for info in sites.signature.arrays
    }
    outs, logs = call(consts, list(args), shared)
    for spec, arrays in zip(sites.signature.taps, logs, strict=True):
        collector.record(spec.info, arrays)
    return outs


def _call_jvp(
    primitive: Any,
    functions: Sequence[Any],
    args: Sequence[Any],
    params: Params,
    collector: Collector,
) -> list[Any] | None:
    """Calls a `custom_jvp` function, its logs brought out. `None`: it has no sites."""
    fun, jvp = functions
    found = _found(fun, args, collector)
    if found is None:
        return None
    sites, consts = found

    call = jax.custom_jvp(sites.run)

    def rule(primals: Any, tangents: Any) -> Any:
        consts, args, shared = primals
        with _inside_rule(sites.runner, shared):
            outs = list(_compat.fresh(jvp).call_wrapped(*args, *tangents[1]))
        outs, out_tangents = outs[: len(outs) // 2], outs[len(outs) // 2 :]
        _, logs = sites.run(consts, args, shared)
        return (outs, logs), (out_tangents, jax.tree.map(no_tangent, logs))

    call.defjvp(rule, symbolic_zeros=params["symbolic_zeros"])
    outs = _collected(call, sites, consts, args, collector)
    _compat.keep_one(fun, jvp)
    return outs


def _call_vjp(
    primitive: Any,
    functions: Sequence[Any],
    args: Sequence[Any],
    params: Params,
    collector: Collector,
) -> list[Any] | None:
    """Calls a `custom_vjp` function, its logs brought out. `None`: it has no sites."""
    fun, fwd, bwd = functions
    found = _found(fun, args, collector)
    if found is None:
        return None
    sites, consts = found

    staging = _compat.is_staging_trace(_compat.current_trace())

    call = jax.custom_vjp(sites.run)

    def call_fwd(consts: Any, args: Any, shared: Any) -> Any:
        if staging and any(c.perturbed for c in consts):
            raise _compat.CustomVJPException()  # as JAX does, where it can know
        consts, args_, shared = jax.tree.map(lambda x: x.value, (consts, args, shared))
        # The flat rule wants to know of each argument whether it is perturbed.
        flat = [x for a in args for x in (a.value, a.perturbed)]
        with _inside_rule(sites.runner, shared):
            outs = list(_compat.fresh(fwd).call_wrapped(*flat))
        # Residuals that are arguments aren't returned twice.
        _, res_tree, forwarded = params["out_trees"]()
        num_returned = res_tree.num_leaves - sum(f is not None for f in forwarded)
        returned = iter(outs[:num_returned])
        res = [next(returned) if f is None else args_[f] for f in forwarded]
        _, logs = sites.run(consts, args_, shared)
        return (outs[num_returned:], logs), (res, shared)

    def call_bwd(saved: Any, cotangents: Any) -> Any:
        res, shared = saved
        outs, _ = cotangents
        if not params["symbolic_zeros"]:
            outs = [_instantiated(c) for c in outs]
        with _inside_rule(sites.runner, shared):
            return None, _compat.call_bwd(bwd, res, outs), None

    call.defvjp(call_fwd, call_bwd, symbolic_zeros=True)
    outs = _collected(call, sites, consts, args, collector)
    _compat.keep_one(fun, fwd)
    return outs


def _inside_rule(runner: Runner, shared: Shared) -> Any:
    """Sites that run inside of a rule hand nothing out: the function itself does. Their
    hooks act, with the arrays that are `shared` in it.
    """

    def source(info: Ask) -> Sequence[Any]:
        if not isinstance(info, ArraysAsk) or info.name not in shared:
            lost(info.site, IN_RULE)
        return shared[info.name]

    scope = Scope(runner.scope.depth, discards=True)
    return detached(Collector(scope, runner.calls, source))


def no_tangent(x: Any) -> Any:
    """The tangent of a log, for a rule that says nothing of it."""
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return jnp.zeros_like(x)
    return np.zeros(x.shape, jax.dtypes.float0)


def _instantiated(cotangent: Any) -> Any:
    if _compat.is_symbolic_zero(cotangent):
        aval = cotangent.aval
        make = np.zeros if aval.dtype == jax.dtypes.float0 else jnp.zeros
        return make(aval.shape, aval.dtype)
    return cotangent


def _vmap_signature(params: Params, operands: Sequence[Any]) -> Signature:
    return of_jaxpr(params["call"])


def _vmap_bodies(params: Params, operands: Sequence[Any]) -> list[Body]:
    return [Body(params["call"], range(len(operands)))]


def _run_vmap(
    params: Params, args: Sequence[Any], arrays: Arrays, runner: AbstractRunner
) -> Outcome:
    """`jax.custom_batching.custom_vmap`: the rule makes the outputs, and the logs are
    those of the function for each example.
    """
    assert isinstance(runner, Runner)

    def run(args: Any, arrays: Arrays) -> Outcome:
        return runner.run(params["call"], args, arrays)

    call = jax.custom_batching.custom_vmap(run)

    @call.def_vmap
    def rule(axis_size: int, batched: Any, args: Any, arrays: Arrays) -> Any:
        if arrays.slots:
            site = runner.inside(params["call"]).asks[0].site
            lost(site, "it is inside a `custom_vmap`, whose rule stands in its place.")
        unflatten = params["in_tree"].unflatten
        with _inside_rule(runner, arrays.shared):
            outs, outs_batched = params["rule"](
                axis_size, list(unflatten(batched[0])), *unflatten(args)
            )
        axes = jax.tree.map(lambda b: 0 if b else None, batched)
        logs_of = lambda *args: run(*args)[1]
        logs = jax.vmap(logs_of, in_axes=tuple(axes), axis_size=axis_size)(args, arrays)
        flat = jax.tree.leaves
        logs_batched = jax.tree.map(lambda _: True, logs)
        return (flat(outs), logs), (flat(outs_batched), logs_batched)

    return call(list(args), arrays)


register(
    _compat.custom_jvp_call_p,
    Rule(_signature, _bodies, None, call=_call_jvp, own_derivative=True),
)
register(
    _compat.custom_vjp_call_p,
    Rule(_signature, _bodies, None, call=_call_vjp, own_derivative=True),
)
register(_compat.custom_vmap_p, Rule(_vmap_signature, _vmap_bodies, _run_vmap))
