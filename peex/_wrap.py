"""What the two wrappers share: from their arguments to an instrumented model that runs.

`plan` is done once, when a wrapper is built; `run` at every call.
"""

import contextlib
import dataclasses
import fnmatch
import functools as ft
import weakref
from collections.abc import Callable, Container, Sequence
from typing import Any, TypeVar

from . import _compat
from ._collect import Collector, run_with
from ._fired import check_fired
from ._group import grouped, Prefix, refuse, stacked
from ._hooks import IdentityHook
from ._indexed import AbstractIndexedHook
from ._instrument import Memo, strip
from ._log import Numbering
from ._primitives import lost
from ._probe import known as known_probes, own_caches, ProbeMet, Probes, remember
from ._rules import install
from ._running import next_depth, Staged
from ._select import assign, Chosen, first_match, places, probe_patterns, select
from ._site import Ask, freeze, Frozen, Path, Site
from ._walk import AbstractWrapper, unwrap


Method = str | Callable[..., Any]
Sites = dict[str, dict[str, tuple[Site | Path, ...]]]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The static part of a wrapper: what is chosen, and what acts where.

    - `chosen`: the sites with the names of their hook and log (`None`: nothing).
    - `asked`: what was asked for explicitly, and the keys that it chose.
    - `probed`: patterns of a dict of hooks or logs that may be those of probes.
    - `default`: whether `where` was left to choose by itself.
    - `root_method`: the method of the model itself that a call enters by.
    - The others: as the arguments of the wrappers.
    """

    chosen: tuple[tuple[Chosen, str | None, str | None], ...]
    asked: tuple[tuple[str, frozenset[str]], ...]
    probed: tuple[tuple[str, str], ...]
    default: bool
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
    keys = {c.key(root_method): c.suffix for c in chosen}
    if pre and any(keys.values()):
        (key, *_) = (k for k, suffix in keys.items() if suffix)
        raise TypeError(
            f"{key!r} is a value inside of a module, which has no arguments; "
            "`pre_hook=True` is for modules. Leave it out, or name the module."
        )
    probed: list[tuple[str, str]] = []
    acting: dict[str, dict[str, str | None]] = {}
    for what, fn in (("hook_fn", hook_fn), ("log_fn", log_fn)):
        named(what, fn)  # raises early
        patterns = []
        if where is None and not pre:
            patterns = probe_patterns(model, fn, keys, root_method)
        acting[what] = assign(what, fn, keys, patterns)
        probed += [(what, pattern) for pattern in patterns]
    hooks, logs = acting["hook_fn"], acting["log_fn"]
    key_of = lambda c: c.key(root_method)
    return Plan(
        tuple((c, hooks[key_of(c)], logs[key_of(c)]) for c in chosen),
        tuple((name, frozenset(map(key_of, cs))) for name, cs in asked),
        tuple(probed),
        where is None,
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
        self.fns = {"hook_fn": hook_fn, "log_fn": log_fn}
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
        key = self._number(site)
        hook = self.indexed[site.hook.name]
        self._data[key] = hook.data(key, info.shapes, info.axes)
        return self._data[key]


Collected = TypeVar("Collected", bound=HookCollector)


def only_call(info: Ask, calls: Container[str]) -> str:
    """The key of the call that is recomputed here."""
    key = info.site.key
    if info.site.numbered(1) in calls:
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
        if not (collector.frozen or plan.asked or plan.probed):  # nothing to do
            return call_method(model, plan.method, args, kwargs), collector
        known = known_probes(plan)
        make = _SiteMaker(plan, collector, backward, groups)
        instrumented = _instrumented(model, make, known)
        collector.probes = probes = Probes(
            ft.partial(_wanted, plan), make.of_probe, known, plan.default
        )
        try:
            with run_with(collector), own_caches("peex"):
                out = call_method(instrumented, plan.method, args, kwargs)
        except Staged as signal:
            if signal.depth != collector.depth:
                raise
            direct = False
            _remember_staging(plan, model)
        except ProbeMet as met:
            if met.probes is not probes:
                raise
            remember(plan, met.name)
        except ValueError as error:
            group = stacked(error)
            if group is None or group in groups:
                if "<site " in str(error):
                    refuse(error)
                raise
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


def _instrumented(model: Any, make: "_SiteMaker", known: frozenset[str] | None) -> Any:
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

    def sites() -> Sites:
        sites = _sites(plan, make, known)
        if known is not None:
            _tell_keys(sites, model, make)
        return sites

    return plan.memo.instrument(model, key, sites)


@dataclasses.dataclass
class _SiteMaker:
    """Makes the sites of one run."""

    plan: Plan
    collector: HookCollector
    backward: bool
    groups: set[Prefix]

    def __call__(
        self,
        key: str,
        suffix: str,
        inside: tuple[str, int | None] | None,
        hook: str | None,
        log: str | None,
    ) -> Site | None:
        """A site, from its key and the names of its hook and log; `None` if there is
        nothing to do.
        """
        plan, frozen = self.plan, self.collector.frozen
        site = Site(
            key=grouped(key, self.groups),
            depth=self.collector.depth,
            direct=self.collector.direct,
            backward=self.backward,
            pre=plan.pre,
            with_kwargs=plan.with_kwargs,
            hook=frozen.get(hook) if hook else None,
            log=frozen.get(log) if log else None,
            indexed=hook in self.collector.indexed,
            watched=bool(plan.asked or plan.probed),
            while_buffer=plan.while_buffer,
            inside=inside,
            suffix=suffix,
        )
        acts = site.hook is not None or site.log is not None or site.watched
        return site if acts else None

    def of_probe(self, module: str, name: str, index: int) -> Site | None:
        """The site of a probe, met while the method of a module ran."""
        suffix = f"/{name}#{index}" if index else f"/{name}"
        key = f"{module}{suffix}"
        if self.plan.default:
            first = ft.partial(first_match, key=key, suffix=suffix)
            hook, log = (first(what, fn) for what, fn in self.collector.fns.items())
            return self(key, suffix, None, hook, log)
        for chosen, hook, log in self.plan.chosen:
            around = chosen.key(self.plan.root_method).removesuffix(chosen.suffix)
            mine = grouped(around, self.groups) == module and _names(chosen, name)
            if mine and chosen.index in (None, index):
                return self(key, suffix, None, hook, log)
        return None


def _wanted(plan: Plan, name: str) -> bool:
    """Whether a probe of this name may be a site."""
    if plan.pre:
        return False  # it has no arguments
    return plan.default or any(_names(chosen, name) for chosen, _, _ in plan.chosen)


def _names(chosen: Chosen, name: str) -> bool:
    return chosen.inside is not None and fnmatch.fnmatchcase(name, chosen.inside)


def _sites(plan: Plan, make: _SiteMaker, known: frozenset[str] | None) -> Sites:
    """The sites by module and method, without those of the `known` probes."""
    sites: Sites = {}
    for chosen, hook, log in plan.chosen:
        if any(_names(chosen, name) for name in known or ()):
            continue
        key = chosen.key(plan.root_method)
        site = make(key, chosen.suffix, _inside(chosen), hook, log)
        if site is not None:
            methods = sites.setdefault(chosen.place, {})
            methods[chosen.method] = (*methods.get(chosen.method, ()), site)
    return sites


def _tell_keys(sites: Sites, model: Any, make: _SiteMaker) -> None:
    """Has every callable module tell its key while it runs."""
    root_method, depth = make.plan.root_method, make.collector.depth
    for place in places(model, root_method):
        if not place.called:
            continue
        methods = sites.setdefault(place.name, {})
        entry = root_method if place.key == () else "__call__"
        for method in {entry: None, **methods}:
            key = Chosen(place.name, method).key(root_method)
            path = Path(grouped(key, make.groups), depth)
            methods[method] = (path, *methods.get(method, ()))


def _inside(chosen: Chosen) -> tuple[str, int | None] | None:
    return None if chosen.inside is None else (chosen.inside, chosen.index)


def call_method(model: Any, method: Method, args: Any, kwargs: Any) -> Any:
    if not isinstance(method, str):
        return method(model, *args, **kwargs)
    if method == "__call__":
        return model(*args, **kwargs)
    return getattr(model, method)(*args, **kwargs)
