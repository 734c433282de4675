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
    """Raises if something that was asked for by name didn't run.

    **Raises:** `SiteNotFiredError`.
    """
    if not (plan.asked or plan.acting or plan.probed):
        return
    received, groups = collector.received, collector.groups
    probes = collector.probes.met

    # How often what was chosen has run: a pattern for values inside, as any of them.
    calls = collections.Counter(
        (s.chosen, s.call, s.key, s.alias) for s in collector.heard
    )
    most: dict[tuple[str, int | None], int] = {}
    for (chosen, call, *_), count in calls.items():
        most[chosen, call] = max(count, most.get((chosen, call), 0))

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
            _not_run(
                f"`where={name!r}` was asked for, but nothing of it", chosen, received
            )
    for what, pattern, chosen in plan.acting:
        if not any(ran(*wanted) for wanted in chosen):
            subject = f"The pattern {pattern!r} of `{what}` chooses sites, but none"
            _not_run(subject, chosen, received)
    for what, pattern in plan.probed:
        if not any(key_matches(pattern, k, site.suffix) for k, site in probes.items()):
            raise SiteNotFiredError(
                f"The pattern {pattern!r} of `{what}` matches no `px.probe` that ran "
                f"in this call. Those that ran: {nearest(pattern, probes)}. An "
                "operation or a function inside of a module has to be named in `where` "
                "too."
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


def _not_run(
    subject: str, chosen: Collection[Wanted], received: Collection[str]
) -> NoReturn:
    keys = sorted(key if call is None else f"{key}#{call}" for key, call in chosen)
    shown = ", ".join(repr(k) for k in keys[:5])
    raise SiteNotFiredError(
        f"{subject} ran in this call: {shown} {'was' if len(keys) == 1 else 'were'} "
        "never called. Perhaps the parameters are read without a call (or only the "
        "shape is asked for, by `jax.eval_shape`), or another method runs it, or a "
        "branch in Python wasn't taken. Sites that ran: "
        f"{', '.join(repr(k) for k in sorted(received)[:5]) or 'none'}."
    )


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
