"""Whatever was asked for explicitly must have run, and the error says why it didn't."""

from collections.abc import Iterable
from typing import NoReturn

from ._collect import Collector
from ._errors import SiteNotFiredError
from ._select import key_matches, nearest


def check_fired(
    asked: Iterable[tuple[str, set[str]]],
    probed: Iterable[tuple[str, str]],
    collector: Collector,
) -> None:
    """**Arguments:**

    - `asked`: what `where` asks for, and the keys that it chose.
    - `probed`: patterns of `hook_fn` and `log_fn` that only a probe can match.
    - `collector`: that of the run.

    **Raises:** `SiteNotFiredError`.
    """
    heard, probes = collector.heard, collector.probes.fired
    for name, keys in asked:
        # Of a pattern for names, the probes that matched it.
        as_probes = {
            k for k, site in probes.items() if key_matches(name, k, site.suffix)
        }
        if not (keys | as_probes) & heard:
            missed = [collector.missed[key] for key in keys & set(collector.missed)]
            if missed:
                _no_such_name(name, missed)
            shown = ", ".join(repr(k) for k in sorted(keys)[:5])
            raise SiteNotFiredError(
                f"`where={name!r}` was asked for, but nothing of it ran in this call: "
                f"{shown} {'was' if len(keys) == 1 else 'were'} never called. Perhaps "
                "the parameters are read without a call, or another method runs it, or "
                "a branch in Python wasn't taken. Sites that ran: "
                f"{', '.join(repr(k) for k in sorted(heard)[:5]) or 'none'}."
            )
    for what, pattern in probed:
        if not any(key_matches(pattern, k, site.suffix) for k, site in probes.items()):
            raise SiteNotFiredError(
                f"The pattern {pattern!r} of `{what}` matches no `px.probe` that ran "
                f"in this call. Those that ran: {nearest(pattern, probes)}. An "
                "operation or a function inside of a module has to be named in `where` "
                "too."
            )


def _no_such_name(asked: str, missed: list[tuple[list[str], str | None]]) -> NoReturn:
    """A name that isn't in the forward passes that ran."""
    _, _, name = asked.rpartition("/")
    names = dict.fromkeys(name for names, _ in missed for name in names)
    hidden = [around for _, around in missed if around is not None]
    why = "nothing in the forward pass that ran has this name."
    if hidden:
        why = (
            f"it occurs inside of {hidden[0]} only, whose rule stands in the place of "
            "what is inside."
        )
    raise SiteNotFiredError(
        f"`where={asked!r}` was asked for, but {why} Names there, nearest first: "
        f"{nearest(name, names, 10)}. A name is that of an operation, of a function "
        "that is called, of a `px.probe` or a `jax.ad_checkpoint.checkpoint_name`, "
        "with '#1' behind it for the second of this name. What runs in a module "
        "inside belongs to that, as in 'attn.query_proj/add'."
    )
