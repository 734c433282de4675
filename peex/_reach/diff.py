"""What is different between two `px.reach`es: [`ReachDiff`][]."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class ReachDiff:
    """What `Reach.diff` found; false if nothing.

    - `added`, `removed`: the keys of parameters that only the other has, and that it
        doesn't have.
    - `changed`: for each other parameter what was and what is: by the key of a state
        how it is reached (`""` if not), and by `"reason"` the reason.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: dict[str, dict[str, tuple[str, str]]]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def __str__(self) -> str:
        lines = [f"+ {key}" for key in self.added]
        lines += [f"- {key}" for key in self.removed]
        for key, changes in self.changed.items():
            lines += [
                f"~ {key}: {name} {before or 'none'} => {after or 'none'}"
                for name, (before, after) in changes.items()
            ]
        return "\n".join(lines) or "no difference"


def find_diff(before: Mapping[str, Any], after: Mapping[str, Any]) -> ReachDiff:
    """The difference between parameters and what they reach, by key."""
    changed = {}
    for key in before.keys() & after.keys():
        one, other = _facts(before[key]), _facts(after[key])
        changes = {
            name: (one.get(name, ""), other.get(name, ""))
            for name in [*one, *(n for n in other if n not in one)]
            if one.get(name, "") != other.get(name, "")
        }
        if changes:
            changed[key] = changes
    return ReachDiff(
        tuple(key for key in after if key not in before),
        tuple(key for key in before if key not in after),
        {key: changed[key] for key in before if key in changed},
    )


def _facts(reached: Any) -> dict[str, str]:
    facts = {key: str(link) for key, link in reached.states.items()}
    return facts | {"reason": reached.reason or ""}
