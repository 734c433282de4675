"""The calls of a program, found in its jaxpr.

The program is traced with two sites at each module: one at the arguments, one at the
output. Nothing collects them, so they stay in the jaxpr, in execution order: the first
opens a call, the second closes it. What lies between is the call's, calls within calls
too. Which of them a log will hold, and with which axes, is the signature of the jaxpr
(`_engine/signature.py`), by which a hooked call is collected as well.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from .. import _compat
from .._engine.primitives import tap_p
from .._engine.reading import of_jaxpr, of_primitive
from .._engine.rule import Body, rule_of
from .._engine.rules.cond import union
from .._engine.signature import TapSpec
from .._engine.site import Side, Site
from .._errors import SiteLostError
from .flops import bodies, Costs


@dataclasses.dataclass(eq=False)
class Node:
    """A call, as it is being found.

    - `site`, `before`, `after`: its site; what is tapped of its arguments and output.
    - `flops`: of the call, `None` where its operations can't be told from others.
    - `looped`: whether it is in a loop of unknown length.
    - `same`: the call in another branch that has one entry in a log with this one.
    """

    site: Site
    before: TapSpec | None = None
    after: TapSpec | None = None
    flops: int | None = None
    looped: bool = False
    children: list["Node"] = dataclasses.field(default_factory=list)
    same: "Node | None" = None

    def walk(self) -> Iterator["Node"]:
        yield self
        for child in self.children:
            yield from child.walk()


@dataclasses.dataclass(frozen=True)
class Level:
    """The calls of one jaxpr.

    - `roots`: those that are in no other call of it.
    - `taps`: of each tap of its signature, the nodes that it belongs to.
    - `flops`: of all of it.
    """

    roots: list[Node]
    taps: list[list[Node]]
    flops: int


@dataclasses.dataclass(frozen=True)
class Calls:
    """The calls of a whole program.

    - `roots`: those that are in no other.
    - `logged`: each call that has an entry in a log, in the order of that.
    - `flops`, `uncounted`: of the whole program, and the names of what isn't counted.
    - `reads`, `in_rules`: which of its arguments it uses, and which go into functions
        with derivative rules of their own, by position.
    """

    roots: list[Node]
    logged: list[Node]
    flops: int
    uncounted: frozenset[str]
    reads: frozenset[int]
    in_rules: frozenset[int]


class Lost(Exception):
    """Sites that ran where their values can't be brought out, by key, and why."""

    def __init__(self, why: dict[str, str]):
        self.why = why


def find_calls(jaxpr: Any, depth: int) -> Calls:
    """The calls of the sites at one depth.

    **Raises:** `Lost`.
    """
    walk = _Walk(depth)
    level = walk.level(jaxpr, 1)
    if walk.lost:
        raise Lost(walk.lost)
    logged = []
    for nodes, spec in zip(level.taps, of_jaxpr(jaxpr).taps, strict=True):
        for node in nodes:
            if _opens(spec.info.site):
                node.before = spec
            else:
                node.after = spec
        if nodes and not _opens(spec.info.site):
            logged.append(nodes[0])
    cost = walk.costs.of_jaxpr(jaxpr)
    roots = _arrived(level.roots)
    return Calls(roots, logged, level.flops, cost.uncounted, cost.reads, cost.in_rules)


def _opens(site: Site) -> bool:
    """Whether it is the first of the two sites of a call."""
    return site.side is Side.ARGS_AND_KWARGS


def _arrived(nodes: Sequence[Node]) -> list[Node]:
    """The tree without calls of which no output arrives (JAX may drop it where the
    program differentiates itself); what is inside of them moves up.
    """
    kept = []
    for node in nodes:
        node.children = _arrived(node.children)
        kept += node.children if node.after is None else [node]
    return kept


