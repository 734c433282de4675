"""Which arguments of a program reach which of its values, and how: along the edges of
its flow (`flow.py`).

A path is *through* others if it passes a contraction with what comes from parameters
only, while it itself brings what depends on data; otherwise it is *direct*. All is
found for many targets at once, with sets as bits of integers.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from .edges import Edge, Flow
from .spread import bits, spread


@dataclasses.dataclass(frozen=True)
class Found:
    """What reaches one target: of each kind the sources, as bits.

    - `direct`, `through`: with a derivative; both if there are paths of both kinds.
    - `value`: in any way.
    - `factors`: of what it is through, by the bits of the parameters there.
    """

    direct: int
    through: int
    value: int
    factors: Mapping[int, int]


class Reaching:
    """Answers for one flow.

    **Arguments:**

    - `sources`: the values from which something is reached; each is a bit.
    - `parameters`: the bits of those that are parameters. All others are data.
    """

    def __init__(self, flow: Flow, sources: Sequence[int], parameters: int):
        self.flow = flow
        self.sources = sources
        self._start = {node: 1 << i for i, node in enumerate(sources)}
        values = self._spread(self._start, frozenset(), derivative=False)
        only = [bool(x) and not x & ~parameters for x in values]
        # The contractions that make a path one that is through others.
        self._through = {
            i
            for i, e in enumerate(flow.edges)
            if e.factors and values[e.tail] & ~parameters and only[e.factors[0]]
        }
        derived = self._spread(self._start, frozenset(), derivative=True)
        self._factors = {
            i: derived[flow.edges[i].factors[0]] or values[flow.edges[i].factors[0]]
            for i in self._through
        }
        self._edges_from: dict[int, list[int]] = {}
        for i, edge in enumerate(flow.edges):
            self._edges_from.setdefault(edge.tail, []).append(i)
        self._leads: dict[str, list[tuple[list[int], list[int]]]] = {}
        self._cuts: dict[str, list[tuple[Edge, int]]] = {}

    def _spread(
        self,
        start: Mapping[int, int],
        cut: Collection[int],
        derivative: bool,
        back: bool = False,
    ) -> list[int]:
        def follows(edge: Edge) -> bool:
            return edge.loop not in cut and (edge.derivative or not derivative)

        return spread(self.flow.size, self.flow.edges, start, follows, back)

    def to(
        self, kind: str, targets: Sequence[int | None], cut: frozenset[int]
    ) -> list[Found]:
        """What reaches each target without going on to the next iteration of the loops
        that are `cut`. The `kind` of the targets is remembered for `by` and `cuts`.
        """
        edges = self.flow.edges
        ordinary = [e for i, e in enumerate(edges) if i not in self._through]
        goes = lambda e: e.derivative and e.loop not in cut
        direct = spread(self.flow.size, ordinary, self._start, goes)
        begun: dict[int, int] = {}
        for i in self._through:
            if goes(edges[i]) and direct[edges[i].tail]:
                begun[edges[i].head] = (
                    begun.get(edges[i].head, 0) | direct[edges[i].tail]
                )
        through = spread(self.flow.size, edges, begun, goes)
        values = self._spread(self._start, cut, derivative=False)

        ends: dict[int, int] = {}
        for j, node in enumerate(targets):
            if node is not None:
                ends[node] = ends.get(node, 0) | 1 << j
        leads = self._spread(ends, cut, derivative=True, back=True)
        leads_values = self._spread(ends, cut, derivative=False, back=True)
        self._leads.setdefault(kind, []).append((leads, leads_values))
        factors: list[dict[int, int]] = [{} for _ in targets]
        for i in sorted(self._through):
            edge = edges[i]
            arriving = direct[edge.tail] | through[edge.tail]
            if not goes(edge) or not arriving:
                continue
            for j in bits(leads[edge.head]):
                known = factors[j].get(self._factors[i], 0)
                factors[j][self._factors[i]] = known | arriving
        cuts = self._cuts.setdefault(kind, [])
        for edge in edges:
            if not edge.derivative and edge.loop not in cut and leads_values[edge.head]:
                arriving = direct[edge.tail] | through[edge.tail]
                if arriving:
                    cuts.append((edge, arriving))
        return [
            Found(0, 0, 0, {})
            if node is None
            else Found(direct[node], through[node], values[node], factors[j])
            for j, node in enumerate(targets)
        ]

    def cuts(self, kind: str, source: int) -> list[tuple[str, str]]:
        """The operations, with their calls, at which the derivative by a source ends on
        its way to targets of a kind.
        """
        found = (
            (edge.primitive, edge.call)
            for edge, arriving in self._cuts.get(kind, ())
            if arriving >> source & 1
        )
        return list(dict.fromkeys(found))

    def by(self, kind: str, source: int, derivative: bool) -> list[tuple[str, str]]:
        """The operations, with their calls, that a source first goes into on its way to
        targets of a kind.
        """
        leads = self._leads.get(kind, [])
        seen, todo = set(), [self.sources[source]]
        found: dict[int, tuple[str, str]] = {}
        while todo:
            node = todo.pop()
            if node in seen:
                continue
            seen.add(node)
            for i in self._edges_from.get(node, ()):
                edge = self.flow.edges[i]
                if derivative and not edge.derivative:
                    continue
                if not any(lead[not derivative][edge.head] for lead in leads):
                    continue
                if edge.moves:
                    todo.append(edge.head)
                else:
                    found[i] = edge.primitive, edge.call
        return list(dict.fromkeys(found[i] for i in sorted(found)))
