"""Which call of one side is which of the other."""

import collections
import dataclasses
import difflib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from .._errors import LogShapeError
from .._text import shown_arrays
from .given_pairs import groups_of, matching
from .layouts import alike, sizes
from .normal_keys import normal_key, normal_keys, SAME
from .same_arrays import SameArrays
from .sides import AbstractSide, joined, Visit


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two calls that are compared, and what has brought them together: `"given"`,
    `"parameters"`, `"key"`, `"order"`, or, of what holds others, `"parts"`.
    """

    model: Visit
    other: Visit
    how: str


class Pairing:
    """The pairs, in the order of the model.

    - `same`: which parameters are equal.
    - `left_out`: those of the model that are meant to have no partner.
    - `misfits`: calls on both sides, each with one of the other side that has the same
        parameters, but returned something of another shape.
    """

    def __init__(
        self, a: AbstractSide, b: AbstractSide, match: Mapping[str, str | None]
    ):
        self._a, self._b = a, b
        self._found: dict[Visit, Pair] = {}
        self._taken: set[Visit] = set()
        self.left_out: set[Visit] = set()
        self.misfits: dict[Visit, Visit] = {}
        self.keys = normal_keys(a.visits), normal_keys(b.visits)
        self.same = SameArrays(a.parameters, b.parameters)
        for pattern, other in match.items():
            self._given(pattern, other)
        self._by_parameters()
        self._by_keys(lambda a, b: a.is_leaf and b.is_leaf)
        # What is one call here may be several there, as an attention.
        self._by_keys(lambda a, b: a.is_leaf != b.is_leaf, least=SAME)
        self._by_order()
        self._by_parts()
        self._by_keys(lambda a, b: True, least=1.0)

    @property
    def pairs(self) -> list[Pair]:
        return [self._found[v] for v in self._a.visits if v in self._found]

    def unmatched(self) -> tuple[list[Visit], list[Visit]]:
        """The sites without others inside that have no partner, and do something."""
        does = self._does_something
        mine = [v for v in self._a.visits if v not in self._found and does(v)]
        others = [v for v in self._b.visits if v not in self._taken and does(v)]
        return mine, others

    def _does_something(self, visit: Visit) -> bool:
        return visit.is_leaf and visit not in self.left_out and not visit.hands_on()

    def single_around(self, visit: Visit) -> Visit | None:
        """What is around a call, if it is next to what has no calls inside."""
        for pair in self.pairs:
            for outer, other in ((pair.model, pair.other), (pair.other, pair.model)):
                if outer.key != "." and is_inside(visit, outer) and other.is_leaf:
                    return outer
        return None

    def _is_free(self, a: Visit) -> bool:
        return a not in self._found and a not in self.left_out

    def _add(self, a: Visit, b: Visit, how: str, must_fit: bool = True) -> None:
        if not self._is_free(a) or b in self._taken or b in self.left_out:
            return
        if not fit(a, b):
            if how == "parameters":
                self.misfits[a], self.misfits[b] = b, a
            elif must_fit:
                raise does_not_fit(a, b, how)
            return
        self._found[a] = Pair(a, b, how)
        self._taken.add(b)

    def _given(self, pattern: str, other: str | None) -> None:
        mine = matching(pattern, self._a.visits, "model")
        if other is None:
            self.left_out.update(v for visits in mine.values() for v in visits)
            return
        theirs = matching(other, self._b.visits, "other")
        for group in groups_of(pattern, mine, other, theirs):
            for a, b in zip(*group, strict=False):
                self._add(a, b, "given")

    def _by_parameters(self) -> None:
        """Modules of which most arrays are equal, and to no others."""
        a, b = _modules(self._a, self._is_free), _modules(self._b, self._is_untaken)
        owner_a = {name: m for m, visits in a.items() for name in visits[0].parameters}
        owner_b = {name: m for m, visits in b.items() for name in visits[0].parameters}
        votes: collections.Counter[tuple[Hashable, Hashable]] = collections.Counter()
        for name, other in self.same.unique().items():
            if name in owner_a and other in owner_b:
                size = int(self._a.parameters[name].size)
                votes[owner_a[name], owner_b[other]] += size
        for (mine, theirs), size in votes.most_common():
            sides = (self._a, a[mine][0]), (self._b, b[theirs][0])
            if 2 * size >= max(_num_parameters(*side) for side in sides):
                visits = self._in_one(a[mine], b[theirs])
                for x, y in zip(visits, b[theirs], strict=False):
                    self._add(x, y, "parameters")

    def _in_one(self, mine: list[Visit], theirs: list[Visit]) -> list[Visit]:
        """The steps of a loop as one call, if the other has a single one for all, as of
        a recurrent layer of PyTorch.
        """
        if len(theirs) != 1 or len(mine) == 1 or not all(v.steps for v in mine):
            return mine
        whole = joined(mine)
        if fit(mine[0], theirs[0]) or not fit(whole, theirs[0]):
            return mine
        self._a.visits.insert(self._a.visits.index(mine[-1]) + 1, whole)
        self.keys[0][whole] = normal_key(whole.key, ())
        self.left_out.update(mine)
        return [whole]

    def _is_untaken(self, b: Visit) -> bool:
        return b not in self._taken

    def _by_keys(
        self, is_meant: Callable[[Visit, Visit], bool], least: float = 0.0
    ) -> None:
        """What is most alike first."""
        by_numbers: dict[Any, list[Visit]] = collections.defaultdict(list)
        for b in filter(self._is_untaken, self._b.visits):
            by_numbers[self.keys[1][b].numbers].append(b)
        ranked = []
        for i, a in enumerate(filter(self._is_free, self._a.visits)):
            key = self.keys[0][a]
            for j, b in enumerate(by_numbers[key.numbers]):
                like = key.likeness(self.keys[1][b]) if is_meant(a, b) else 0.0
                is_same = like >= SAME and a.is_leaf and b.is_leaf
                if like and like >= least and (is_same or fit(a, b)):
                    ranked.append((-like, i, j, a, b))
        for *_, a, b in sorted(ranked, key=lambda row: row[:3]):
            self._add(a, b, "key")

    def _by_order(self) -> None:
        """What is left, where between the same neighbours one is as large as the
        other.
        """
        within = lambda visit: self.single_around(visit) is not None
        sides: list[list[Visit]] = [
            [v for v in side.visits if self._does_something(v) and not within(v)]
            for side in (self._a, self._b)
        ]
        partner = {pair.other: pair.model for pair in self._found.values()}

        def token(visit: Visit, is_other: bool) -> Any:
            known = partner.get(visit) if is_other else visit
            if known in self._found:
                return "pair", id(known)
            return "sizes", _sizes(visit), bool(visit.parameters)

        tokens = [[token(v, i == 1) for v in side] for i, side in enumerate(sides)]
        matcher = difflib.SequenceMatcher(None, *tokens, autojunk=False)
        for block in matcher.get_matching_blocks():
            for i in range(block.size):
                a, b = sides[0][block.a + i], sides[1][block.b + i]
                self._add(a, b, "order", must_fit=False)

    def _by_parts(self) -> None:
        """What holds others: where the parts of one are those of the other."""
        pairs = list(self._found.values())
        partner = {pair.model: pair.other for pair in pairs}
        inner_a = _parts(self._a.visits, set(partner))
        inner_b = _parts(self._b.visits, set(partner.values()))
        by_parts: dict[Any, list[Visit]] = collections.defaultdict(list)
        for b, parts in inner_b.items():
            by_parts[frozenset(parts)].append(b)
        for a, parts in inner_a.items():
            images = frozenset(partner[v] for v in parts)
            likeness = lambda b, a=a: self.keys[0][a].likeness(self.keys[1][b])
            # Where one holds nothing but another, the names tell which is which.
            for b in sorted(by_parts.get(images, ()), key=likeness, reverse=True):
                if parts and self._is_free(a):
                    self._add(a, b, "parts", must_fit=False)


def fit(a: Visit, b: Visit) -> bool:
    """Whether what they return can be brought into one layout."""
    pairs = list(zip(a.outputs, b.outputs, strict=False))
    if not pairs:
        return False
    x, y = pairs[0]
    return x is not None and y is not None and alike(x.shape, y.shape)


def does_not_fit(a: Visit, b: Visit, how: str) -> LogShapeError:
    return LogShapeError(
        f"No permutation of axes aligns {a.name!r}, {shapes_of(a)}, with {b.name!r} of "
        f"the other, {shapes_of(b)} (matched by {how}). Give both the same inputs, "
        f"match others, or leave it out: `match={{{a.key!r}: None}}`."
    )


def shapes_of(visit: Visit) -> str:
    return shown_arrays([x for x in visit.outputs if x is not None])


def _sizes(visit: Visit) -> tuple[int, ...]:
    x = visit.outputs[0] if visit.outputs else None
    return () if x is None else tuple(sorted(sizes(x.shape)))


def _modules(
    side: AbstractSide, is_free: Callable[[Visit], bool]
) -> dict[Hashable, list[Visit]]:
    found: dict[Hashable, list[Visit]] = collections.defaultdict(list)
    for visit in side.visits:
        if visit.is_leaf and visit.parameters and is_free(visit):
            found[visit.module].append(visit)
    return found


def _num_parameters(side: AbstractSide, visit: Visit) -> int:
    return sum(int(side.parameters[name].size) for name in visit.parameters)


def is_inside(inner: Visit, outer: Visit) -> bool:
    """Whether one call is of a part of what the other is of, at the same step."""
    n = min(len(inner.steps), len(outer.steps))
    is_part = outer.key == "." or inner.key.startswith(f"{outer.key}.")
    return inner.key != outer.key and is_part and inner.steps[:n] == outer.steps[:n]


def _parts(visits: Sequence[Visit], known: set[Visit]) -> dict[Visit, list[Visit]]:
    """Of each call with others inside, those of them that are paired."""
    found: dict[Visit, list[Visit]] = {}
    since: dict[str, int] = {}
    for i, outer in enumerate(visits):
        if not outer.is_leaf and outer not in known:
            # Of a further call: what ran since the last one.
            start = since.get(outer.key, 0)
            mine = (v for v in visits[start:i] if v in known and is_inside(v, outer))
            found[outer] = list(mine)
        since[outer.key] = i
    return found
