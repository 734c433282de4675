"""Several choices of sites in one wrapper, so that it is known which of them run first:
senders and receivers.
"""

import dataclasses
import itertools
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool

from .._hooks.log_fns import IdentityLog
from .._log import Log
from .._sites.chosen import Chosen, is_wild
from .._sites.patterns import logged_matches
from .._wrappers.forward import ForwardHook
from .._wrappers.types import Method, Where


@dataclasses.dataclass(frozen=True)
class Group:
    """What one `where` chooses. In the wrapper of all, sites have the keys of the
    model; names of the user's own are those of a group.
    """

    chosen: tuple[Chosen, ...]
    root_method: str

    @property
    def patterns(self) -> list[str]:
        """What chooses its sites by the keys of the model."""
        keys = (dataclasses.replace(c, alias=None) for c in self.chosen)
        return list(dict.fromkeys(c.key(self.root_method) for c in keys))

    def names(self, log: Mapping[str, Any]) -> dict[str, str]:
        """From keys of a log of all groups, in their order, to what the group calls
        these.

        **Raises:** `TypeError` for two names of one site.
        """
        found: dict[str, str] = {}
        for key, chosen in itertools.product(log, self.chosen):
            name = self._name(key, chosen)
            if name is not None and found.setdefault(key, name) != name:
                raise TypeError(
                    f"{found[key]!r} and {name!r} are names of one site, {key!r}. Give "
                    f"it one, as in `{{{name!r}: {key!r}}}`."
                )
        return found

    def _name(self, key: str, chosen: Chosen) -> str | None:
        """If it is of what was chosen."""
        plain = dataclasses.replace(chosen, alias=None).key(self.root_method)
        # Stacked layers have one key, "layers.*", which theirs match.
        stacked = is_wild(key) and logged_matches(key, plain)
        if not logged_matches(plain, key) and not stacked:
            return None
        if chosen.alias is None:
            return key
        base = dataclasses.replace(chosen, alias=None, inside=None, call=None)
        rest = key.removeprefix(base.key(self.root_method))
        number, suffix = re.findall(r"^(#\d+)?(.*)$", rest)[0]
        name, end = chosen.named(suffix) or (key, "")
        return f"{name}{'' if chosen.call is not None else number}{end}"


def together(
    model: Any, method: Method, wheres: Mapping[str, Where]
) -> tuple[ForwardHook, dict[str, Group]]:
    """A wrapper that logs the sites of all groups, and the groups by name.

    **Raises:** as a `ForwardHook` of each.
    """
    groups = {}
    for name, where in wheres.items():
        plan = ForwardHook(model, None, IdentityLog(), where=where, method=method).plan
        chosen = tuple(c for c, _, _ in plan.chosen)
        groups[name] = Group(chosen, plan.root_method)
    patterns = patterns_of(groups)
    logging = ForwardHook(model, None, IdentityLog(), where=patterns, method=method)
    return logging, groups


def patterns_of(groups: Mapping[str, Group]) -> list[str]:
    """What chooses the sites of all groups."""
    every = (pattern for group in groups.values() for pattern in group.patterns)
    return list(dict.fromkeys(every))


def steps_of(log: Log, key: str) -> list[int]:
    """Which axes of a site's array in a log are those of loops."""
    return [i for i, axis in enumerate(log.axes[key]) if axis.kind == "step"]


class Times:
    """Says which of the calls of sites are before which, by a log of them all (or one
    of shapes), in which they are in order.
    """

    def __init__(self, log: Log):
        self._order = {key: i for i, key in enumerate(log)}
        axes = {key: [log.axes[key][i] for i in steps_of(log, key)] for key in log}
        self._loops = {key: [axis.loop for axis in mine] for key, mine in axes.items()}
        self._axes = axes

    def before(self, first: str, second: str) -> Bool[np.ndarray, "steps other_steps"]:
        """For each step of one site (all loops that it is in as one axis) and each of
        another, whether the one is before the other.
        """
        common = 0
        pairs = zip(self._loops[first], self._loops[second], strict=False)
        for mine, other in pairs:
            if mine != other:
                break
            common += 1
        # In which iteration of the loops that both are in.
        mine, other = (self._iterations(key, common) for key in (first, second))
        same = mine[:, None] == other[None, :]
        in_order = self._order[first] < self._order[second]
        return (mine[:, None] < other[None, :]) | (same & in_order)

    def _iterations(self, key: str, common: int) -> np.ndarray:
        """Of each step, which iteration of the outermost loops it is in."""
        axes = self._axes[key]
        steps = np.indices([axis.size for axis in axes])
        number = np.zeros(steps.shape[1:], int)
        for axis, step in list(zip(axes, steps, strict=True))[:common]:
            number *= axis.size
            number += axis.size - 1 - step if axis.reverse else step
        return number.reshape(-1)
