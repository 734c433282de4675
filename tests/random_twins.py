"""The twins of random programs: what a log holds, and what the model computes.

`sites` says which entries the log of a model has, from its structure alone. `twin`
computes what the model computes, in plain JAX and without peex: loops, branches and
batches are written out in Python. It adds something to the value of each site, so that
the gradients with respect to that are the cotangents; and it can leave the site's own
value out, so that what is added stands in its place.
"""

import itertools as it
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from parts import Seq
from random_programs import (
    BATCHES,
    Branch,
    call_layer,
    CUSTOM,
    index,
    Leaf,
    MAX_STEPS,
    NUM,
    SCALES,
    Stack,
    STEPS,
    Under,
    WEIGHTS,
    While,
    Wrapped,
)


#
# What a log holds.
#


class Site(NamedTuple):
    """One entry of a log: the key, the sizes of the axes, whether it is counted."""

    key: str
    steps: tuple[int, ...] = ()
    batch: tuple[int, ...] = ()
    counted: bool = False

    def like(self):
        return self[:3]


def sites(node, path="") -> list[Site]:
    match node:
        case None:
            return []
        case _ if isinstance(node, Wrapped):
            return sites(node.__wrapped__, path)
        case Leaf():
            return [Site(f"{path}layer")]
        case Seq():
            parts = enumerate(node.parts)
            return [s for i, p in parts for s in sites(p, f"{path}parts.{i}.")]
        case Under():
            inside = sites(node.inner, f"{path}inner.")
            return [s for how in node.hows for s in _outside(how, inside)]
        case Stack():
            return _outside(node.how, sites(node.inner, f"{path}inner."))
        case While():
            both = (
                sites(node.check, f"{path}check."),
                sites(node.inner, f"{path}inner."),
            )
            return [s._replace(counted=True) for s in it.chain(*both)]
        case Branch():
            return union(branch_sites(node, path))[0]
    raise TypeError(node)


def branch_sites(node, path="") -> list[list[Site]]:
    after = sites(node.after, f"{path}after.")
    branches = enumerate(node.branches)
    return [sites(b, f"{path}branches.{i}.") + after for i, b in branches]


def _outside(how, inside: list[Site]) -> list[Site]:
    if how in STEPS:
        return [s._replace(steps=(NUM, *s.steps)) for s in inside]
    if how in BATCHES:
        return [s._replace(batch=(NUM, *s.batch)) for s in inside]
    if how == "while":
        return [s._replace(counted=True) for s in [*inside, *inside]]
    if how == "cond":
        return union([[], inside])[0]
    return union(_called_differently(inside))[0] if how == "switch" else inside


def _called_differently(inside: list[Site]) -> list[list[Site]]:
    return [inside, _outside("repeat", inside), [*inside, *inside]]


def union(branches: list[list[Site]]) -> tuple[list[Site], list[list[int]]]:
    """The n-th calls of a site in the branches are one entry, if they are alike. Also
    where in the union those of each branch are."""
    entries: dict[Any, list[Site]] = {}
    keys = [
        [(s.like(), [t.like() for t in b[:i]].count(s.like())) for i, s in enumerate(b)]
        for b in branches
    ]
    for b, ks in zip(branches, keys, strict=True):
        for s, k in zip(b, ks, strict=True):
            entries.setdefault(k, []).append(s)
    always = lambda found: len(found) == len(branches)
    out = [
        found[0]._replace(counted=not always(found) or any(s.counted for s in found))
        for found in entries.values()
    ]
    return out, [[list(entries).index(k) for k in ks] for ks in keys]


def names(found: list[Site]) -> list[str]:
    """The keys of a log: further calls are numbered."""
    keys = [s.key for s in found]
    calls = [keys[:i].count(k) for i, k in enumerate(keys)]
    return [k if n == 0 else f"{k}#{n}" for k, n in zip(keys, calls, strict=True)]


#
# The twin. A piece of program takes from `feed` what is added to its sites, in their
# order, and returns its output and, for each site, the value and the count or `None`.
# Of the 4 numbers that are fed, the last is how much of the site's own value is left
# out.
#

Found = list[tuple[Any, Any]]


def twin(node, x, feed: Iterator[Any]) -> tuple[Any, Found]:
    match node:
        case None:  # no condition of a while loop, nothing after a branch
            return x, []
        case _ if isinstance(node, Wrapped):
            return twin(node.__wrapped__, x, feed)
        case Leaf():
            fed = next(feed)
            value = (1 - fed[3]) * call_layer(node.layer, x) + fed[:3]
            return jnp.tanh(value), [(value, None)]
        case Seq():
            return _in_turn(
                [lambda x, f, p=p: twin(p, x, f) for p in node.parts], x, feed
            )
        case Under():
            run = lambda x, feed: twin(node.inner, x, feed)
            inside = sites(node.inner)
            parts = [lambda x, f, h=h: _under(h, run, inside, x, f) for h in node.hows]
            return _in_turn(parts, x, feed)
        case Stack():
            return _stack(node, x, feed)
        case While():
            runs = [lambda x, f, m=m: twin(m, x, f) for m in (node.check, node.inner)]
            inside = [sites(node.check), sites(node.inner)]
            return _while(*runs, inside, x, feed)
        case Branch():
            runs = [
                lambda x, f, b=b: _in_turn(
                    [lambda x, f, p=p: twin(p, x, f) for p in (b, node.after)], x, f
                )
                for b in node.branches
            ]
            return _branch(index(x, len(runs)), runs, branch_sites(node), x, feed)
    raise TypeError(node)


