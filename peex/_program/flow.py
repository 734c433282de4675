"""The flow of a program: which value is made of which others, as a graph.

What runs inside of a `jit`, a branch or a loop is put in its place, by the bodies that
the rules of the engine give (`_engine/rule.py`). A loop is an arrow from what its body
returns to what it is given, so that what a program does in many steps is a path.
"""

from collections.abc import Callable, Sequence
from typing import Any

from .. import _compat
from .._engine.primitives import tap_p
from .._engine.rule import Body, Rule, rule_of
from .._engine.site import Side, Site
from .edges import Carry, Derivatives, Edge, Flow, is_inexact
from .spread import spread


def _names(lines: str) -> frozenset[str]:
    return frozenset(lines.split())


_CONTRACTIONS = _names("""
    conv_general_dilated dot_general ragged_dot ragged_dot_general
""")
# What only lays data out anew: the operation that uses it is the next.
_MOVES = _names("""
    broadcast_in_dim concatenate convert_element_type copy device_put
    optimization_barrier pbroadcast pcast pvary reduce_precision reshape rev
    sharding_constraint slice split squeeze stack tile transpose unstack
""")


# Says of an equation which results have a derivative by which of some operands.
Ask = Callable[[Any, tuple[bool, ...]], Derivatives]


def find_flow(jaxpr: Any, depth: int, derivatives: Ask | None = None) -> Flow:
    """The flow of a program.

    **Arguments:**

    - `depth`: that of the sites which say where its calls are.
    - `derivatives`: says this of an equation. If it isn't given, everything has one.
    """
    jaxpr, _ = _compat.open_jaxpr(jaxpr)
    walk = _Walk(depth, derivatives)
    inputs = [walk.node() for _ in jaxpr.invars]
    pairs = zip(inputs, jaxpr.invars, strict=True)
    walk.perturbed.update(node for node, v in pairs if is_inexact(v))
    outputs = walk.level(jaxpr, inputs)
    return Flow(walk.size, walk.edges, inputs, outputs, walk.scans)


