"""What flows through a model: `peex.report`, by an abstract run.

It is built on what a hooked call does (sites, taps, signatures), so that what it says
is what a log will hold.
"""

import dataclasses
import fnmatch
from collections.abc import Container, Iterable, Sequence
from typing import Any

import jax
import jax.tree_util as jtu

from .._engine.messages import Axes
from .._engine.numbering import Numbering
from .._engine.signature import TapSpec
from .._engine.site import Side, Site
from .._engine.values import once
from .._log import described
from .._program.call_tree import Node
from .._program.layers import Scans
from .._sites.chosen import Chosen
from .._sites.patterns import with_places
from .._sites.places import Place, places, public_methods, static_modules
from .._sites.select import default_of, select
from .._sites.stacked import grouped
from .._wrappers.plan import check_method, root_method_of
from .._wrappers.types import Method, Where
from .abstract_run import AbstractRun, run_abstractly
from .calls import Call, Tree
from .parameters import is_array_or_shape, Parameter, Parameters
from .result import Missing, Report
from .sites import class_name


def report(
    model: Any,
    *args: Any,
    where: Where = None,
    method: Method = "__call__",
    **kwargs: Any,
) -> Report:
    """Says what a call of a model has to hook: what runs, in which order, and with
    which shapes; and what doesn't, and why. The call is only traced: nothing is
    computed, and a model too large for this machine costs nothing.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        make = lambda key: eqx.nn.MLP(2, 1, 100_000, depth=2, key=key)
        mlp = eqx.filter_eval_shape(make, jax.random.key(0))
        report = px.report(mlp, jax.ShapeDtypeStruct((2,), jnp.float32))
        str(report)  # a table, as `print` shows it
        list(report.entries)  # ['layers.0', 'layers.1', 'layers.2']
        report["layers.1"].flops  # 20000100000
        ```

    **Arguments:**

    - `model`: any Equinox module, or a pytree of modules. Its arrays, and those among
        the arguments, may be `jax.ShapeDtypeStruct`s.
    - `*args`, `**kwargs`: as for the call. As under `eqx.filter_jit`, what isn't an
        array is static, and a branch in Python can't depend on an array's value.
    - `where`, `method`: as for [`peex.ForwardHook`][].

    **Returns:**

    A [`peex.Report`][]. Its `entries` are what the log of
    `px.ForwardHook(model, where=where, method=method)(*args, **kwargs)` will hold; its
    `tree` shows the calls of all modules within each other, by `__call__` or by any
    public method.

    **Raises:**

    [`peex.SiteNotFoundError`][] if a part of `where` matches nothing. What doesn't run
    or can't be brought out doesn't raise: it is in `missing`.
    """
    check_method(model, method)
    root_method = root_method_of(model, method)
    all_places = places(model, root_method)
    selected, asked = select(model, all_places, where, root_method)
    chosen, asked = _of_all_calls(selected), [(n, _of_all_calls(c)) for n, c in asked]
    at = {place.name: place for place in all_places}
    callable_ = (default_of(p, root_method) for p in at.values() if p.called)
    plain = {dataclasses.replace(c, alias=None) for c in chosen}
    by_method = [Chosen(p.name, m) for p in all_places for m in public_methods(p.node)]
    methods = [c for c in by_method if c not in plain and c.key(root_method) != c.place]
    everything = (*chosen, *(c for c in callable_ if c not in plain), *methods)
    told = {c.module_key(root_method) for c in chosen}
    silent = {c.key(root_method) for c in methods} - told
    probed = None if where is None else [c for c in chosen if c.inside is not None]
    abstract = run_abstractly(
        model, everything, probed, root_method, method, args, kwargs, silent
    )
    key_of = lambda c: grouped(c.site_key(root_method), abstract.groups)
    named = [(key_of(c), c) for c in everything]
    known = _Known(model, all_places, [(key, at[c.place]) for key, c in named])
    logged = abstract.calls.logged
    numbering = Numbering()
    numbers = {id(node): numbering.next(node.site) for node in logged}
    at_site: dict[str, list[Chosen]] = {}
    for c in selected:
        at_site.setdefault(key_of(c), []).append(c)
    log_keys = {
        id(node): _log_keys(
            node.site, numbers[id(node)], at_site.get(node.site.key, ())
        )
        for node in logged
    }
    silent = {grouped(key, abstract.groups) for key in silent}
    made = _calls(abstract, known, numbers, log_keys, silent)
    wanted = set(chosen)
    keys = dict.fromkeys(key for key, c in named if c in wanted)
    entries = {
        key: dataclasses.replace(made[i], key=key)
        for i, keys_ in log_keys.items()
        for key in keys_
    }
    fired = {key for node in logged for key in (node.site.key, node.site.chosen)}
    # A pattern for values inside is one question to many modules.
    answered = {
        key_of(c)
        for _, group in asked
        if any(key_of(c) in fired for c in group)
        for c in group
        if c.inside is not None
    }
    inside = {key for key, c in named if c.inside is not None}
    # The values that a pattern for them stands for may be marked by `px.probe` alone.
    by_pattern = {k for k in inside if fnmatch.filter(fired, k)}
    silent = [k for k in keys if k not in fired | answered | by_pattern]
    missing = _missing(abstract, known, silent, inside)
    if where is None:
        missing += [_static(p.name, p.node) for p in static_modules(model)]
    return Report(
        entries=entries,
        tree=Tree(tuple(made[id(n)] for n in abstract.calls.roots if id(n) in made)),
        missing={m.key: m for m in missing},
        parameters=known.parameters.all,
        flops=abstract.calls.flops,
        uncounted=tuple(sorted(abstract.calls.uncounted)),
    )


