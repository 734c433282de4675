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
from .active_calls import Calls, only_listener, SitePrimitive, started
from .collector import Collector
from .compiled import compiled
from .messages import ArraysAsk, Ask
from .primitives import ask, lost, tap
from .reading import excuse, of_jaxpr, of_primitive
from .rule import AbstractRunner, Arrays, Outcome, Params, rule_of
from .scope import Scope
from .signature import EMPTY, Signature


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
        if self.eager:
            _compat.share_jit_cache(self)

    def stage_value(self, val):
        return self.parent.stage_value(val)

    def process_primitive(self, primitive, tracers, params, /):
        collector = self.collector
        if isinstance(primitive, SitePrimitive):
            info = params["info"]
            with _compat.set_current_trace(self.parent):
                if collector.scope.takes(primitive, info):
                    return collector.answer(primitive, tracers, params)
                return primitive.bind(*tracers, **params)
        signature = of_primitive(primitive, params, tracers)
        if signature is not EMPTY and collector.scope.part(signature):
            collector.stages = True
            if rule_of(primitive) is not None or not collector.scope.discards:
                runner = Runner(collector.scope, collector.owners)
                below = self.parent if _compat.is_eval_trace(self.parent) else None
                with _compat.set_current_trace(self):
                    return bring_out(
                        primitive,
                        tracers,
                        params,
                        runner,
                        self.eager,
                        below,
                        next(collector.places),
                    )
            excuse(params)
        if collector.inlined is not None and primitive is _compat.jit_p:
            params = _not_inlined(params, collector.inlined)
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


def _not_inlined(params: Params, inlined: set[int]) -> Params:
    """The parameters of a jit that isn't to be inlined; `inlined` notes its jaxpr."""
    if not _compat.is_inlined(params):
        return params
    inlined.add(id(params["jaxpr"]))
    return _compat.with_inlining(params, False)


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
    with only_listener(collector, collector.owners), collecting(collector):
        yield


def bring_out(
    primitive: Any,
    args: Sequence[Any],
    params: Params,
    runner: "Runner",
    eager: bool = False,
    below: Any = None,
    place: int = 0,
) -> list[Any]:
    """Runs a primitive, the sites in it brought out by one level.

    **Arguments:**

    - `runner`: runs its bodies, and says whose sites are brought out.
    - `eager`: whether it runs at once.
    - `below`: the trace below that of the collector, if that runs at once: what has
        been compiled is called there, as quickly as JAX can.
    - `place`: where it is in the call, among all that is brought out.
    """
    scope = runner.scope
    signature = scope.part(of_primitive(primitive, params, args)).at_place(place)
    if signature.lost and not scope.discards:
        lost(*signature.lost[0])
    rule: Any = rule_of(primitive)
    slots = [ask(args, info) for info in signature.asks]
    shared = {info.name: ask((), info) for info in signature.arrays}
    if eager or rule.jit_options is not None:
        run = compiled(primitive, rule, params, runner, scope)
        with _compat.set_current_trace(below or _compat.current_trace()):
            outs, logs = run(*args, Arrays(slots, shared))
    else:
        outs, logs = rule.rebind(params, args, Arrays(slots, shared), runner)
    # (An eager jit makes new arrays.)
    if rule.forwards and not (eager and rule.jit_options is not None):
        (body,) = rule.bodies(params, args)
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


@dataclasses.dataclass(frozen=True)
class Runner(AbstractRunner):
    """Runs bodies on behalf of hooked calls. Holds nothing of these that may not
    outlive them: neither a tracer nor a collector.
    """

    scope: Scope
    calls: Calls

    def inside(self, jaxpr: Any) -> Signature:
        return self.scope.part(of_jaxpr(jaxpr))

    def run(
        self,
        jaxpr: Any,
        args: Sequence[Any],
        arrays: Arrays,
        once_more: bool = False,
        consts: Sequence[Any] | None = None,
    ) -> Outcome:
        """As of any runner. `consts` are given if they aren't those of the jaxpr."""
        drops_others = self.scope.drops_others or once_more
        scope = dataclasses.replace(self.scope, drops_others=drops_others)
        slots = iter(arrays.slots)

        def source(info: Ask) -> Sequence[Any]:
            is_shared = isinstance(info, ArraysAsk)
            return arrays.shared[info.name] if is_shared else next(slots)

        body = Collector(scope, self.calls, source)
        jaxpr, own_consts = _compat.open_jaxpr(jaxpr)
        consts = own_consts if consts is None else consts
        with collecting(body):
            outs = _compat.eval_jaxpr(jaxpr, consts, *args)
        hands_on = self.scope.hands_on
        return list(outs), [xs for info, xs in body.records if hands_on(info.site)]
