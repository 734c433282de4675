"""The primitives out of which sites can be brought.

To add one, add its [`Rule`][] to `rules` and its case to the table of `tests/twins.py`.
"""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ... import _compat
from ..active_calls import next_depth
from ..collector import Collector
from ..lift import bind_checkpoint, evaluate, Feed, lift, Logs, Params, Rule
from ..primitives import ask_p, tap_p
from ..signature import join, of_jaxpr, of_primitive, Signature, TapSpec
from ..site import Ask, Axes, Site, Tap
from . import (
    cond as _branches,
    custom as _custom,
    shard_map as _shard,
    solves as _solves,
    while_loop as _while,
)


Outcome = tuple[list[Any], Logs]


#
# jit, checkpoint: the sites of the body, as they are.
#


def _body(params: Params) -> Any:
    return params["jaxpr"]


def _body_signature(params: Params) -> Signature:
    return of_jaxpr(params["jaxpr"])


def _run_jit(params: Params, args: Sequence[Any], feed: Feed) -> Outcome:
    return evaluate(params["jaxpr"], args, feed)


def _jit_options(params: Params) -> dict[str, Any]:
    options = _compat.jit_options(params)
    ins, outs = _compat.jit_shardings(params)
    # Arguments: the primitive's, then buffers and arrays of hooks. Results: its own,
    # then logs.
    if any(s is not None for s in ins):
        options["in_shardings"] = (*ins, None, None)
    if any(s is not None for s in outs):
        options["out_shardings"] = (list(outs), None)
    return options


def _run_checkpoint(params: Params, args: Sequence[Any], feed: Feed) -> Outcome:
    def run(args: Any, slots: Any, shared: Any) -> Outcome:
        return evaluate(params["jaxpr"], args, Feed(slots, shared, feed.whose))

    # With the primitive's own parameters: `jax.checkpoint` has none for what makes this
    # a recomputation, and keeps the function, with all it closes over. (What runs once
    # more there is tapped no more: see `_recompute_tap` in `_engine/primitives.py`.)
    return bind_checkpoint(run, params, list(args), feed.slots, feed.shared)


#
# scan: one more step axis.
#


def _scan_signature(params: Params) -> Signature:
    inside, length = _body_signature(params), params["length"]

    def stacked(shape: Any, axes: Axes) -> Any:
        return _compat.with_axis(shape, axes.step_place, length)

    def tap(spec: TapSpec) -> TapSpec:
        axes = spec.info.axes
        shapes = tuple(stacked(s, axes) for s in spec.shapes)
        info = dataclasses.replace(spec.info, axes=axes.with_step(length))
        return TapSpec(info, shapes)

    def ask(info: Ask) -> Ask:
        shapes = tuple(stacked(s, info.axes) for s in info.shapes)
        axes = info.axes.with_step(length)
        return dataclasses.replace(info, shapes=shapes, axes=axes)

    return dataclasses.replace(
        inside,
        taps=tuple(tap(t) for t in inside.taps),
        asks=tuple(ask(a) for a in inside.asks),
    )


