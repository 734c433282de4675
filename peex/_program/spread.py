"""How far what begins at some values of a program gets: sets of sources, as bits of an
integer, along the edges of its flow.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


def spread(
    size: int,
    edges: Sequence[Any],
    sources: Mapping[int, int],
    follows: Callable[[Any], bool],
    back: bool = False,
) -> list[int]:
    """For each of so many values, the bits of the sources from which a path leads to it
    (`back`: to which one leads from it), over the edges that are followed.
    """
    reached = [0] * size
    for node, bits in sources.items():
        reached[node] |= bits
    followed = [(e.tail, e.head) for e in edges if follows(e)]
    if back:
        followed = [(head, tail) for tail, head in reversed(followed)]
    changed = True
    while changed:  # only loops need more than one round
        changed = False
        for tail, head in followed:
            new = reached[tail] & ~reached[head]
            if new:
                reached[head] |= new
                changed = True
    return reached


def bits(mask: int) -> Iterable[int]:
    """The positions of the bits that are set."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
