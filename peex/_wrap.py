"""What the two wrappers share: running an instrumented model, and listening to it."""

import contextlib
import functools as ft
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from . import _compat
from ._collect import run_with
from ._fired import check_fired
from ._group import grouped, Prefix, refuse, stacked
from ._hook_collector import HookCollector
from ._instrument import strip
from ._plan import Method, Plan
from ._probe import known as known_probes, own_caches, ProbeMet, Probes, remember
from ._rules import install
from ._running import all_saved, Staged
from ._site_maker import may_be_site, SiteMaker, sites_of, tell_keys
from ._walk import unwrap


Collected = TypeVar("Collected", bound=HookCollector)


def run(
    plan: Plan,
    model: Any,
    make_collector: Callable[[], Collected],
    backward: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Any, Collected]:
    """Runs the instrumented model. A collector takes and gives what its sites do; it is
    returned, next to the output.
    """
    install()
    groups: set[Prefix] = set()
    trace = _compat.current_trace()
    direct = not (_compat.differentiates(trace) or _known_to_stage(plan, model))
    forget = all_saved()
    while True:
        collector = make_collector()
        collector.direct = direct
        if not (collector.frozen or plan.asked or plan.probed):  # nothing to do
            return call_method(model, plan.method, args, kwargs), collector
        known = known_probes(plan)
        make = SiteMaker(plan, collector, backward, groups)
        instrumented = _instrumented(model, make, known)
        collector.probes = probes = Probes(
            ft.partial(may_be_site, plan), make.of_probe, known, plan.default
        )
        try:
            with run_with(collector), own_caches("peex"):
                out = call_method(instrumented, plan.method, args, kwargs)
        except Staged as signal:
            if signal.depth != collector.depth:
                raise
            _compat.abandon(signal)
            forget()
            direct = False
            _remember_staging(plan, model)
        except ProbeMet as met:
            if met.probes is not probes:
                raise
            _compat.abandon(met)
            forget()
            remember(plan, met.name)
        except ValueError as error:
            group = stacked(error)
            if group is None or group in groups:
                if "<site " in str(error):
                    refuse(error)
                raise
            forget()
            groups.add(group)
        else:
            collector.check_heard()
            asked = [(n, {grouped(k, groups) for k in keys}) for n, keys in plan.asked]
            check_fired(asked, plan.probed, collector)
            return strip(out), collector


# What is known to have sites inside of what JAX stages: models by class and the name of
# the method, and functions. A direct call of these would be in vain.
_staging: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()


def _known_to_stage(plan: Plan, model: Any) -> bool:
    if isinstance(plan.method, str):
        return plan.method in _staging.get(type(unwrap(model)), ())
    try:
        return plan.method in _staging
    except TypeError:  # can't be hashed, or referred to weakly
        return False


def _remember_staging(plan: Plan, model: Any) -> None:
    if isinstance(plan.method, str):
        _staging.setdefault(type(unwrap(model)), set()).add(plan.method)
        return
    with contextlib.suppress(TypeError):
        _staging.setdefault(plan.method, set())


def _instrumented(model: Any, make: SiteMaker, known: frozenset[str] | None) -> Any:
    """The model with the sites of a run put in."""
    plan, collector = make.plan, make.collector
    key = (
        collector.depth,
        collector.direct,
        make.backward,
        frozenset(make.groups),
        tuple(collector.frozen.items()),
        frozenset(collector.indexed),
        known,
    )

    def sites() -> Any:
        sites = sites_of(make, known)
        if known is not None:
            tell_keys(sites, model, make)
        return sites

    return plan.memo.instrument(model, key, sites)


def call_method(model: Any, method: Method, args: Any, kwargs: Any) -> Any:
    if not isinstance(method, str):
        return method(model, *args, **kwargs)
    if method == "__call__":
        return model(*args, **kwargs)
    return getattr(model, method)(*args, **kwargs)
