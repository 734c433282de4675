"""Bringing sites out of control flow by one level.

`lift` is called wherever a primitive has sites in its bodies: what they ask for is
asked here, one level up, and handed in; the logs that come out are tapped again here.
What is particular to a primitive is its [`Rule`][].
"""

import dataclasses
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import primitives

from .. import _compat
from .collector import collecting, Collector
from .primitives import ask, lost, tap, tap_p
from .signature import of_primitive, Signature
from .site import Ask, Site


Logs = list[list[Any]]
Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Feed:
    """What a body is given for its asks: the buffers in order, and those of the hooks
    by name; and whose sites are taken out of it.
    """

    slots: list[Any]
    shared: dict[tuple[int, str], Any]
    whose: Collector

    def with_slots(self, slots: list[Any]) -> "Feed":
        return dataclasses.replace(self, slots=slots)


@dataclasses.dataclass(frozen=True)
class Rule:
    """How sites are brought out of one primitive.

    - `signature`: what it taps and asks for as a whole, from its parameters.
    - `run`: runs it, from its parameters, arguments and a feed, to its outputs and the
        logs, in the order of the signature.
    - `jit_options`: for a primitive that is a jit, the options of `jax.jit`.
    - `forwards`: for one that hands arguments that it returns on as they are, its body.
    """

    signature: Callable[[Params], Signature]
    run: Callable[[Params, Sequence[Any], Feed], tuple[list[Any], Logs]]
    jit_options: Callable[[Params], dict[str, Any]] | None = None
    forwards: Callable[[Params], Any] | None = None


def can_lift(primitive: Any) -> bool:
    """Whether there is a rule for it."""
    from .rules.table import rules

    return primitive.name in rules


def lift(
    primitive: Any,
    args: Sequence[Any],
    params: Params,
    collector: Collector,
    eager: bool = False,
    below: Any = None,
) -> list[Any]:
    """Runs a primitive, the sites of `collector` brought out by one level.

    **Arguments:**

    - `eager`: whether it runs at once.
    - `below`: the trace below that of the collector, if that runs at once: what has
        been compiled is called there, as quickly as JAX can.
    """
    from .rules.table import rules

    signature = collector.part(of_primitive(primitive, params))
    if signature.lost and not collector.silent:
        lost(*signature.lost[0])
    rule = rules[primitive.name]
    slots = [ask(args, info) for info in signature.asks]
    shared = {info.name: ask((), info) for info in signature.arrays}
    if eager or rule.jit_options is not None:
        run = _compiled(primitive, rule, params, collector)
        with _compat.set_current_trace(below or _compat.current_trace()):
            outs, logs = run(*args, slots, shared)
    else:
        outs, logs = rule.run(params, args, Feed(slots, shared, collector))
    # (An eager jit makes new arrays.)
    if rule.forwards is not None and not (eager and rule.jit_options is not None):
        outs = _forwarded(rule.forwards(params), args, outs)
    for spec, arrays in zip(signature.taps, logs, strict=True):
        outs = tap(outs, arrays, spec.info)
    return outs


def _forwarded(jaxpr: Any, args: Sequence[Any], outs: Sequence[Any]) -> list[Any]:
    """Outputs that are arguments are these very objects, as without hooks."""
    jaxpr, _ = _compat.open_jaxpr(jaxpr)
    given = dict(zip(jaxpr.invars, args, strict=True))
    is_literal = _compat.is_literal
    return [
        out if is_literal(atom) else given.get(atom, out)
        for atom, out in zip(jaxpr.outvars, outs, strict=True)
    ]


class _Body(Collector):
    """Collects in the body of a primitive, on behalf of another collector."""

    def __init__(self, feed: Feed):
        super().__init__(feed.whose.depth, feed.whose.call)
        self._slots = iter(feed.slots)
        self._shared = feed.shared
        self._whose = feed.whose
        self.drops = feed.whose.drops
        self.silent = feed.whose.silent

    def mine(self, site: Site) -> bool:
        return self._whose.mine(site)

    def alike(self) -> Collector:
        return self._whose.alike()

    def takes(self, primitive: Any, info: Any) -> bool:
        dropped = self.drops and primitive is tap_p
        return dropped or self._whose.takes(primitive, info)

    def part(self, signature: Signature) -> Signature:
        mine = self._whose.part(signature)
        return dataclasses.replace(mine, taps=signature.taps) if self.drops else mine

    def supply(self, info: Ask) -> Sequence[Any]:
        return self._shared[info.name] if info.shared else next(self._slots)


