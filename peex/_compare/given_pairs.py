"""Which calls belong together by the patterns that were given."""

import collections
import re
from collections.abc import Mapping, Sequence

from .._errors import SiteNotFoundError
from .._sites.patterns import nearest
from .normal_keys import call_numbers, normal_key, NormalKey
from .sides import Visit


# By what the wildcards of a pattern stand for.
Matched = Mapping[NormalKey, Sequence[Visit]]


def matching(pattern: str, visits: Sequence[Visit], side: str) -> Matched:
    """Those that a pattern matches. What its wildcards stand for is a number, too,
    where a key has none, but the call is one of several steps or calls.

    **Raises:** `SiteNotFoundError` if there are none.
    """
    parts = re.split(r"(\*\*|\*)", pattern)
    wild = {"**": "(.*)", "*": "([^.]*)"}
    regex = "".join(wild.get(part, re.escape(part)) for part in parts)
    calls = call_numbers(visits)
    found: dict[NormalKey, list[Visit]] = collections.defaultdict(list)
    for visit in visits:
        call = f"{visit.key}#{visit.number}" if visit.number else visit.key
        # A pattern may say which call, and which step.
        texts = {
            visit.name: (),
            call: visit.steps,
            visit.key: (*visit.steps, *calls[visit]),
        }
        for text, further in reversed(texts.items()):
            match = re.fullmatch(regex, text)
            if match:
                found[normal_key(".".join(match.groups()), further)].append(visit)
                break
    if not found:
        names = dict.fromkeys(visit.name for visit in visits)
        raise SiteNotFoundError(
            f"The pattern {pattern!r} of `match` matches no call of the {side}. "
            f"Nearest: {nearest(pattern, names)}."
        )
    return found


def groups_of(
    pattern: str, mine: Matched, other: str, theirs: Matched
) -> list[tuple[Sequence[Visit], Sequence[Visit]]]:
    """Those of both of which the wildcards stand for the same; if that is nothing, but
    there are as many on each, all in the order of execution.

    **Raises:** `SiteNotFoundError` if there are none.
    """
    groups = [(visits, theirs[key]) for key, visits in mine.items() if key in theirs]
    every = [[v for visits in side.values() for v in visits] for side in (mine, theirs)]
    # Counted from another number on.
    is_shifted = len(groups) < len(mine) == len(theirs)
    if len(every[0]) == len(every[1]) and (is_shifted or not groups):
        return [(every[0], every[1])]
    if groups:
        return groups
    shown = [", ".join(repr(visit.name) for visit in visits[:3]) for visits in every]
    raise SiteNotFoundError(
        f"`match={{{pattern!r}: {other!r}}}` brings nothing together: what the "
        f"wildcards stand for differs in {shown[0]}, ... of the model and {shown[1]}, "
        "... of the other. Give a pattern for each, as in `{'layers.*.attn': "
        "'blocks.*.mixer', 'layers.*.mlp': 'blocks.*.ffn'}`."
    )
