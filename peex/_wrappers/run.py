"""What the two wrappers share: running an instrumented model, and listening to it."""

import dataclasses
import functools as ft
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import jax.tree_util as jtu

from .. import _compat
from .._engine.active_calls import all_saved, NeedsTrace
from .._engine.rules.install import install
from .._engine.trace import run_with
from .._engine.values import states
from .._instrument.alike import made_alike
from .._instrument.classes import strip
from .._instrument.instrument import Structured
from .._instrument.probe import Probes
from .._sites.stacked import is_refusal, refuse, refuse_fixed
from .._sites.walk import unwrap
from .check_ran import check_ran, refuse_lazy
from .direct import Directness, runs_eagerly
from .hook_collector import HookCollector
from .make_sites import may_be_site, SiteMaker, sites_of, tell_keys
from .plan import Plan
from .types import Method


Collected = TypeVar("Collected", bound=HookCollector)


def run(
    plan: Plan,
    model: Any,
    make_collector: Callable[[], Collected],
    backward: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Any, Collected]:
    """Runs the instrumented model, once. A collector takes and gives what its sites do;
    it is returned, next to the output.
    """
    install()
    collector = make_collector()
    if not (collector.frozen or plan.asked or plan.probed):  # nothing to do
        return call_method(model, plan.method, args, kwargs), collector
    known = Structured(model, jtu.tree_structure(model))
    if not runs_eagerly(_compat.current_trace()):
        return _run(plan, known, collector, backward, args, kwargs)
    learned = Directness(plan, known, backward)
    if learned.is_direct:
        collector.direct = True
        forget = all_saved()
        restore = _compat.saved_states(states((args, kwargs)))
        try:
            return _run(plan, known, collector, backward, args, kwargs)
        except NeedsTrace as signal:
            # The one case in which the model's Python runs twice: it takes, for the
            # first time, a branch with a site inside of what JAX stages.
            if signal.call is not collector.call:
                raise
            _compat.abandon(signal)
        forget()
        restore()
        collector = make_collector()
    out = _run(plan, known, collector, backward, args, kwargs)
    learned.learn(collector.stages)
    return out


def _run(
    plan: Plan,
    known: Structured,
    collector: Collected,
    backward: bool,
    args: Any,
    kwargs: Any,
) -> tuple[Any, Collected]:
    make = SiteMaker(plan, collector, backward)
    may_be = ft.partial(may_be_site, plan)
    owner = type(unwrap(known.model)) if isinstance(plan.method, str) else None
    collector.probes = Probes(
        may_be,
        make.of_probe,
        plan.may_probe,
        owner,
        make.of_own_probe,
        collector.scope.depth,
    )
    model = collector.running_in(sys._getframe())
    try:
        with model, run_with(collector), collector.probes.caches():
            instrumented = _instrumented(known, make)
            args, kwargs = made_alike(instrumented, args, kwargs)
            out = call_method(instrumented, plan.method, args, kwargs)
    except (TypeError, ValueError) as error:
        if is_refusal(error):
            refuse(error)
        refuse_fixed(error)
        raise
    refuse_lazy(out)
    collector.check_received()
    check_ran(plan, collector)
    return strip(out), collector


def _instrumented(known: Structured, make: SiteMaker) -> Any:
    """The model with the sites of a run put in."""
    plan, collector = make.plan, make.collector
    for chosen, hook, _ in plan.chosen:
        if hook in collector.frozen and (chosen.call is not None or chosen.but):
            collector.in_calls(hook, chosen.but)
    key = (
        collector.scope.depth,
        collector.direct,
        make.backward,
        tuple(collector.frozen.items()),
    )

    def sites() -> Any:
        sites = sites_of(make)
        if plan.may_probe:
            tell_keys(sites, known.model, make)
        return sites

    return plan.memo.instrument(known, key, sites)


def call_method(model: Any, method: Method, args: Any, kwargs: Any) -> Any:
    if not isinstance(method, str):
        return method(model, *args, **kwargs)
    if method == "__call__":
        return model(*args, **kwargs)
    return getattr(model, method)(*args, **kwargs)


def as_function(method: Method) -> Callable[..., Any]:
    """A method as a function of the model and its arguments."""
    if callable(method):
        return method
    return _ByName(method)


@dataclasses.dataclass(frozen=True)
class _ByName:
    name: str

    def __call__(self, model: Any, *args: Any) -> Any:
        return call_method(model, self.name, args, {})
