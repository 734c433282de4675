"""What the two wrappers share: from their arguments to an instrumented model that runs.

`plan` is done once, when a wrapper is built; `run` at every call.
"""

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Container, Sequence
from typing import Any, TypeVar

from . import _compat
from ._collect import Collector, run_with
from ._errors import SiteNotFiredError
from ._group import grouped, Prefix, refuse, stacked
from ._hooks import IdentityHook
from ._indexed import AbstractIndexedHook
from ._instrument import Memo, strip
from ._log import Numbering
from ._primitives import lost
from ._rules import install
from ._running import next_depth, Staged
from ._select import assign, Chosen, select
from ._site import Ask, freeze, Frozen, Site
from ._walk import AbstractWrapper, unwrap


Method = str | Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The static part of a wrapper: what is chosen, and what acts where.

    - `chosen`: the sites with the names of their hook and log (`None`: nothing).
    - `asked`: what was asked for explicitly, and the keys that it chose.
    - `root_method`: the method of the model itself that a call enters by.
    - The others: as the arguments of the wrappers.
    """

    chosen: tuple[tuple[Chosen, str | None, str | None], ...]
    asked: tuple[tuple[str, frozenset[str]], ...]
    method: Method
    root_method: str
    pre: bool
    with_kwargs: bool
    while_buffer: int | None = None
    max_bytes: int | None = None
    memo: Memo = dataclasses.field(default_factory=Memo, compare=False, repr=False)

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
    while_buffer: int | None = None,
    max_bytes: int | None = None,
) -> Plan:
    """Resolves the arguments of a wrapper against its model."""
    if with_kwargs and not pre:
        raise TypeError(
            "`with_kwargs=True` says that the value of a pre hook is `(args, kwargs)`; "
            "write `pre_hook=True, with_kwargs=True`."
        )
    check_method(model, method)
    if while_buffer is not None and while_buffer < 1:
        raise TypeError(
            f"`while_buffer={while_buffer}` is how many of the last iterations of a "
            "while loop are logged: a positive integer, or None for the last alone."
        )
    if max_bytes is not None and max_bytes < 0:
        raise TypeError(
            f"`max_bytes={max_bytes}` is how many bytes a log may take: a number that "
            "isn't negative, or None for any."
        )
    root_method = root_method_of(model, method)
    chosen, asked = select(model, where, root_method)
    keys = [c.key(root_method) for c in chosen]
    for what, fn in (("hook_fn", hook_fn), ("log_fn", log_fn)):
        named(what, fn)  # raises early
    hooks = assign("hook_fn", hook_fn, keys)
    logs = assign("log_fn", log_fn, keys)
    return Plan(
        tuple(
            (c, hooks.get(k), logs.get(k)) for c, k in zip(chosen, keys, strict=True)
        ),
        tuple((name, frozenset(c.key(root_method) for c in cs)) for name, cs in asked),
        method,
        root_method,
        pre,
        with_kwargs,
        while_buffer,
        max_bytes,
    )


def named(what: str, fn: Any) -> list[tuple[str, Any]]:
    """Hooks or logs by name. `fn` is one, `None`, or a dict from patterns to these."""
    by_name = {what: fn}
    if isinstance(fn, dict):
        by_name = {f"{what}[{pattern!r}]": one for pattern, one in fn.items()}
    for name, one in by_name.items():
        allowed = callable(one) or isinstance(one, AbstractIndexedHook) or one is None
        if not allowed:
            raise TypeError(
                f"`{name}` is a callable, None, or a dict from patterns to these; got "
                f"{one!r}."
            )
    return [(name, one) for name, one in by_name.items() if one is not None]


def check_method(model: Any, method: Method) -> None:
    if isinstance(method, str) and not callable(getattr(model, method, None)):
        raise TypeError(
            f"The model, a {type(model).__name__}, has no method {method!r}. Give the "
            "name of one that it has, or a function of the model and its arguments, as "
            "in `method=lambda model, x: model.decode(model.encode(x))`."
        )


def root_method_of(model: Any, method: Method) -> str:
    """The method of the model itself that a call enters by."""
    if method == "__call__" and isinstance(model, AbstractWrapper):
        return model.plan.root_method
    return method if isinstance(method, str) else "__call__"


class HookCollector(Collector):
    """Collects for a wrapper, and answers with what its hooks hold.

    - `frozen`: the hooks and logs by name, without their arrays.
    """

    def __init__(self, hook_fn: Any, log_fn: Any):
        super().__init__(next_depth())
        self.frozen: dict[str, Frozen] = {}
        self.indexed: dict[str, AbstractIndexedHook] = {}
        self._arrays: dict[str, list[Any]] = {}
        self._data: dict[str, list[Any]] = {}
        self._number = Numbering()
        for name, fn in [*named("hook_fn", hook_fn), *named("log_fn", log_fn)]:
            if isinstance(fn, AbstractIndexedHook):
                self.indexed[name] = fn
                fn = fn.local
            if type(fn) is not IdentityHook:
                self.frozen[name], self._arrays[name] = freeze(name, fn)

    def supply(self, info: Ask) -> Sequence[Any]:
        if info.shared:
            return self._arrays[info.slot]
        site = info.site
        self.heard.add(site.key)
        if info.again:
            return self._data[only_call(info, self._data)]
        assert site.hook is not None
        key = self._number(site.key)
        hook = self.indexed[site.hook.name]
        self._data[key] = hook.data(key, info.shapes, info.axes)
        return self._data[key]


Collected = TypeVar("Collected", bound=HookCollector)


def only_call(info: Ask, calls: Container[str]) -> str:
    """The key of the call that is recomputed here."""
    key = info.site.key
    if f"{key}#1" in calls:
        lost(
            info.site,
            "it is called more than once, and recomputed in a derivative inside the "
            "model (`jax.grad` of a `jax.checkpoint`): it can't be told which call is "
            "which.",
        )
    return key


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
    while True:
        collector = make_collector()
        collector.direct = direct
        instrumented = _instrumented(plan, model, collector, backward, groups)
        if instrumented is model:  # nothing to do
            return call_method(model, plan.method, args, kwargs), collector
        try:
            with run_with(collector):
                out = call_method(instrumented, plan.method, args, kwargs)
        except Staged as signal:
            if signal.depth != collector.depth:
                raise
            direct = False
            _remember_staging(plan, model)
        except ValueError as error:
            group = stacked(error)
            if group is None or group in groups:
                if "<site " in str(error):
                    refuse(error)
                raise
            groups.add(group)
        else:
            collector.check_heard()
            _check_fired(plan, collector.heard, groups)
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


def _instrumented(
    plan: Plan,
    model: Any,
    collector: HookCollector,
    backward: bool,
    groups: set[Prefix],
) -> Any:
    if not collector.frozen and not plan.asked:
        return model
    key = (
        collector.depth,
        collector.direct,
        backward,
        frozenset(groups),
        tuple(collector.frozen.items()),
        frozenset(collector.indexed),
    )
    sites = lambda: _sites(plan, collector, backward, groups)
    return plan.memo.instrument(model, key, sites)


def _sites(
    plan: Plan, collector: HookCollector, backward: bool, groups: set[Prefix]
) -> dict[str, dict[str, tuple[Site, ...]]]:
    """The sites by module and method."""
    frozen = collector.frozen
    sites: dict[str, dict[str, tuple[Site, ...]]] = {}
    for chosen, hook, log in plan.chosen:
        site = Site(
            key=grouped(chosen.key(plan.root_method), groups),
            depth=collector.depth,
            direct=collector.direct,
            backward=backward,
            pre=plan.pre,
            with_kwargs=plan.with_kwargs,
            hook=frozen.get(hook) if hook else None,
            log=frozen.get(log) if log else None,
            indexed=hook in collector.indexed,
            watched=bool(plan.asked),
            while_buffer=plan.while_buffer,
        )
        if site.hook is not None or site.log is not None or site.watched:
            sites.setdefault(chosen.place, {})[chosen.method] = (site,)
    return sites


def call_method(model: Any, method: Method, args: Any, kwargs: Any) -> Any:
    if not isinstance(method, str):
        return method(model, *args, **kwargs)
    if method == "__call__":
        return model(*args, **kwargs)
    return getattr(model, method)(*args, **kwargs)


def _check_fired(plan: Plan, fired: set[str], groups: set[Prefix]) -> None:
    """Everything that was asked for explicitly must have run."""
    for name, keys in plan.asked:
        if not {grouped(key, groups) for key in keys} & fired:
            shown = ", ".join(repr(k) for k in sorted(keys)[:5])
            raise SiteNotFiredError(
                f"`where={name!r}` was asked for, but nothing of it ran in this call: "
                f"{shown} {'was' if len(keys) == 1 else 'were'} never called. Perhaps "
                "the parameters are read without a call, or another method runs it, or "
                "a branch in Python wasn't taken. Sites that ran: "
                f"{', '.join(repr(k) for k in sorted(fired)[:5]) or 'none'}."
            )