def _log_keys(site: Site, number: int, chosen: Sequence[Chosen]) -> list[str]:
    """The keys that a call has in a log, if it is there: `chosen` is what was selected
    at its site.
    """
    keys = []
    alike = lambda c: c.call is None and (c.alias is None) == (site.alias is None)
    if any(map(alike, chosen)) or (_kind(site) is not None and not chosen):
        keys.append(site.numbered(number))
    for c in chosen:
        if c.call == number:
            alone = dataclasses.replace(site, call=c.call, alias=c.named(c.suffix))
            keys.append(alone.numbered(number))
    return keys


def _kind(site: Site) -> str | None:
    """Of what isn't the output of a module."""
    if site.side is Side.INPUT:
        return "arguments"
    return "value" if site.suffix else None


def _of_all_calls(chosen: Sequence[Chosen]) -> tuple[Chosen, ...]:
    """What is chosen, each at all calls, and once: by the user's own name, if that is
    for all calls.
    """
    of_all = [c for c in chosen if c.call is None]
    known = {dataclasses.replace(c, alias=None) for c in of_all}
    of_one = (dataclasses.replace(c, call=None, alias=None) for c in chosen)
    return (*dict.fromkeys(of_all), *dict.fromkeys(c for c in of_one if c not in known))


class _Known:
    """Class and parameters of each site, by its key."""

    def __init__(
        self,
        model: Any,
        all_places: Sequence[Place],
        sites: Sequence[tuple[str, Place]],
    ):
        self.parameters = Parameters(model)
        # In a copy each array is an object of its own, also where two are one.
        shape = lambda x: (
            jax.ShapeDtypeStruct(x.shape, x.dtype) if is_array_or_shape(x) else x
        )
        copy = jtu.tree_map(shape, model)
        self._copied = Parameters(copy)
        # The arrays of a program, each once, and the places that each has in the copy.
        arrays = lambda tree: [x for x in jtu.tree_leaves(tree) if is_array_or_shape(x)]
        unique, places = once(arrays(model))
        self.num_arrays = len(unique)
        self._positions: list[list[int]] = [[] for _ in unique]
        for i, x in zip(places, arrays(copy), strict=True):
            self._positions[i].append(id(x))
        self._places: dict[str, list[Place]] = {}
        for key, place in sites:
            self._places.setdefault(key, []).append(place)
        modules = {p.name for p in all_places if p.called or public_methods(p.node)}
        self._own: dict[str, dict[Parameter, None]] = {}
        for parameter in self.parameters.all:
            for use in parameter.uses:
                holder = _around(use, modules)
                self._own.setdefault(holder, {})[parameter] = None

    def class_name(self, key: str) -> str:
        return class_name(self._places[key][0].node)

    def of(self, key: str) -> tuple[Parameter, ...]:
        return self.parameters.under(place.key for place in self._places[key])

    def own(self, key: str) -> tuple[Parameter, ...]:
        names = {place.name: None for place in self._places[key]}
        return tuple({p: None for n in names for p in self._own.get(n, ())})

    def any_of(self, key: str, positions: Iterable[int]) -> bool:
        """Whether one of the model's arrays at these positions is in the module."""
        ids_under = self._copied.ids_under
        mine = {i for place in self._places[key] for i in ids_under(place.key)}
        # Behind those of the model are those of the arguments.
        known = self._positions
        return any(mine & set(ids) for i in positions for ids in known[i : i + 1])


def _around(use: str, modules: Container[str]) -> str:
    """The deepest of these modules that holds what is at a place."""
    while use and use not in modules:
        use, _, _ = use.rpartition(".")
    return use or "."


