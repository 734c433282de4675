"""One abstract run of a model with all its calls marked: what `peex.report` looks at.

Nothing is computed, so weights and arguments may be mere shapes.
"""

import contextlib
import dataclasses
import functools as ft
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .._engine.active_calls import next_depth, started
from .._engine.collector import Collector, NOT_RECEIVED
from .._engine.rules.install import install
from .._engine.scope import Scope
from .._engine.site import freeze, ModuleKey, Side, Site, suffix_of
from .._engine.values import once
from .._errors import SiteLostError
from .._hooks.log_fns import IdentityLog
from .._instrument.alike import made_alike
from .._instrument.classes import strip
from .._instrument.instrument import instrument
from .._instrument.probe import own_caches, Probes
from .._program.call_tree import Calls, find_calls, Lost
from .._sites.chosen import Chosen
from .._sites.stacked import grouped, is_refusal, keys_in, Prefix, refuse
from .._wrappers.make_sites import names_probe, SitesByKey
from .._wrappers.run import call_method
from .._wrappers.types import Method
from .parameters import is_array_or_shape


@dataclasses.dataclass(frozen=True)
class AbstractRun:
    """What an abstract run has shown.

    - `calls`: the calls.
    - `groups`: the layers that share one name (see `_sites/stacked.py`).
    - `lost`: the sites that ran where their values can't be brought out, and why.
    - `missed`: the values inside of modules that aren't there, and what is, by key.
    - `written`: where the values inside of modules are written, by key.
    - `leaves`, `run`: the arrays of model and arguments (in this order), and the call
        as a function of them.
    - `jaxpr`, `depth`: the program of that, and the depth of the sites in it.
    - `output`: what the call returns, its arrays as shapes.
    """

    calls: Calls
    groups: list[Prefix]
    lost: dict[str, str]
    missed: dict[str, tuple[dict[str, str], str | None]]
    written: dict[str, str]
    leaves: list[Any]
    run: Callable[..., list[Any]]
    jaxpr: Any
    depth: int
    output: Any

    def differentiated(self) -> set[str]:
        """The keys of the sites that run when the call is differentiated."""
        return _differentiated(self.run, self.leaves, Collector(Scope(next_depth())))


def run_abstractly(
    model: Any,
    chosen: Sequence[Chosen],
    probed: Sequence[Chosen] | None,
    root_method: str,
    method: Method,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    silent: Collection[str] = (),
) -> AbstractRun:
    """Runs the model abstractly, again without the sites that turn out to be lost.

    **Arguments:**

    - `chosen`: the sites.
    - `probed`: those of them that may name a `px.probe`; `None` if all probes are
        sites.
    - `silent`: the keys of the methods whose probes are those of the call around.
    """
    install()
    lost: dict[str, str] = {}
    groups: list[Prefix] = []
    while True:
        collector = Collector(Scope(next_depth()))
        collector.groups = groups
        keys = [(c, c.site_key(root_method)) for c in chosen]
        wanted = [
            x for x in keys if lost.keys().isdisjoint({x[1], grouped(x[1], groups)})
        ]
        sites = _sites(wanted, collector.scope.depth)
        collector.probes = _probes(probed, root_method, collector)
        collector.probes.silent = ft.partial(_is_one_of, silent, groups)
        running = collector.running_in(sys._getframe())
        try:
            with running, started(collector), own_caches("peex.report"):
                instrumented = instrument(model, sites)
                given = made_alike(instrumented, args, kwargs)
                leaves, run, output = _as_function(instrumented, method, *given)
                jaxpr = jax.make_jaxpr(run)(*leaves)
            calls = find_calls(jaxpr, collector.scope.depth)
        except Lost as error:
            lost.update(error.why)
        except SiteLostError as error:
            if error.key is None or error.key in lost:
                raise
            lost[error.key] = error.why or str(error)
        except (TypeError, ValueError) as error:
            new = [key for key in keys_in(error) if key not in lost]
            if not new and is_refusal(error):
                refuse(error)
            if not new:
                raise
            others = ", ".join(repr(key) for key in keys_in(error))
            why = (
                "the model brings it together with modules of another name "
                f"({others}), and a site carries its name in its structure."
            )
            lost.update(dict.fromkeys(new, why))
        else:
            received = {node.site.key for node in calls.logged}
            emitted = collector.emitted
            lost.update((key, NOT_RECEIVED) for key in emitted if key not in received)
            missed, written = collector.missed, collector.written
            return AbstractRun(
                calls,
                groups,
                lost,
                missed,
                written,
                leaves,
                run,
                jaxpr,
                collector.scope.depth,
                output[-1],
            )