class _Walk:
    def __init__(self, depth: int):
        self.depth = depth
        self.costs = Costs()
        self.lost: dict[str, str] = {}

    def level(self, jaxpr: Any, times: int) -> Level:
        """The calls of a jaxpr that runs so many times."""
        jaxpr, _ = _compat.open_jaxpr(jaxpr)
        opened = _Opened()
        taps: list[list[Node]] = []
        for eqn in jaxpr.eqns:
            if eqn.primitive is tap_p:
                opened.follow(eqn, eqn.params["num_values"])
                mine = eqn.params["info"].site.depth == self.depth
                taps.append([opened.tap(eqn)] if mine else [])
                continue
            if _only_moves(eqn):
                opened.follow(eqn, 1)
            parts = bodies(eqn)
            if any(part.times is None for part in parts):
                opened.of_loops.update(eqn.outvars)
            inside = self._inside(eqn, parts, times)
            opened.add(inside)
            taps += inside.taps
        return Level(opened.roots, taps, opened.flops)

    def _inside(self, eqn: Any, parts: Sequence[Body], times: int) -> Level:
        """The calls inside of one equation, which has these bodies."""
        cost = self.costs.of_equation(eqn)
        if not cost.sites:
            return Level([], [], cost.flops * times)
        levels = [self.level(b.jaxpr, times * b.times_counted) for b in parts]
        if not self.lost:
            try:
                lost = of_primitive(eqn.primitive, eqn.params, eqn.invars).lost
            except SiteLostError as error:
                lost = [(site, error.why or str(error)) for site in cost.sites]
            self.lost.update((s.key, why) for s, why in lost if s.depth == self.depth)
        if self.lost:
            return Level([], [], 0)
        rule: Any = rule_of(eqn.primitive)
        if rule.exclusive:
            return _one_of(levels, parts)
        flops = sum(level.flops for level in levels)
        roots = [node for level in levels for node in level.roots]
        for level, part in zip(levels, parts, strict=True):
            if part.times is None:
                for root in level.roots:
                    for node in root.walk():
                        node.looped = True
        return Level(roots, [t for level in levels for t in level.taps], flops)


def _one_of(levels: Sequence[Level], branches: Sequence[Body]) -> Level:
    """The calls of a `cond`: those that are one entry in a log are one here."""
    whole = union([of_jaxpr(b.jaxpr) for b in branches])
    taps: list[list[Node]] = [[] for _ in whole.taps]
    for level, places in zip(levels, whole.tap_places, strict=True):
        for nodes, place in zip(level.taps, places, strict=True):
            taps[place] += nodes
    for nodes, spec in zip(taps, whole.taps, strict=True):
        if _opens(spec.info.site) or not nodes:
            continue
        first, *others = nodes
        known = [node.flops for node in nodes if node.flops is not None]
        first.flops = max(known) if len(known) == len(nodes) else None
        first.looped = any(node.looped for node in nodes)
        for other in others:
            other.same = first
    roots: list[Node] = []
    for level in levels:
        _merge(roots, level.roots)
    return Level(roots, taps, max(level.flops for level in levels))


def _merge(into: list[Node], nodes: Sequence[Node]) -> None:
    for node in nodes:
        children, node.children = node.children, []
        if node.same is None:
            into.append(node)
            _merge(node.children, children)
        else:
            _merge(node.same.children, children)


# What the batching of a tap may put between a value and its log.
_MOVES = frozenset({"broadcast_in_dim", "copy", "reshape", "squeeze", "transpose"})


def _only_moves(eqn: Any) -> bool:
    return eqn.primitive.name in _MOVES and not _compat.is_literal(eqn.invars[0])


class _Opened:
    """The calls of one jaxpr, up to some equation.

    - `of_loops`: the variables that loops of unknown length made.
    """

    def __init__(self) -> None:
        self.roots: list[Node] = []
        self.flops = 0
        self.of_loops: set[Any] = set()
        self._open: list[tuple[Node, int, bool]] = []
        self._origin: dict[Any, Any] = {}

    def add(self, level: Level) -> None:
        self.flops += level.flops
        self._here().extend(level.roots)

    def _here(self) -> list[Node]:
        return self._open[-1][0].children if self._open else self.roots

    def follow(self, eqn: Any, number: int) -> None:
        """The first results of an equation are its first operands, moved at most."""
        for out, operand in zip(eqn.outvars, eqn.invars[:number], strict=False):
            self._origin[out] = self._origin_of(operand)

    def _origin_of(self, operand: Any) -> Any:
        literal = _compat.is_literal(operand)
        return None if literal else self._origin.get(operand, operand)

    def tap(self, eqn: Any) -> Node:
        """Opens or closes a call."""
        info, number = eqn.params["info"], eqn.params["num_values"]
        values, logs = (
            [self._origin_of(v) for v in vs]
            for vs in (eqn.invars[:number], eqn.invars[number:])
        )
        # Otherwise it comes out of a branch or loop that JAX has batched: `vmap` of a
        # `cond` hands out all its values behind it.
        here = values == logs
        if _opens(info.site):
            node = Node(info.site)
            self._here().append(node)
            self._open.append((node, self.flops, here))
            return node
        node = self._close(info.site, here)
        if info.counted:
            # It is attached to the results of the branch or loop.
            node.looped = any(v in self.of_loops for v in values)
        return node

    def _close(self, site: Site, here: bool) -> Node:
        keys = [node.site.key for node, _, _ in self._open]
        if site.key not in keys:
            # A value inside of a call, or one whose arguments were dropped.
            node = Node(site)
            self._here().append(node)
            return node
        while True:
            node, flops, opened_here = self._open.pop()
            if node.site.key == site.key:
                if here and opened_here:
                    node.flops = self.flops - flops
                return node
