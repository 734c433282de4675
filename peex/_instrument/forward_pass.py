"""Named values inside of a module's forward pass.

A module that is asked for some is traced when it is called, and its program is run
equation by equation, under whatever transformation is active there; behind the
equations that make a named value, that value goes through its sites. What has a name,
and which equations make it, is found in `_instrument/names.py`.
"""

import dataclasses
import fnmatch
import functools as ft
import inspect
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax

from .. import _compat
from .._engine.active_calls import listener_at, this_thread
from .._engine.at_site import at_site
from .._engine.reading import of_jaxpr
from .._engine.rule import AbstractRunner, Arrays, Outcome, rule_of
from .._engine.signature import EMPTY, Signature
from .._engine.site import Site, suffix_of
from .._engine.values import taken_out
from .._errors import SiteLostError
from .._sites.chosen import is_wild
from .._sites.walk import children, is_function_site, is_module
from .names import CallPath, Codes, Found, Named, Reader
from .probe import private_caches
from .returned import listening, not_listening


AtName = Callable[[Found, Any], Any]


def call_with_names(
    sites: Sequence[Site], fn: Callable, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Calls `fn`, a method of a module or a function, with these sites inside."""
    if _runs_eagerly():
        # Where Python looks at values, the call can't be traced; for the names of
        # probes it needn't be.
        _, module = method_and_module(fn)
        sites = [s for s in sites if s.inside and not _has_probe(module, s.inside[0])]
        if not sites:
            return fn(*args, **kwargs)
    wanted_names = {site.inside[0] for site in sites if site.inside is not None}
    forward = trace(sites[0].key, fn, args, kwargs, wanted_names)
    names = forward.names
    probes = {s for s in sites if _is_probe(s, forward.jaxpr)}
    sites = [s for s in sites if s not in probes]
    matching = {
        s.inside[0]: forward.matching(s.inside[0])
        for s in sites
        if s.inside is not None
    }
    every = (name for found in matching.values() for name in found)
    wanted = {name: names.equation(name) for name in every}
    counts: dict[str, int] = {}
    level = forward.level(wanted, counts)
    for site in sites:
        assert site.inside is not None
        name, index = site.inside
        collector = listener_at(site.depth)
        most = max((counts.get(n, -1) for n in matching[name]), default=-1)
        if most < (index or 0) and collector is not None:
            collector.missed[site.key] = forward.seen(name)
    with not_listening():
        return forward.run(level, ft.partial(_at_sites, sites))


def _runs_eagerly() -> bool:
    current = _compat.current_trace()
    return getattr(current, "eager", _compat.is_eval_trace(current))


def _has_probe(module: Any, name: str) -> bool:
    """Whether the code of a module's class writes `probe(..., name)`."""
    functions = (f for cls in type(module).__mro__ for f in vars(cls).values())
    codes = [_code_of(f) for f in functions if callable(f)]
    while codes:
        code = codes.pop()
        if code is None:
            continue
        if "probe" in code.co_names and name in code.co_consts:
            return True
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return False


def _is_probe(site: Site, jaxpr: Any) -> bool:
    """Whether its name is that of a `px.probe` in this program, which is a site by
    itself.
    """
    assert site.inside is not None
    return not is_wild(site.inside[0]) and any(
        probe.depth == site.depth
        and probe.inside is None
        and probe.module == site.module
        and probe.suffix[1:].partition("#")[0] == site.inside[0]
        for probe in of_jaxpr(jaxpr).sites
        if probe.suffix
    )


def _at_sites(sites: Sequence[Site], found: Found, value: Any) -> Any:
    """Those of the inner wrappers first, as around a module. Of the sites of a wrapper
    (that have one name of the user's own, and are of one call) it is the one that names
    the value most exactly.
    """
    best: dict[Any, tuple[int, Site]] = {}
    for site in sites:
        exactness = _exactness(site, found)
        group = site.depth, site.alias and site.alias[0], site.call
        if exactness > best.get(group, (0, None))[0]:
            best[group] = exactness, site
    for _, site in reversed(best.values()):
        suffix = suffix_of(found.name, found.index)
        if suffix != site.suffix:
            key = f"{site.module}{suffix}"
            alias = site.alias and (site.alias[0], suffix)
            site = dataclasses.replace(site, key=key, suffix=suffix, alias=alias)
        collector = listener_at(site.depth)
        if collector is not None:
            collector.written[site.key] = found.place
        value = at_site(site, value)
    return value


def _exactness(site: Site, found: Found) -> int:
    """How exactly a site names a value; 0 if it doesn't."""
    assert site.inside is not None
    name, index = site.inside
    if index not in (None, found.index):
        return 0
    if name == found.name:
        return 2 if index is None else 3
    return 1 if fnmatch.fnmatchcase(found.name, name) else 0


def trace(
    key: str,
    fn: Callable,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    names: Collection[str],
) -> "Forward":
    """The program of a call, with the calls of Python functions of these names marked.
    What isn't an array is part of it.

    **Raises:** `SiteLostError` where the values of arrays decide what Python does.
    """
    method, module = method_and_module(fn)
    if module is not None:
        # Closed over, its arrays would be kept by JAX's caches.
        fn, args = method, (module, *args)
    leaves, given = taken_out((args, kwargs))
    outer: list[Any] = []
    finish: list[Any] = []

    def forward(*leaves: Any) -> Any:
        here: Any = inspect.currentframe()
        stack = _compat.current_frames()
        here = [code for code, _ in stack].index(here.f_code)
        outer[:] = stack[here][0], stack[here + 1 :]
        args, kwargs = given(leaves)
        out, returned = taken_out(fn(*args, **kwargs))
        finish[:] = [returned]
        return out

    reader = Reader(_code_of(method), _codes_of_parts(module))
    is_own = ft.partial(reader.is_own_call, forward.__code__)
    # Functions that JAX has kept have no marks, or those of other names.
    caches = private_caches("peex", *sorted(names))
    this_thread.num_traced += 1
    try:
        with caches, listening(names, is_own, reader.is_visible_call):
            jaxpr = jax.make_jaxpr(forward)(*leaves)
    except _compat.VALUE_ERRORS as error:
        if not _runs_eagerly():
            raise  # as it would without peex
        raise SiteLostError(
            f"Named values inside of a module, as {key!r}, are found by tracing its "
            "forward pass, as `jax.jit` does. Here Python looks at the values of "
            "arrays, so it can't be traced. Mark the value with `px.probe(x, "
            "'name')`, or hook a module inside."
        ) from error
    finally:
        this_thread.num_traced -= 1
    jaxpr, consts = _compat.open_jaxpr(jaxpr)
    paths = [reader.own_path(_path(eqn, *outer)) for eqn in jaxpr.eqns]
    return Forward(jaxpr, consts, leaves, finish[0], reader, paths)


def _path(eqn: Any, code: types.CodeType, outer: list[_compat.Frame]) -> CallPath:
    """What is on the stack inside of the traced function, which has this code."""
    frames = _compat.frames_of(eqn)
    inside = len(frames) - len(outer) - 1
    if inside < 0 or frames[inside][0] is not code or frames[inside + 1 :] != outer:
        return None  # of a program that was traced elsewhere
    return tuple(reversed(frames[:inside]))


def method_and_module(fn: Any) -> tuple[Any, Any]:
    # As an instrumented module calls it, or a method that Equinox has transformed.
    if isinstance(fn, ft.partial | eqx.Partial) and fn.args:
        return fn.func, fn.args[0]
    return getattr(fn, "__func__", fn), getattr(fn, "__self__", None)


def _code_of(fn: Any) -> types.CodeType | None:
    return getattr(inspect.unwrap(fn), "__code__", None)


def _codes_of_parts(module: Any) -> Codes:
    """The code of the `__call__`s of all callable modules inside of a module."""
    codes = set()

    def visit(node: Any) -> None:
        for _, child in children((), node):
            # A function in a field is part of the module, whether it is a site or not.
            if is_module(child) and not is_function_site(child):
                codes.add(_code_of(type(child).__call__))
            visit(child)

    visit(module)
    return frozenset(codes - {None})


@dataclasses.dataclass(frozen=True)
class Forward:
    """The program of one call of a module."""

    jaxpr: Any
    consts: Sequence[Any]
    args: Sequence[Any]
    finish: Callable[[Sequence[Any]], Any]
    reader: Reader
    paths: Sequence[CallPath]

    @property
    def names(self) -> Any:
        return self.reader.names(self.jaxpr, self.paths)

    def level(self, wanted: Mapping[str, str | None], counts: dict[str, int]) -> Named:
        return self.reader.level(self.jaxpr, self.paths, wanted, counts)

    def matching(self, pattern: str) -> list[str]:
        """The names that a pattern stands for."""
        if not is_wild(pattern):
            return [pattern]
        return fnmatch.filter(self._places, pattern)

    def seen(self, name: str) -> tuple[dict[str, str], str | None]:
        """What there is instead of a name: the names of values, with their places in
        the source, and the primitive that hides it.
        """
        return self._places, self.names.hidden.get(name)

    @ft.cached_property
    def _places(self) -> dict[str, str]:
        return self.reader.places(self.jaxpr, self.paths)

    def run(self, level: Named, at_name: AtName) -> Any:
        """Runs it; named values go through `at_name`."""
        return self.finish(_run(level, self.consts, self.args, at_name))


def _run(
    level: Named, consts: Sequence[Any], args: Sequence[Any], at_name: AtName
) -> list[Any]:
    jaxpr = level.jaxpr
    env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
    read = lambda atom: atom.val if _compat.is_literal(atom) else env[atom]
    # The equations up to each that has something behind it or in it, at once.
    start = 0
    for i in sorted({*level.found, *level.bodies, len(jaxpr.eqns)}):
        stop = i if i in level.bodies else min(i + 1, len(jaxpr.eqns))
        _run_part(jaxpr, start, stop, env)
        if i in level.bodies:
            eqn = jaxpr.eqns[i]
            outs = _run_bodies(eqn, level.bodies[i], [*map(read, eqn.invars)], at_name)
            env |= zip(eqn.outvars, outs, strict=True)
        for found in level.found.get(i, ()):
            values = tuple(env[v] for v in found.variables)
            if len(values) == 1:
                values = (at_name(found, values[0]),)
            else:
                values = at_name(found, values)
            env |= zip(found.variables, values, strict=True)
        start = i + 1
    return [read(atom) for atom in jaxpr.outvars]


def _run_part(jaxpr: Any, start: int, stop: int, env: dict[Any, Any]) -> None:
    if start >= stop:
        return
    eqns = jaxpr.eqns[start:stop]
    outs = [v for eqn in eqns for v in eqn.outvars]
    read = (v for eqn in eqns for v in eqn.invars if not _compat.is_literal(v))
    ins = [v for v in dict.fromkeys(read) if v in env]
    part = _compat.part_of_jaxpr(jaxpr, start, stop, ins, outs)
    # Inside of a forward pass that is traced too, its calls are what has to be known.
    values = _compat.eval_jaxpr(
        part,
        (),
        *(env[v] for v in ins),
        propagate_source_info=not this_thread.num_traced,
    )
    env |= zip(outs, values, strict=True)


class _NamedRunner(AbstractRunner):
    """Runs the bodies of an equation, the named values in them through their sites. It
    takes nothing out.
    """

    def __init__(self, levels: Sequence[Named], at_name: AtName):
        self._levels = {level.jaxpr: level for level in levels}
        self._at_name = at_name

    def inside(self, jaxpr: Any) -> Signature:
        return EMPTY

    def run(
        self,
        jaxpr: Any,
        args: Sequence[Any],
        arrays: Arrays,
        once_more: bool = False,
    ) -> Outcome:
        jaxpr, consts = _compat.open_jaxpr(jaxpr)
        return _run(self._levels[jaxpr], consts, args, self._at_name), []


def _run_bodies(
    eqn: Any, levels: Sequence[Named], args: Sequence[Any], at_name: AtName
) -> list[Any]:
    """Runs an equation with its bodies run by `_run`."""
    rule: Any = rule_of(eqn.primitive)
    outs, _ = rule.rebind(
        eqn.params, args, Arrays([], {}), _NamedRunner(levels, at_name)
    )
    return outs