def evaluate(
    jaxpr: Any,
    args: Sequence[Any],
    feed: Feed,
    consts: Sequence[Any] | None = None,
    once_more: bool = False,
) -> tuple[list[Any], Logs]:
    """Evaluates the jaxpr of a body: its outputs, and the logs of its sites.
    `once_more` says that it runs anyway, so that other wrappers hear of it there.
    """
    body = _Body(feed)
    body.drops |= once_more
    jaxpr, own_consts = _compat.open_jaxpr(jaxpr)
    consts = own_consts if consts is None else consts
    with collecting(body):
        outs = _compat.eval_jaxpr(jaxpr, consts, *args)
    hears = feed.whose.hears
    return list(outs), [arrays for info, arrays in body.records if hears(info.site)]


def bind_checkpoint(fun: Callable[..., Any], params: dict[str, Any], *args: Any) -> Any:
    """Runs `fun` as the body of a `checkpoint` primitive with these parameters."""
    leaves, treedef = jax.tree.flatten(args)
    flat = lambda *leaves: fun(*treedef.unflatten(leaves))
    made, shapes = jax.make_jaxpr(flat, return_shape=True)(*leaves)
    body, consts = _compat.open_jaxpr(made)
    if consts:
        # The body of this primitive has none: they become arguments.
        jaxpr = body
        run = lambda consts, leaves: _compat.eval_jaxpr(jaxpr, consts, *leaves)
        body, _ = _compat.open_jaxpr(jax.make_jaxpr(run)(list(consts), leaves))
        leaves = [*consts, *leaves]
    outs = primitives.remat_p.bind(*leaves, **{**params, "jaxpr": body})
    return jax.tree.structure(shapes).unflatten(outs)


def bind_cond(
    params: dict[str, Any], index: Any, branches: Sequence[Callable], *args: Any
) -> Any:
    """Runs a `cond` primitive with other branches (`jax.lax.switch` would clamp the
    index once more).
    """
    leaves, treedef = jax.tree.flatten(args)
    made = []
    for branch in branches:
        run = lambda *leaves, branch=branch: branch(*treedef.unflatten(leaves))
        made.append(jax.make_jaxpr(run, return_shape=True)(*leaves))
    jaxprs, shapes = zip(*made, strict=True)
    params = {**params, "branches": jaxprs}
    outs = jax.lax.cond_p.bind(index, *leaves, **params)
    return jax.tree.structure(shapes[0]).unflatten(outs)


def zeros(shape: Any) -> Any:
    """Zeros of a shape and dtype (and of the same type as to meshes); for random keys,
    keys of zeros.
    """
    if not jnp.issubdtype(shape.dtype, jax.dtypes.prng_key):
        made = jnp.zeros(shape.shape, shape.dtype)
        return _compat.typed_as(made, shape)
    return lax.full(shape.shape, 0, shape.dtype)


# Run eagerly, a loop must not be compiled anew at every call, and a jitted function
# that is called often must not be traced anew at every call. So these are compiled, and
# kept by their jaxprs, weakly: the compiled function finds its parameters in a box that
# is filled during the call alone, so that nothing here keeps a jaxpr alive.
_kept: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()


class _Box(threading.local):
    content: tuple[Params, Collector] | None = None


def _compiled(
    primitive: Any, rule: Rule, params: Params, collector: Collector
) -> Callable[..., tuple[list[Any], Logs]]:
    jaxprs = tuple(_compat.sub_jaxprs(params))
    key = (
        primitive.name,
        collector.depth,
        collector.drops,
        tuple(weakref.ref(j) for j in jaxprs),
        tuple((name, _hashable(v)) for name, v in sorted(params.items())),
    )
    kept = _kept.setdefault(jaxprs[0], {})
    if key not in kept:
        box = _Box()

        def run(*args: Any) -> tuple[list[Any], Logs]:
            assert box.content is not None
            *args_, slots, shared = args
            params, collector = box.content
            return rule.run(params, args_, Feed(slots, shared, collector))

        run.__name__ = run.__qualname__ = params.get("name", primitive.name)
        options = {} if rule.jit_options is None else rule.jit_options(params)
        kept[key] = jax.jit(run, **options), box
    jitted, box = kept[key]

    def call(*args: Any) -> tuple[list[Any], Logs]:
        box.content = params, collector
        try:
            return jitted(*args)
        finally:
            box.content = None

    return call


def _hashable(value: Any) -> Any:
    """A parameter, for a key: of a jaxpr, its constants (it is in the key itself)."""
    if type(value) in (tuple, list):
        return tuple(_hashable(v) for v in value)
    if _compat.is_jaxpr(value):
        return tuple(id(c) for c in _compat.open_jaxpr(value)[1])
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value
