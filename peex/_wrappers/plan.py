"""What a wrapper is told, checked against its model once, when it is built."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import equinox as eqx

from .._engine.site import Side
from .._hooks.call_hooks import AbstractCallHook
from .._hooks.callables import refuse_class
from .._hooks.step_hooks import AbstractStepHook
from .._instrument.instrument import Memo
from .._sites.chosen import Chosen, with_calls
from .._sites.patterns import assign
from .._sites.places import Place, places
from .._sites.select import probe_patterns, select
from .._sites.walk import AbstractWrapper
from .types import Method


Wanted = tuple[str, int | None]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The static part of a wrapper: what is chosen, and what acts where.

    - `chosen`: the sites with the names of their hook and log (`None`: nothing).
    - `asked`: what was asked for explicitly, and the sites that it chose: the key, and
        which further call (`None`: all).
    - `acting`: the patterns of dicts of hooks and logs, and the sites at which each
        acts.
    - `probed`: patterns of a dict of hooks or logs that may be those of probes.
    - `default`: whether `where` was left to choose by itself.
    - `root_method`: the method of the model itself that a call enters by.
    - `side`: which value of its calls a module stands for, unless `":in"` says so.
    - The others: as the arguments of the wrappers.
    """

    chosen: tuple[tuple[Chosen, str | None, str | None], ...]
    asked: tuple[tuple[str, frozenset[Wanted]], ...]
    acting: tuple[tuple[str, str, frozenset[Wanted]], ...]
    probed: tuple[tuple[str, str], ...]
    default: bool
    method: Method
    root_method: str
    side: Side
    while_buffer: int | None = None
    max_bytes: int | None = None
    memo: Memo = dataclasses.field(default_factory=Memo, compare=False, repr=False)

    def __hash__(self) -> int:
        # At every call of a jitted function that takes a wrapper.
        if self.memo.plan_hash is None:
            others = (self.default, self.root_method, self.side)
            try:
                method = hash(self.method)
            except TypeError:  # a module that holds arrays
                method = hash(type(self.method))
            self.memo.plan_hash = hash((self.chosen, self.asked, method, others))
        return self.memo.plan_hash

    @functools.cached_property
    def may_probe(self) -> bool:
        """Whether a `px.probe` may be a site: it has no arguments."""
        by_name = any(chosen.inside is not None for chosen, _, _ in self.chosen)
        return not self.pre and (self.default or by_name)

    @property
    def pre(self) -> bool:
        return self.side is not Side.OUTPUT

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
    root_method = root_method_of(model, method)
    all_places = places(model, root_method)
    check_model(model, all_places)
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
    chosen, asked = select(model, all_places, where, root_method)
    chosen = with_calls(chosen, hook_fn, root_method)
    key_of = {c: c.key(root_method) for c in chosen}
    keys = {key: (c.named(c.suffix) or ("", c.suffix))[1] for c, key in key_of.items()}
    inside = [key for c, key in key_of.items() if c.inside is not None]
    if pre and inside:
        (key, *_) = inside
        raise TypeError(
            f"{key!r} is a value inside of a module, which has no arguments; "
            "`pre_hook=True` is for modules. Leave it out, or name the module."
        )
    probed: list[tuple[str, str]] = []
    acting: dict[str, dict[str, str | None]] = {}
    patterns_acting: list[tuple[str, str, frozenset[Wanted]]] = []
    for what, fn in (("hook_fn", hook_fn), ("log_fn", log_fn)):
        by_name(what, fn)  # raises early
        patterns = []
        if where is None and not pre:
            patterns = probe_patterns(model, fn, keys, root_method)
        acting[what] = assign(what, fn, keys, patterns)
        if what == "log_fn":  # what has a hook of its own has the log of all calls
            acting[what].update((key_of[c], None) for c in chosen if c.own_hook)
        probed += [(what, pattern) for pattern in patterns]
        for pattern, one in fn.items() if isinstance(fn, dict) else ():
            name = f"{what}[{pattern!r}]"
            at = frozenset(
                (c.site_key(root_method), c.call)
                for c, key in key_of.items()
                if acting[what][key] == name
            )
            if one is not None and at:
                patterns_acting.append((what, pattern, at))
    hooks, logs = acting["hook_fn"], acting["log_fn"]
    _check_call_hooks(hook_fn, {key: hooks[key] for key in inside})
    return Plan(
        tuple([(c, hooks[key], logs[key]) for c, key in key_of.items()]),
        tuple(
            (name, frozenset((c.site_key(root_method), c.call) for c in cs))
            for name, cs in asked
        ),
        tuple(patterns_acting),
        tuple(probed),
        where is None,
        method,
        root_method,
        _side(pre, with_kwargs),
        while_buffer,
        max_bytes,
    )


def _check_call_hooks(hook_fn: Any, inside: Mapping[str, str | None]) -> None:
    """Refuses hooks around calls at values inside of modules."""
    names = {
        name
        for name, one in by_name("hook_fn", hook_fn)
        if isinstance(one, AbstractCallHook)
    }
    for key, name in inside.items():
        if name in names:
            raise TypeError(
                f"{key!r} is a value inside of a module, and no call: an AroundCall or "
                "ReplaceCall stands around the call of a module. Name the module, or "
                "use a hook of values, as `px.ReplaceHook(value)`."
            )


def _side(pre: bool, with_kwargs: bool) -> Side:
    if not pre:
        return Side.OUTPUT
    return Side.ARGS_AND_KWARGS if with_kwargs else Side.ARGS


def by_name(what: str, fn: Any) -> list[tuple[str, Any]]:
    """Hooks or logs by name. `fn` is one, `None`, or a dict from patterns to these."""
    fns = {what: fn}
    if isinstance(fn, dict):
        fns = {f"{what}[{pattern!r}]": one for pattern, one in fn.items()}
    for name, one in fns.items():
        refuse_class(f"`{name}`", one)
        allowed = callable(one) or isinstance(one, AbstractStepHook) or one is None
        if not allowed:
            raise TypeError(
                f"`{name}` is a callable, None, or a dict from patterns to these; got "
                f"{one!r}."
            )
        if what == "log_fn" and isinstance(one, AbstractStepHook):
            _ = one.log_half  # raises for what is no log
    return [(name, one) for name, one in fns.items() if one is not None]


def check_model(model: Any, all_places: list[Place]) -> None:
    if any(isinstance(p.node, eqx.Module) for p in all_places):
        return
    name = type(model).__name__
    raise TypeError(
        f"There is no module to be seen in the model, a {name}: hooks are put into the "
        "modules of a pytree. Of a function that holds one, give the module itself: "
        "write `eqx.filter_vmap(module)` for `jax.vmap(module)`, "
        "`eqx.filter_jit(module)` for `jax.jit(module)`, and for a method or another "
        "function `px.ForwardHook(module, method=...)`."
    )


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