def _calls(
    abstract: AbstractRun,
    known: _Known,
    numbers: dict[int, int],
    log_keys: dict[int, list[str]],
    silent: Container[str],
) -> dict[int, Call]:
    """The calls as they are shown, by the `id` of their nodes. Of the methods that
    nobody asks for, those that arrays go into, or come out of.
    """
    # Loops are counted as in the log, then those in which nothing is logged.
    ordered = sorted(abstract.calls.logged, key=lambda node: not log_keys[id(node)])
    axes = described({id(n): n.after.info.axes for n in ordered if n.after is not None})
    scans = Scans(abstract.jaxpr, known.num_arrays)
    made: dict[int, Call] = {}

    def make(node: Node) -> Call:
        assert node.after is not None
        children = tuple(make(child) for child in node.children if is_shown(child))
        site, number = node.site.key, numbers[id(node)]
        kind = _kind(node.site)
        made[id(node)] = Call(
            key=node.site.numbered(number),
            site=site,
            number=number,
            is_inside=kind is not None,
            class_name=kind or known.class_name(site),
            inputs=_own(node.before),
            outputs=_own(node.after),
            axes=axes[id(node)],
            stacked=_stacked(node.after.info.axes, scans),
            log=_tree(node.after, 0),
            when=_when(node),
            parameters=() if kind else known.of(site),
            own_parameters=() if kind else known.own(site),
            flops=0 if kind else node.flops,
            line=abstract.written.get(node.site.key),
            children=children,
        )
        return made[id(node)]

    def is_shown(node: Node) -> bool:
        specs = (spec for spec in (node.before, node.after) if spec is not None)
        has_arrays = any(spec.log_shapes for spec in specs)
        return has_arrays or bool(node.children) or node.site.key not in silent

    for root in filter(is_shown, abstract.calls.roots):
        make(root)
    return made


def _stacked(axes: Axes, scans: Scans) -> tuple[bool, ...]:
    loops = [scans.takes_layers(axes.loops[: i + 1]) for i in range(len(axes.steps))]
    return (*[False] * len(axes.devices), *loops, *[False] * len(axes.batch))


def _when(node: Node) -> str:
    if node.after is None or not node.after.info.counted:
        return "always"
    return "last of many" if node.looped else "conditional"


def _tree(spec: TapSpec, skip: int) -> Any:
    """What was tapped, as shapes, without so many leading axes."""
    shapes = (jax.ShapeDtypeStruct(s.shape[skip:], s.dtype) for s in spec.log_shapes)
    return jtu.tree_unflatten(spec.info.treedef, list(shapes))


def _own(spec: TapSpec | None) -> Any:
    return None if spec is None else _tree(spec, len(spec.info.axes.shape))


def _static(key: str, module: Any) -> Missing:
    why = (
        "it is in a static field (`eqx.field(static=True)`), which JAX doesn't see "
        "into; make it an ordinary field"
    )
    return Missing(key, type(module).__name__, "static", why)


def _missing(
    abstract: AbstractRun, known: _Known, keys: Sequence[str], inside: Container[str]
) -> list[Missing]:
    """Why there is nothing of these keys, of which some are of values `inside`."""
    in_rules = [k for k in keys if known.any_of(k, abstract.calls.in_rules)]
    if in_rules:
        differentiated = abstract.differentiated()
        in_rules = [k for k in in_rules if k in differentiated]
    missing = []
    for key in keys:
        if key in abstract.missed:
            kind, why = "no such name", _no_such_name(key, *abstract.missed[key])
        elif key in abstract.lost:
            kind, why = "lost", abstract.lost[key].rstrip(".")
        elif key in in_rules:
            kind, why = (
                "rule",
                "it runs only inside a derivative rule (of a `custom_jvp` or "
                "`custom_vjp`), which stands in the place of autodiff there",
            )
        elif key not in inside and known.any_of(key, abstract.calls.reads):
            kind, why = (
                "read",
                "its parameters are read, but it isn't called; hook the module that "
                "reads them",
            )
        else:
            kind, why = (
                "never called",
                "it is never called: another method runs it, or a branch in Python "
                "isn't taken",
            )
        missing.append(Missing(key, known.class_name(key), kind, why))
    return missing


def _no_such_name(key: str, places: dict[str, str], hides: str | None) -> str:
    if hides is not None:
        return f"it occurs inside of {hides} only, whose rule stands in its place"
    name = key.rpartition("/")[2]
    names = with_places(name, places)
    return f"nothing in the forward pass has this name; nearest: {names}"