def _run_scan(params: Params, args: Sequence[Any], feed: Feed) -> Outcome:
    num_consts, num_carry = _compat.scan_layout(params)
    consts, init = args[:num_consts], args[num_consts : num_consts + num_carry]
    xs = args[num_consts + num_carry :]
    inside = feed.whose.part(_body_signature(params))

    def body(carry: Any, x: Any) -> Any:
        x, slots = x
        outs, logs = evaluate(
            params["jaxpr"], [*consts, *carry, *x], feed.with_slots(slots)
        )
        return outs[:num_carry], (outs[num_carry:], logs)

    carry, (ys, logs) = lax.scan(
        body,
        list(init),
        (list(xs), _move_steps(feed.slots, inside.asks, out=False)),
        # A symbolic one, as in `jax.export`, is that of the inputs.
        length=None if xs else params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    infos = [spec.info for spec in inside.taps]
    return [*carry, *ys], _move_steps(logs, infos, out=True)


def _move_steps(
    arrays: list[list[Any]], infos: Sequence[Tap | Ask], out: bool
) -> list[list[Any]]:
    """`scan` has its steps in front; a log has them behind its device axes."""
    moved = []
    for xs, info in zip(arrays, infos, strict=True):
        place = info.axes.step_place
        ends = (0, place) if out else (place, 0)
        moved.append([jnp.moveaxis(x, *ends) for x in xs] if place else xs)
    return moved


#
# Calls that stand for their body.
#


def _inlined_signature(params: Params) -> Signature:
    return join(of_jaxpr(j) for j in _compat.sub_jaxprs(params))


def _run_inlined(params: Params, args: Sequence[Any], feed: Feed) -> Outcome:
    (jaxpr,) = (params[k] for k in ("jaxpr", "call_jaxpr") if k in params)
    return evaluate(jaxpr, args, feed)


def _not_here(params: Params, args: Sequence[Any], feed: Feed) -> Outcome:
    raise NotImplementedError


rules: dict[str, Rule] = {
    "jit": Rule(_body_signature, _run_jit, _jit_options, _body),
    "remat2": Rule(_body_signature, _run_checkpoint, forwards=_body),
    "scan": Rule(_scan_signature, _run_scan),
    "cond": _branches.cond,
    "while": _while.while_loop,
    "closed_call": Rule(_inlined_signature, _run_inlined),
    "core_call": Rule(_inlined_signature, _run_inlined),
    "eval_jaxpr": Rule(_inlined_signature, _run_inlined),
    "custom_vmap_call": _custom.custom_vmap,
    "custom_linear_solve": _solves.linear_solve,
    "call_hi_primitive": _solves.custom_root,
    # Run by the collector itself: these come to it as functions.
    "custom_jvp_call": Rule(_custom.signature, _not_here),
    "custom_vjp_call": Rule(_custom.signature, _not_here),
    "shard_map": Rule(_shard.signature, _not_here),
}


#
# Batching: JAX batches a `cond` with a batched index, and a `while` with a batched
# condition, by running every branch for every example and selecting afterwards. A tap
# left inside would hand out values of branches that an example didn't take; and each
# branch would ask for a buffer of its own.
#


class _LogsOnly(Collector):
    """Takes taps, and asks for buffers, of every depth; leaves marks where they are."""

    def __init__(self) -> None:
        super().__init__(depth=-1)

    def mine(self, site: Site) -> bool:
        return True

    def alike(self) -> Collector:
        return self

    def takes(self, primitive: Any, info: Any) -> bool:
        return primitive in (ask_p, tap_p)

    def part(self, signature: Signature) -> Signature:
        return dataclasses.replace(signature, marked=())


def _logs_out_first(primitive: Any) -> Callable[..., Any]:
    """A batching rule that brings logs out before the primitive is batched."""
    default = _compat.batchers[primitive]
    collector = _LogsOnly()

    def rule(axis: Any, args: Any, dims: Any, **params: Any) -> Any:
        batched = primitive is not lax.cond_p or dims[0] is not None
        if not batched or not collector.part(of_primitive(primitive, params)):
            return default(axis, args, dims, **params)

        def run(*args: Any) -> list[Any]:
            return lift(primitive, args, params, collector)

        return _compat.batch_as_is(run, axis, dims, args)

    return rule


def _logs_before_tangents(primitive: Any) -> Callable[..., Any]:
    """A derivative rule that brings logs out first: JAX solves once more for the
    tangent, and its sites would be heard once more.
    """
    default = _compat.primitive_jvps[primitive]
    collector = _LogsOnly()

    def rule(primals: Any, tangents: Any, **params: Any) -> Any:
        if not collector.part(of_primitive(primitive, params)):
            return default(primals, tangents, **params)

        def run(*args: Any) -> list[Any]:
            return lift(primitive, args, params, collector)

        return _compat.jvp_as_is(run, primals, tangents)

    return rule


_install_lock = threading.Lock()
_installed: list[Any] = []


def install() -> None:
    """Puts these rules in place, at the first hooked call (so that importing peex
    changes nothing). They leave programs without sites alone.
    """
    with _install_lock:
        if _installed:
            return
        for primitive in (lax.cond_p, lax.while_p):
            _compat.batchers[primitive] = _logs_out_first(primitive)
        solve = lax.linear_solve_p
        _compat.primitive_jvps[solve] = _logs_before_tangents(solve)
        _compat.inline_noinline(lambda: next_depth() > 0, lambda j: bool(of_jaxpr(j)))
        _installed.append(True)
