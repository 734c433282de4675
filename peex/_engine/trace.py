"""Bringing sites out of what JAX stages, one level at a time.

A call that stages sites (in `scan`, `jit`, `checkpoint`, ...) runs on a
[`CollectTrace`][], which wraps no values: every primitive goes straight to the trace
below it, and one whose bodies hold sites is bound again by its rule. What the sites ask
for is asked here, one level up, and handed in; the logs that come out are tapped again
here. So eager code keeps its concrete values, and a program without sites stays exactly
what it was.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from .. import _compat
from .active_calls import only_listener, SitePrimitive, started
from .collector import Collector
from .compiled import compiled
from .messages import ArraysAsk, Ask
from .primitives import ask, lost, tap, tap_p
from .reading import excuse, of_jaxpr, of_primitive
from .rule import AbstractRunner, Arrays, Outcome, Params, rule_of
from .signature import EMPTY, Signature
from .site import Site


class CollectTrace(_compat.Trace):
    """Passes every primitive on to `parent`, apart from those that hold sites."""

    __slots__ = ("collector", "eager", "parent")

    def __init__(self, parent: Any, collector: Collector):
        super().__init__()
        self.parent = parent
        self.collector = collector
        self.requires_low = parent.requires_low
        # Whether a primitive that is bound here runs at once.
        self.eager = _compat.is_eval_trace(parent) or getattr(parent, "eager", False)

    def stage_value(self, val):
        return self.parent.stage_value(val)

    def process_primitive(self, primitive, tracers, params, /):
        collector = self.collector
        if isinstance(primitive, SitePrimitive):
            info = params["info"]
            with _compat.set_current_trace(self.parent):
                if collector.takes(primitive, info):
                    return collector.answer(primitive, tracers, params)
                return primitive.bind(*tracers, **params)
        signature = of_primitive(primitive, params)
        if signature is not EMPTY and collector.part(signature):
            collector.stages = True
            if rule_of(primitive) is not None or not collector.discards:
                below = self.parent if _compat.is_eval_trace(self.parent) else None
                with _compat.set_current_trace(self):
                    return bring_out(
                        primitive, tracers, params, collector, self.eager, below
                    )
            excuse(params)
        return self.parent.process_primitive(primitive, tracers, params)

    def process_call(self, primitive, f, tracers, params, /):
        with _compat.set_current_trace(self):
            return f.call_wrapped(*tracers)

    def process_custom_jvp_call(self, primitive, fun, jvp, tracers, /, **params):
        outs = self._call(primitive, (fun, jvp), tracers, params)
        if outs is not None:
            return outs
        return self.parent.process_custom_jvp_call(
            primitive, _compat.fresh(fun), jvp, tracers, **params
        )

    def process_custom_vjp_call(self, primitive, fun, fwd, bwd, tracers, /, **params):
        outs = self._call(primitive, (fun, fwd, bwd), tracers, params)
        if outs is not None:
            return outs
        return self.parent.process_custom_vjp_call(
            primitive, _compat.fresh(fun), fwd, bwd, tracers, **params
        )

    def process_shard_map(self, primitive, fun, args, /, **params):
        outs = self._call(primitive, (fun,), args, params)
        if outs is not None:
            return outs
        return self.parent.process_shard_map(primitive, fun, args, **params)

    def _call(self, primitive, functions, args, params):
        """Calls what came as a function, by its rule."""
        rule = rule_of(primitive)
        if rule is None or rule.call is None:
            return None
        if rule.own_derivative and _compat.is_eval_trace(self.parent):
            # Nothing outside differentiates here, so that rule isn't needed.
            with _compat.set_current_trace(self):
                return functions[0].call_wrapped(*args)
        with _compat.set_current_trace(self.parent):
            return rule.call(primitive, functions, args, params, self.collector)


@contextlib.contextmanager
def collecting(collector: Collector) -> Iterator[None]:
    """Whatever is bound inside goes through `collector`."""
    trace = CollectTrace(_compat.current_trace(), collector)
    collector.trace = trace
    try:
        with _compat.set_current_trace(trace):
            yield
    finally:
        collector.trace = None
        trace.invalidate()
        # JAX may keep the trace, as the parent of one that a derivative rule refers to.
        trace.parent = None
        trace.collector = None  # pyright: ignore[reportAttributeAccessIssue]


@contextlib.contextmanager
def run_with(collector: Collector) -> Iterator[None]:
    """One hooked call: sites inside speak to `collector`."""
    with started(collector):
        if not collector.direct:
            with collecting(collector):
                yield
            return
        collector.trace = _compat.current_trace()
        try:
            yield
        finally:
            collector.trace = None


@contextlib.contextmanager
def detached(collector: Collector) -> Iterator[None]:
    """Sites inside speak to `collector` alone, as in a call of its own."""
    with only_listener(collector, collector.depth), collecting(collector):
        yield


def bring_out(
    primitive: Any,
    args: Sequence[Any],
    params: Params,
    collector: Collector,
    eager: bool = False,
    below: Any = None,
) -> list[Any]:
    """Runs a primitive, the sites of `collector` brought out by one level.

    **Arguments:**

    - `eager`: whether it runs at once.
    - `below`: the trace below that of the collector, if that runs at once: what has
        been compiled is called there, as quickly as JAX can.
    """
    signature = collector.part(of_primitive(primitive, params))
    if signature.lost and not collector.discards:
        lost(*signature.lost[0])
    rule: Any = rule_of(primitive)
    slots = [ask(args, info) for info in signature.asks]
    shared = {info.name: ask((), info) for info in signature.arrays}
    runner = Runner(collector)
    if eager or rule.jit_options is not None:
        kind = collector.depth, collector.drops_others
        run = compiled(primitive, rule, params, runner, kind)
        with _compat.set_current_trace(below or _compat.current_trace()):
            outs, logs = run(*args, Arrays(slots, shared))
    else:
        outs, logs = rule.rebind(params, args, Arrays(slots, shared), runner)
    # (An eager jit makes new arrays.)
    if rule.forwards and not (eager and rule.jit_options is not None):
        (body,) = rule.bodies(params, len(args))
        outs = _forwarded(body.jaxpr, args, outs)
    for spec, arrays in zip(signature.taps, logs, strict=True):
        outs = tap(outs, arrays, spec.info)
    return outs


def _forwarded(jaxpr: Any, args: Sequence[Any], outs: Sequence[Any]) -> list[Any]:
    """Outputs that are arguments are these very objects, as without hooks."""
    jaxpr, _ = _compat.open_jaxpr(jaxpr)
    given = dict(zip(jaxpr.invars, args, strict=True))
    is_literal = _compat.is_literal
    return [
        out if is_literal(atom) else given.get(atom, out)
        for atom, out in zip(jaxpr.outvars, outs, strict=True)
    ]


class Runner(AbstractRunner):
    """Runs bodies for a collector."""

    def __init__(self, whose: Collector):
        self.whose = whose

    def inside(self, jaxpr: Any) -> Signature:
        return self.whose.part(of_jaxpr(jaxpr))

    def run(
        self,
        jaxpr: Any,
        args: Sequence[Any],
        arrays: Arrays,
        once_more: bool = False,
        consts: Sequence[Any] | None = None,
    ) -> Outcome:
        """As of any runner. `consts` are given if they aren't those of the jaxpr."""
        body = _Body(self.whose, arrays)
        body.drops_others |= once_more
        jaxpr, own_consts = _compat.open_jaxpr(jaxpr)
        consts = own_consts if consts is None else consts
        with collecting(body):
            outs = _compat.eval_jaxpr(jaxpr, consts, *args)
        receives = self.whose.receives
        return list(outs), [xs for info, xs in body.records if receives(info.site)]

    def lasting(self) -> "Runner":
        return Runner(self.whose.lasting())


class _Body(Collector):
    """Collects in the body of a primitive, on behalf of another collector."""

    def __init__(self, whose: Collector, arrays: Arrays):
        super().__init__(whose.depth, whose.call)
        self._slots = iter(arrays.slots)
        self._shared = arrays.shared
        self._whose = whose
        self.drops_others = whose.drops_others
        self.discards = whose.discards

    def mine(self, site: Site) -> bool:
        return self._whose.mine(site)

    def lasting(self) -> Collector:
        return self._whose.lasting()

    def takes(self, primitive: Any, info: Any) -> bool:
        dropped = self.drops_others and primitive is tap_p
        return dropped or self._whose.takes(primitive, info)

    def part(self, signature: Signature) -> Signature:
        mine = self._whose.part(signature)
        return (
            dataclasses.replace(mine, taps=signature.taps)
            if self.drops_others
            else mine
        )

    def supply(self, info: Ask) -> Sequence[Any]:
        is_shared = isinstance(info, ArraysAsk)
        return self._shared[info.name] if is_shared else next(self._slots)