class _Walk:
    def __init__(self, depth: int, derivatives: Ask | None) -> None:
        self.depth = depth
        self.derivatives = derivatives
        self.size = 0
        self.edges: list[Edge] = []
        # What may have a derivative by an argument.
        self.perturbed: set[int] = set()
        self.scans: list[Carry] = []
        self._loops: list[int] = []
        self._num_loops = 0
        self._open: list[tuple[str, str]] = []  # key of the site, and of the call
        self._counts: dict[str, int] = {}
        self._num_scans: dict[str, int] = {}

    def edge(self, edge: Edge) -> None:
        self.edges.append(edge)
        if edge.derivative and edge.tail in self.perturbed:
            self.perturbed.add(edge.head)

    def node(self) -> int:
        self.size += 1
        return self.size - 1

    @property
    def call(self) -> str:
        return self._open[-1][1] if self._open else "."

    def level(self, jaxpr: Any, args: Sequence[int | None]) -> list[int | None]:
        """Walks a program with these arguments; its outputs."""
        jaxpr, _ = _compat.open_jaxpr(jaxpr)
        env = dict(zip(jaxpr.invars, args, strict=True))
        read = lambda v: None if _compat.is_literal(v) else env.get(v)
        opened = len(self._open)
        for eqn in jaxpr.eqns:
            operands = [read(v) for v in eqn.invars]
            if eqn.primitive is tap_p:
                results = operands[: eqn.params["num_values"]]
                self._tap(eqn.params["info"].site)
            else:
                rule = rule_of(eqn.primitive)
                parts = rule.bodies(eqn.params, eqn.invars) if rule else []
                if rule is not None and parts:
                    results = self._inside(eqn, operands, rule, parts)
                else:
                    results = self._operation(eqn, operands)
            env.update(zip(eqn.outvars, results, strict=False))
        del self._open[opened:]
        return [read(v) for v in jaxpr.outvars]

    def _tap(self, site: Site) -> None:
        """Enters a call, or leaves it."""
        if site.depth != self.depth:
            return
        if site.side is Side.ARGS_AND_KWARGS:
            n = self._counts.get(site.key, 0)
            self._counts[site.key] = n + 1
            self._open.append((site.key, site.numbered(n)))
        elif site.key in (key for key, _ in self._open):
            while self._open.pop()[0] != site.key:
                pass

    def _operation(
        self, eqn: Any, operands: Sequence[int | None]
    ) -> Sequence[int | None]:
        if all(x is None for x in operands):
            return [None] * len(eqn.outvars)
        has = self._derivatives_of(eqn, operands)
        name = eqn.primitive.name
        moves, contracts = name in _MOVES, name in _CONTRACTIONS
        results = [self.node() for _ in eqn.outvars]
        for i, tail in enumerate(operands):
            if tail is None:
                continue
            factors: tuple[int, ...] = ()
            if contracts and i < 2:
                other = operands[1 - i]
                factors = () if other is None else (other,)
            for j, head in enumerate(results):
                yes = has is None or has[i][j]
                self.edge(Edge(tail, head, yes, factors, name, self.call, moves))
        return results

    def _derivatives_of(
        self, eqn: Any, operands: Sequence[int | None]
    ) -> Derivatives | None:
        if self.derivatives is None:
            return None
        return self.derivatives(eqn, tuple(node in self.perturbed for node in operands))

    def _inside(
        self,
        eqn: Any,
        operands: list[int | None],
        rule: Rule,
        parts: Sequence[Body],
    ) -> Sequence[int | None]:
        if rule.exclusive:
            return self._one_of(eqn, operands, parts)
        start, values = len(self.edges), list(operands)
        results: Sequence[int | None] = [None] * len(eqn.outvars)
        for part in parts:
            if part.decides:
                continue
            args = [values[i] for i in part.operands]
            if part.carried:
                results = self._loop(eqn, part, args)
                # What decides whether it goes on is given these, too.
                for i, arg in zip(part.operands, args, strict=True):
                    values[i] = arg
            else:
                outs = self.level(part.jaxpr, args)
                results = [*outs, *results[len(outs) :]]
        for part in parts:
            if part.decides:
                args = [values[i] for i in part.operands]
                by = self.level(part.jaxpr, args)
                results = self._decided(eqn, by, results)
        if not rule.sees_into and self.derivatives is not None:
            return self._as_jax_says(eqn, operands, results, start)
        return results

    def _one_of(
        self, eqn: Any, operands: list[int | None], branches: Sequence[Body]
    ) -> Sequence[int | None]:
        """A branch of several, which the first operand chooses."""
        before, most = dict(self._counts), dict(self._counts)
        outs = []
        for branch in branches:
            self._counts = dict(before)
            args = [operands[i] for i in branch.operands]
            outs.append(self.level(branch.jaxpr, args))
            for key, n in self._counts.items():
                most[key] = max(n, most.get(key, 0))
        self._counts = most
        results = [self._joined([o[j] for o in outs]) for j in range(len(eqn.outvars))]
        return self._decided(eqn, operands[:1], results)

    def _joined(self, nodes: Sequence[int | None]) -> int | None:
        """What is one of these."""
        found = [n for n in nodes if n is not None]
        if not found:
            return None
        head = self.node()
        for tail in dict.fromkeys(found):
            self.edge(Edge(tail, head, True))
        return head

    def _decided(
        self, eqn: Any, by: Sequence[int | None], results: Sequence[int | None]
    ) -> Sequence[int | None]:
        """These results if what they are depends on other values, too."""
        tails = [tail for tail in by if tail is not None]
        if not tails:
            return results
        made = []
        for result in results:
            head = self.node()
            if result is not None:
                self.edge(Edge(result, head, True))
            name = eqn.primitive.name
            for t in tails:
                self.edge(Edge(t, head, False, (), name, self.call, moves=False))
            made.append(head)
        return made

    def _loop(
        self, eqn: Any, body: Body, args: list[int | None]
    ) -> Sequence[int | None]:
        """The results of a loop; `args` become what its body is given each time."""
        loop, self._num_loops = self._num_loops, self._num_loops + 1
        number = self._num_scans.get(self.call, 0)
        is_scan = eqn.primitive is _compat.scan_p
        if is_scan:
            self._num_scans[self.call] = number + 1
        jaxpr, _ = _compat.open_jaxpr(body.jaxpr)
        before, inits = [], []
        for _, i in body.carried:
            init, start = args[i], self.node()
            if is_inexact(jaxpr.invars[i]):
                self.perturbed.add(start)  # perhaps by the iteration before
            if init is not None:
                self.edge(Edge(init, start, True))
            inits.append(init)
            before.append(start)
            args[i] = start
        carry = Carry(
            loop,
            frozenset(self._loops),
            self.call,
            number,
            before,
            [],
            [jaxpr.invars[i].aval for _, i in body.carried],
        )
        if is_scan:
            self.scans.append(carry)
        self._loops.append(loop)
        outs = self.level(body.jaxpr, args)
        self._loops.pop()
        results = list(outs)
        for n, (o, _) in enumerate(body.carried):
            after = outs[o]
            carry.after.append(after)
            once = isinstance(body.times, int) and body.times == 1
            if after is not None and not once:
                self.edge(Edge(after, before[n], True, loop=loop))
            if isinstance(body.times, int) and body.times > 0:
                continue
            # It may not run at all.
            results[o] = (
                inits[n] if body.times == 0 else self._joined([after, inits[n]])
            )
        return results

    def _as_jax_says(
        self,
        eqn: Any,
        operands: Sequence[int | None],
        results: Sequence[int | None],
        start: int,
    ) -> Sequence[int | None]:
        """The results of a primitive that may have a derivative of its own. If it is
        another than that of what runs, which the edges from `start` on are, there is an
        edge from each operand.
        """
        says: Any = self._derivatives_of(eqn, operands)
        inexact = [
            is_inexact(v) and operands[i] in self.perturbed
            for i, v in enumerate(eqn.invars)
        ]
        sources: dict[int, int] = {}
        for i, node in enumerate(operands):
            if node is not None and inexact[i]:
                sources[node] = sources.get(node, 0) | 1 << i
        found = spread(self.size, self.edges[start:], sources, lambda e: e.derivative)
        wanted = [
            sum(1 << i for i, yes in enumerate(inexact) if yes and says[i][j])
            for j in range(len(eqn.outvars))
        ]
        got = [
            found[r] if r is not None and is_inexact(v) else 0
            for r, v in zip(results, eqn.outvars, strict=True)
        ]
        if got == wanted:
            return results
        self.edges[start:] = [e._replace(derivative=False) for e in self.edges[start:]]
        name, made = eqn.primitive.name, []
        for j, result in enumerate(results):
            head = self.node()
            if result is not None:
                values = Edge(result, head, False, (), name, self.call, False)
                self.edge(values)
            for i, tail in enumerate(operands):
                if tail is not None and wanted[j] >> i & 1:
                    self.edge(Edge(tail, head, True, (), name, self.call, False))
            made.append(head)
        return made