def _in_turn(parts, x, feed) -> tuple[Any, Found]:
    found = []
    for part in parts:
        x, more = part(x, feed)
        found += more
    return x, found


def _loop(body, inside: list[Site], feed, how) -> Found:
    """`body(i, feed)` for each step or example, stacked."""
    axes = [len(s.steps) if how in BATCHES else 0 for s in inside]
    added = list(it.islice(feed, len(inside)))
    found = {}
    for i in reversed(range(NUM)) if how == "reverse" else range(NUM):
        own = [jnp.take(e, i, a) for e, a in zip(added, axes, strict=True)]
        found[i] = body(i, iter(own))
    return [
        (
            jnp.stack([found[i][n][0] for i in range(NUM)], a),
            jnp.stack([found[i][n][1] for i in range(NUM)], a) if s.counted else None,
        )
        for n, (s, a) in enumerate(zip(inside, axes, strict=True))
    ]


def _under(how, run, inside: list[Site], x, feed) -> tuple[Any, Found]:
    if how == "cond":
        runs = [lambda x, feed: (-x, []), run]
        return _branch((x[1] > 0.1).astype(int), runs, [[], inside], x, feed)
    if how == "chosen":
        return run(jnp.where(index(x, 2) == 0, x, -x), feed)
    if how == "switch":
        runs = [
            run,
            lambda x, feed: _under("repeat", run, inside, x, feed),
            lambda x, feed: _in_turn([run, run], x, feed),
        ]
        return _branch(index(x, 3), runs, _called_differently(inside), x, feed)
    if how == "while":
        return _while(run, run, [inside, inside], x, feed)
    if how == "grad":

        def loss(x):
            y, found = run(x, feed)
            return jnp.sum(jnp.sin(y)), found

        return jax.grad(loss, has_aux=True)(x)
    if how in ("jvp", "linearize"):
        run_ = lambda x: run(x, feed)
        y, t, found = jax.jvp(run_, (x,), (jnp.cos(x),), has_aux=True)
        return y + t, found
    if how in CUSTOM:
        y, found = run(x, feed)
        y, found = lax.stop_gradient((y, found))
        return y + 0.5 * (x - lax.stop_gradient(x)), found
    if how not in (*STEPS, *BATCHES):
        return run(x, feed)
    h, ys = x, {}

    def body(i, feed):
        nonlocal h
        if how in ("map", *BATCHES):
            ys[i], found = run(SCALES[i] * x, feed)
        elif how in ("repeat", "fori"):
            h, found = run(h + 0.1 * i if how == "fori" else h, feed)
        else:
            h, found = run(jnp.sin(h + SCALES[i] * x), feed)
            ys[i] = h * SCALES[i] * x
        return found

    found = _loop(body, inside, feed, how)
    total = sum(WEIGHTS[i] * ys[i] for i in ys)
    return (total if how in ("map", *BATCHES) else h + total), found


def _stack(node, x, feed) -> tuple[Any, Found]:
    h, ys = x, {}

    def body(i, feed):
        nonlocal h
        inner = jax.tree.map(lambda a: a[i] if eqx.is_array(a) else a, node.inner)
        if node.how in BATCHES:
            ys[i], found = twin(inner, SCALES[i] * x if node.how == "vmap" else x, feed)
        else:
            h, found = twin(inner, h, feed)
        return found

    found = _loop(body, sites(node.inner), feed, node.how)
    return (sum(WEIGHTS[i] * ys[i] for i in ys) if ys else h), found


def _nothing(site: Site) -> tuple[Any, Any]:
    shape = (*site.steps, *site.batch)
    return jnp.zeros((*shape, 3)), jnp.zeros(shape, jnp.int32)


def _pick(new, old, ran) -> Any:
    """`new` where it ran; `ran` has leading axes of both."""
    return jnp.where(ran.reshape(ran.shape + (1,) * (new.ndim - ran.ndim)), new, old)


def _branch(which, runs, inside: list[list[Site]], x, feed) -> tuple[Any, Found]:
    entries, places = union(inside)
    added = list(it.islice(feed, len(entries)))
    out, logs = x, [_nothing(s) for s in entries]
    for i, (run, at) in enumerate(zip(runs, places, strict=True)):
        y, found = run(x, iter([added[p] for p in at]))
        out = jnp.where(which == i, y, out)
        for p, (value, count) in zip(at, found, strict=True):
            count = jnp.ones_like(logs[p][1]) if count is None else count
            new = value, count
            logs[p] = tuple(
                jnp.where(which == i, a, b) for a, b in zip(new, logs[p], strict=True)
            )
    counted = [s.counted for s in entries]
    return out, [(v, n if c else None) for (v, n), c in zip(logs, counted, strict=True)]


def _while(check, inner, inside: list[list[Site]], x, feed) -> tuple[Any, Found]:
    running = jnp.array(True)
    added = [list(it.islice(feed, len(part))) for part in inside]
    logs = [[_nothing(s) for s in part] for part in inside]

    def note(part, found):
        for i, (value, count) in enumerate(found):
            old_value, old_count = logs[part][i]
            count = jnp.ones_like(old_count) if count is None else count
            count = jnp.where(running, count, 0)
            logs[part][i] = _pick(value, old_value, count > 0), old_count + count

    for i in range(MAX_STEPS + 1):
        y, found = check(x, iter(added[0]))
        note(0, found)
        running &= (i < MAX_STEPS) & (x[0] < 0.4) & (y[1] < 0.4)
        y, found = inner(x, iter(added[1]))
        note(1, found)
        x = jnp.where(running, y, x)
    return x, [*logs[0], *logs[1]]
