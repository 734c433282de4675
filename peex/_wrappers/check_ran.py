"""Whatever was asked for explicitly must have run, and the error says why it didn't."""

import collections
import types
from collections.abc import Collection
from typing import Any, NoReturn

from .._errors import SiteLostError, SiteNotFiredError
from .._sites.patterns import key_matches, nearest, with_places
from .._sites.stacked import grouped
from .hook_collector import HookCollector
from .plan import Plan, Wanted


def check_ran(plan: Plan, collector: HookCollector) -> None:
    """Raises if something that was asked for by name didn't run; or, of what is chosen
    by default, nothing at all.

    **Raises:** `SiteNotFiredError`.
    """
    received, groups = collector.received, collector.groups
    if plan.default and not received:
        _none_ran(plan, collector)
    for hook in collector.step_hooks.values():
        for pattern in hook.patterns:
            if pattern not in collector.matched:
                _never_matched(pattern, collector)
    if not (plan.asked or plan.acting or plan.probed):
        return
    probes, most = collector.probes.met, _most_calls(collector)

    def ran(key: str, call: int | None) -> bool:
        names = {key, grouped(key, groups)}
        counts = (most.get((name, one), 0) for name in names for one in (call, None))
        return max(counts) > (call or 0)

    for name, chosen in plan.asked:
        # Of a pattern for names, the probes that matched it.
        as_probes = {
            k for k, site in probes.items() if key_matches(name, k, site.suffix)
        }
        if not (as_probes & received or any(ran(*wanted) for wanted in chosen)):
            keys = [key for key, _ in chosen]
            missed = [collector.missed[key] for key in keys if key in collector.missed]
            if missed:
                _no_such_name(name, missed)
            subject = f"`where={name!r}` was asked for"
            _not_run(plan, collector, subject, "nothing of it", chosen)
    for what, pattern, chosen in plan.acting:
        if not any(ran(*wanted) for wanted in chosen):
            subject = f"The pattern {pattern!r} of `{what}` chooses sites"
            _not_run(plan, collector, subject, "none", chosen)
    for what, pattern in plan.probed:
        if not any(key_matches(pattern, k, site.suffix) for k, site in probes.items()):
            raise SiteNotFiredError(
                f"The pattern {pattern!r} of `{what}` matches no `px.probe` that ran "
                f"in this call. Those that ran: {nearest(pattern, probes)}. An "
                "operation or a function inside of a module has to be named in `where` "
                "too."
            )


def _never_matched(pattern: str, collector: HookCollector) -> NoReturn:
    raise SiteNotFiredError(
        f"The pattern {pattern!r} of the mask of an At chose nothing that ran in this "
        f"call (the first pattern that matches does). Sites that ran: "
        f"{nearest(pattern, sorted(collector.received))}; the second call of one is "
        "'cell#1'."
    )


_LAZY = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, map)


def refuse_lazy(out: Any) -> None:
    """Raises if the model has returned before it ran.

    **Raises:** `SiteLostError`.
    """
    if isinstance(out, _LAZY):
        close = getattr(out, "close", None)
        if close is not None:
            close()  # a coroutine warns if it never ran
        raise SiteLostError(
            f"The model returned a {type(out).__name__}, whose values are computed "
            "after the hooked call has ended. Take them inside of it, as with "
            "`method=lambda model, *args: list(model(*args))`."
        )


def _none_ran(plan: Plan, collector: HookCollector) -> None:
    acting = [
        chosen.site_key(plan.root_method)
        for chosen, *fns in plan.chosen
        if not collector.frozen.keys().isdisjoint(fns)
    ]
    if not acting:
        return
    none = f"none of the model's {len(acting)} sites ran"
    if len(acting) == 1:
        none = f"the model's only site, {acting[0]!r}, didn't run"
    raise SiteNotFiredError(
        f"`where=None` chooses all leaf modules, but {none}: "
        + _does_it_call(plan, collector)
    )


