"""What the two wrappers share: from their arguments to an instrumented model that runs.

`plan` is done once, when a wrapper is built; `run` at every call.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from ._collect import Collector, next_depth, run_with
from ._errors import SiteNotFiredError
from ._instrument import instrument, strip
from ._rules import install
from ._select import assign, Chosen, select
from ._site import freeze, Frozen, Site
from ._walk import AbstractWrapper


Method = str | Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The static part of a wrapper: what is chosen, and what acts where.

    - `chosen`: the sites with the names of their hook and log (`None`: nothing).
    - `asked`: what was asked for explicitly, and the keys that it chose.
    - `root_method`: the method of the model itself that a call enters by.
    """

    chosen: tuple[tuple[Chosen, str | None, str | None], ...]
    asked: tuple[tuple[str, frozenset[str]], ...]
    method: Method
    root_method: str
    pre: bool
    with_kwargs: bool

    @property
    def logs(self) -> bool:
        return any(log is not None for _, _, log in self.chosen)


def plan(
    model: Any,
    hook_fn: Any,
    log_fn: Any,
    where: Any,
    pre: bool,
    with_kwargs: bool,
    method: Method,
) -> Plan:
    """Resolves the arguments of a wrapper against its model."""
    if with_kwargs and not pre:
        raise TypeError(
            "`with_kwargs=True` says that the value of a pre hook is `(args, kwargs)`; "
            "write `pre_hook=True, with_kwargs=True`."
        )
    if isinstance(method, str) and not callable(getattr(model, method, None)):
        raise TypeError(
            f"The model, a {type(model).__name__}, has no method {method!r}. Give the "
            "name of one that it has, or a function of the model and its arguments, as "
            "in `method=lambda model, x: model.decode(model.encode(x))`."
        )
    root_method = _root_method(model, method)
    chosen, asked = select(model, where, root_method)
    keys = [c.key(root_method) for c in chosen]
    _, hooks = assign("hook_fn", hook_fn, keys, model)
    _, logs = assign("log_fn", log_fn, keys, model)
    return Plan(
        tuple(
            (c, hooks.get(k), logs.get(k)) for c, k in zip(chosen, keys, strict=True)
        ),
        tuple((name, frozenset(c.key(root_method) for c in cs)) for name, cs in asked),
        method,
        root_method,
        pre,
        with_kwargs,
    )


def _root_method(model: Any, method: Method) -> str:
    if method == "__call__" and isinstance(model, AbstractWrapper):
        return model.plan.root_method
    return method if isinstance(method, str) else "__call__"


def freeze_all(plan: Plan, hook_fn: Any, log_fn: Any) -> tuple[Any, Any]:
    """The hooks and logs by name, split into static parts and arrays."""
    frozen: dict[str, Frozen] = {}
    arrays: dict[str, list[Any]] = {}
    for what, fn in (("hook_fn", hook_fn), ("log_fn", log_fn)):
        named = (
            [(f"{what}[{pattern!r}]", one) for pattern, one in fn.items()]
            if isinstance(fn, dict)
            else [(what, fn)]
        )
        for name, one in named:
            if one is not None:
                frozen[name], arrays[name] = freeze(name, one)
    return frozen, arrays


def run(
    plan: Plan,
    model: Any,
    frozen: dict[str, Frozen],
    collector: Collector,
    backward: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Runs the instrumented model; `collector` takes and gives what its sites do."""
    install()
    sites: dict[str, dict[str, tuple[Site, ...]]] = {}
    for chosen, hook, log in plan.chosen:
        site = Site(
            key=chosen.key(plan.root_method),
            depth=next_depth(),
            backward=backward,
            pre=plan.pre,
            with_kwargs=plan.with_kwargs,
            hook=frozen.get(hook) if hook else None,
            log=frozen.get(log) if log else None,
            watched=bool(plan.asked),
        )
        if site.hook is None and site.log is None and not site.watched:
            continue
        sites.setdefault(chosen.place, {})[chosen.method] = (site,)
    if not sites:
        return call_method(model, plan.method, args, kwargs)
    model = instrument(model, sites)
    with run_with(collector):
        out = call_method(model, plan.method, args, kwargs)
    return strip(out)


def call_method(model: Any, method: Method, args: Any, kwargs: Any) -> Any:
    if not isinstance(method, str):
        return method(model, *args, **kwargs)
    if method == "__call__":
        return model(*args, **kwargs)
    return getattr(model, method)(*args, **kwargs)


def check_fired(plan: Plan, fired: set[str]) -> None:
    """Everything that was asked for explicitly must have run."""
    for name, keys in plan.asked:
        if not keys & fired:
            shown = ", ".join(repr(k) for k in sorted(keys)[:5])
            raise SiteNotFiredError(
                f"`where={name!r}` was asked for, but nothing of it ran in this call: "
                f"{shown} {'was' if len(keys) == 1 else 'were'} never called. Perhaps "
                "the parameters are read without a call, or another method runs it, or "
                "a branch in Python wasn't taken. Sites that ran: "
                f"{', '.join(repr(k) for k in sorted(fired)[:5]) or 'none'}."
            )
