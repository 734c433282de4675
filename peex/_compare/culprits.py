"""Which of the calls that were compared are to blame."""

import dataclasses
from collections.abc import Sequence

from .compared import Row
from .pairing import is_inside, Pair, Pairing


def crossed(pairing: Pairing) -> list[Pair]:
    """Those of which the parameters are equal to those of another than the keys say: as
    if two had been swapped.
    """
    mine, others = pairing.keys
    by_parameters = [pair for pair in pairing.pairs if pair.how == "parameters"]
    found = []
    for pair in by_parameters:
        key = mine[pair.model]
        here = key.likeness(others[pair.other])
        best = max(key.likeness(others[p.other]) for p in by_parameters)
        if best >= 1 and here + 0.5 < best:
            found.append(pair)
    return found


def with_notes(rows: Sequence[Row], pairing: Pairing) -> list[Row]:
    """The rows, those with the parameters of another with a note of that."""
    swapped = crossed(pairing)
    noted = []
    for row, pair in zip(rows, pairing.pairs, strict=True):
        if pair in swapped:
            note = f"its parameters are those of {row.other!r} of the other"
            row = dataclasses.replace(row, note=note)
        noted.append(row)
    return noted


def culprits(rows: Sequence[Row], pairing: Pairing) -> list[str]:
    """The keys of the rows that are to blame, in order."""
    pairs = pairing.pairs
    swapped = {pair.model for pair in crossed(pairing)}
    at_fault: set[int] = {i for i, row in enumerate(rows) if row.differs_locally}
    for i in sorted(at_fault):
        # Of what holds them: its code is right, but for what it was made of.
        inside = [
            j
            for j, pair in enumerate(pairs[:i])
            if pair.model in swapped and is_inside(pair.model, pairs[i].model)
        ]
        nearest_ = [j for j in inside if _around(pairs, j) == i]
        if nearest_:
            at_fault.discard(i)
            at_fault.update(nearest_)
    for i, row in enumerate(rows):
        given_well = row.input_error is None or row.input_error <= row.tolerance
        if row.local_error is None and row.error > row.tolerance and given_well:
            inside = (j for j in at_fault if is_inside(pairs[j].model, pairs[i].model))
            known = row.input_error is not None or not at_fault
            if known and not any(inside):
                at_fault.add(i)
    return [rows[i].key for i in sorted(at_fault)]


def _around(pairs: Sequence[Pair], j: int) -> int | None:
    """The innermost pair around one."""
    for i in range(j + 1, len(pairs)):
        if is_inside(pairs[j].model, pairs[i].model):
            return i
    return None