def _does_it_call(plan: Plan, collector: HookCollector) -> str:
    """Asks what may be wrong with the method, where nothing ran in it."""
    owner = collector.probes.owner
    if owner is None:
        name = getattr(plan.method, "__name__", type(plan.method).__name__)
        return (
            f"does the function `{name}` call its own argument? The model with the "
            "sites is what it is given first: `lambda model, x: model(x)` calls it, "
            "`lambda _, x: model(x)` calls another, without sites."
        )
    return (
        f"does `{owner.__name__}.{plan.method}` call its modules? Perhaps it reads "
        "their parameters itself, only asks for shapes (`jax.eval_shape`), runs them "
        "in a callback (`jax.pure_callback`) or in a function that it returns, or took "
        "a branch in Python without any. "
        "`where='.'` is the model as a whole."
    )


def _most_calls(collector: HookCollector) -> dict[Wanted, int]:
    """How often what was chosen has run: any of what a pattern for names matches."""
    calls = collections.Counter(
        (s.chosen, s.call, s.key, s.alias) for s in collector.heard
    )
    most: dict[Wanted, int] = {}
    for (chosen, call, *_), count in calls.items():
        most[chosen, call] = max(count, most.get((chosen, call), 0))
    return most


def _not_run(
    plan: Plan,
    collector: HookCollector,
    subject: str,
    nothing: str,
    chosen: Collection[Wanted],
) -> NoReturn:
    received = collector.received
    keys = sorted(key if call is None else f"{key}#{call}" for key, call in chosen)
    shown = ", ".join(repr(k) for k in keys[:5])
    most = _most_calls(collector)
    fewer = [
        (key, max(most.get((key, call), 0), most.get((key, None), 0)))
        for key, call in chosen
        if call is not None and key in received
    ]
    if fewer:
        ran = ", ".join(f"{key!r} ran {_times(n)}" for key, n in sorted(fewer)[:5])
        raise SiteNotFiredError(
            f"{subject}, but there were fewer calls than that: {ran}. '#1' is the "
            "second call; what runs in a loop is one call, with a step axis."
        )
    why = (
        ". Perhaps the parameters are read without a call (or only the shape is asked "
        "for, by `jax.eval_shape`), or another method runs it, or a branch in Python "
        "wasn't taken."
    )
    if not received and collector.probes.owner is None:
        why = f": {_does_it_call(plan, collector)}"
    raise SiteNotFiredError(
        f"{subject}, but {nothing} ran in this call: {shown} "
        f"{'was' if len(keys) == 1 else 'were'} never called{why} Sites that ran: "
        f"{', '.join(repr(k) for k in sorted(received)[:5]) or 'none'}."
    )


def _times(n: int) -> str:
    return {1: "once", 2: "twice"}.get(n, f"{n} times")


def _no_such_name(
    asked: str, missed: list[tuple[dict[str, str], str | None]]
) -> NoReturn:
    """A name that isn't in the forward passes that ran."""
    _, _, name = asked.rpartition("/")
    names: dict[str, str] = {}
    for there, _ in missed:
        names = there | names
    hidden = [around for _, around in missed if around is not None]
    why = "nothing in the forward pass that ran has this name."
    if name.partition("#")[0] in names:
        why = "there are fewer of this name in the forward pass that ran."
    if hidden:
        why = (
            f"it occurs inside of {hidden[0]} only, whose rule stands in the place of "
            "what is inside."
        )
    raise SiteNotFiredError(
        f"`where={asked!r}` was asked for, but {why} Names there, nearest first: "
        f"{with_places(name, names)}. A name is that of an operation, of a function "
        "that is called, of a `px.probe` or a `jax.ad_checkpoint.checkpoint_name`, "
        "with '#1' behind it for the second of this name. What runs in a module "
        "inside belongs to that, as in 'attn.query_proj/add'."
    )