def _is_one_of(keys: Collection[str], groups: Sequence[Prefix], key: str) -> bool:
    """Whether it is one of these keys, or the name that some of them share."""
    return key in keys or ("*" in key and key in {grouped(k, groups) for k in keys})


def _sites(wanted: Sequence[tuple[Chosen, str]], depth: int) -> SitesByKey:
    """At each place two sites: at the arguments, then at the output; and one at each
    value inside of the call. All modules tell their keys, for the probes in them.
    """
    sites: SitesByKey = {}
    for chosen, key in wanted:
        methods = sites.setdefault(chosen.place, {})
        mine = methods.get(chosen.method, ())
        after = _site(key, depth, chosen, chosen.suffix, chosen.value)
        if chosen.inside is None and not chosen.is_input:
            before = dataclasses.replace(after, side=Side.ARGS_AND_KWARGS)
            mine = ModuleKey(key, depth), before, after, *mine
        else:
            mine = *mine, after
        methods[chosen.method] = mine
    return sites


def _site(
    key: str,
    depth: int,
    chosen: Chosen | None,
    suffix: str,
    inside: tuple[str, int | None] | None = None,
) -> Site:
    log, _ = freeze("log_fn", IdentityLog(), is_identity=True)
    return Site(
        key=key,
        depth=depth,
        direct=False,
        backward=False,
        side=Side.INPUT if chosen is not None and chosen.is_input else Side.OUTPUT,
        hook=None,
        log=log,
        asked=True,
        while_buffer=None,
        inside=inside,
        suffix=suffix,
        alias=None if chosen is None else chosen.named(suffix),
    )


def _probes(
    probed: Sequence[Chosen] | None,
    root_method: str,
    collector: Collector,
) -> Probes:
    def wanted(name: str) -> bool:
        return probed is None or any(c.names(name) for c in probed)

    def site(module: str, name: str, index: int) -> Site | None:
        suffix = suffix_of(name, index)
        groups = collector.groups
        mine = None
        if probed is not None:
            for mine in probed:
                if names_probe(mine, root_method, groups, module, name, index):
                    break
            else:
                return None
        return _site(f"{module}{suffix}", collector.scope.depth, mine, suffix)

    return Probes(wanted, site)


def _as_function(
    model: Any, method: Method, args: Any, kwargs: Any
) -> tuple[list[Any], Callable[..., list[Any]], list[Any]]:
    """A call as a function of its arrays (those of the model first) to arrays, and the
    list into which it puts what it returns, as shapes.
    """
    dynamic, static = eqx.partition((model, args, kwargs), is_array_or_shape)
    leaves, treedef = jtu.tree_flatten(dynamic)
    leaves, places = once(leaves)  # an array that is there twice is one inside, too
    output: list[Any] = []
    shape = lambda x: (
        jax.ShapeDtypeStruct(x.shape, x.dtype) if is_array_or_shape(x) else x
    )

    def run(*leaves: Any) -> list[Any]:
        dynamic = treedef.unflatten([leaves[i] for i in places])
        model, args, kwargs = eqx.combine(dynamic, static)
        out = strip(call_method(model, method, args, kwargs))
        output.append(jtu.tree_map(shape, out))
        return [x for x in jtu.tree_leaves(out) if is_array_or_shape(x)]

    return leaves, run, output


def _differentiated(
    run: Callable[..., list[Any]], leaves: Sequence[Any], collector: Collector
) -> set[str]:
    """The keys of the sites that run in forward and backward pass."""
    inexact = [i for i, x in enumerate(leaves) if jnp.issubdtype(x.dtype, jnp.inexact)]

    def grad(*leaves: Any) -> Any:
        def only(*some: Any) -> list[Any]:
            full = list(leaves)
            for i, x in zip(inexact, some, strict=True):
                full[i] = x
            return [y for y in run(*full) if jnp.issubdtype(y.dtype, jnp.inexact)]

        outs, vjp = jax.vjp(only, *(leaves[i] for i in inexact))
        return vjp(outs)

    # Not every program has a derivative (and JAX says so in one of these ways). Then it
    # is known of the sites alone that ran until that was found.
    no_derivative = NotImplementedError, TypeError, ValueError, SiteLostError
    with started(collector), contextlib.suppress(*no_derivative):
        jax.make_jaxpr(grad)(*leaves)
    return set(collector.emitted)
