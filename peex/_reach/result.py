"""What `px.reach` hands back, and how it is shown."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .._sites.patterns import nearest
from .._table import Shown, Table
from .._text import plural
from .diff import find_diff, ReachDiff
from .pictures import mermaid, plot
from .shown import table


@dataclasses.dataclass(frozen=True)
class Link:
    """That one array reaches another.

    - `how`: `"direct"`; `"through"`, where every path passes a contraction (a matrix
        product, a convolution) with other parameters; `"both"`, where there are paths
        of both kinds; or `"value"`, where it has no derivative.
    - `through`: these other parameters.
    """

    how: str
    through: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.how} ({', '.join(self.through)})" if self.through else self.how


@dataclasses.dataclass(frozen=True, eq=False)
class Reached:
    """What one array reaches in one step.

    - `key`: its name. `uses`: all of its names, if it is in several places.
    - `kind`: `"parameter"`, `"state"`, or `"input"` (any other argument).
    - `shape`, `dtype`: of the array.
    - `states`, `outputs`: by key, what it reaches of the new state, and of the rest of
        the output. Each is a link with `how` and `through`.
    - `by`: the operations that it first goes into on its way there, as pairs of
        primitive and call: `(("dot_general", "cell"),)`.
    - `reason`: why it reaches no state with a derivative. `None` if it does;
        `"non_temporal"` if it reaches other outputs alone; `"stop_gradient"` or
        `"no_derivative"` where the derivative ends on the way; `"unused"`.
    - `cut_by`: the operations at which it ends, like `by`.
    """

    key: str
    uses: tuple[str, ...]
    kind: str
    shape: tuple[int, ...]
    dtype: Any
    states: Mapping[str, Link]
    outputs: Mapping[str, Link]
    by: tuple[tuple[str, str], ...]
    reason: str | None
    cut_by: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        links = ", ".join(f"{k}: {link}" for k, link in self.states.items())
        return f"<{self.kind} {self.key} -> {links or self.reason}>"


@dataclasses.dataclass(frozen=True)
class Group:
    """States that all reach each other, by their keys.

    - `recurrent`: whether they reach themselves at all.
    """

    states: tuple[str, ...]
    recurrent: bool


class Reach(Shown):
    """Which parameter of a model reaches which of its state in one step, and how; made
    by [`peex.reach`][]. `reach["cell.weight_hh"]` is what one array reaches: `.states`,
    `.outputs`, `.by`, `.reason`, `.cut_by`. Printed, a table; of more than 30 rows,
    equal siblings are one (`reach.show(fold=False)` has all).

    **Attributes:**

    - `parameters`: by key, what each array of the model reaches. One that is held in
        several places is there once, by the first; all of its names are looked up.
    - `states`, `inputs`: the same of the state before the step, and of all other
        arguments.
    - `outputs`: the keys of what is returned beside the new state.
    - `groups`: states that reach each other. Each has `states` and `recurrent`.
    """

    def __init__(
        self,
        parameters: Sequence[Reached],
        states: Sequence[Reached],
        inputs: Sequence[Reached],
        outputs: Sequence[str],
    ) -> None:
        self.parameters = {r.key: r for r in parameters}
        self.states = {r.key: r for r in states}
        self.inputs = {r.key: r for r in inputs}
        self.outputs = tuple(outputs)
        self.groups = _groups(self.states)
        self._by_name: dict[str, Reached] = {}
        for reached in (*parameters, *states, *inputs):
            for name in (reached.key, *reached.uses):
                self._by_name.setdefault(name, reached)

    def __getitem__(self, key: str) -> Reached:
        if key not in self._by_name:
            raise KeyError(
                f"{key!r} isn't an array of the model or of the arguments. Nearest: "
                f"{nearest(key, self._by_name)}"
            )
        return self._by_name[key]

    def __contains__(self, key: object) -> bool:
        return key in self._by_name

    def __iter__(self) -> Iterator[str]:
        """The keys of the parameters."""
        return iter(self.parameters)

    def __len__(self) -> int:
        return len(self.parameters)

    @property
    def temporal(self) -> tuple[str, ...]:
        """The keys of the parameters that reach a state with a derivative."""
        return self.by_reason(None)

    @property
    def excluded(self) -> dict[str, str]:
        """Of all other parameters the reason, by key."""
        reasons = ((k, r.reason) for k, r in self.parameters.items())
        return {k: reason for k, reason in reasons if reason is not None}

    def by_reason(self, reason: str | None) -> tuple[str, ...]:
        """The keys of the parameters with this reason: `None` are the temporal ones."""
        return tuple(k for k, r in self.parameters.items() if r.reason == reason)

    @property
    def counts(self) -> dict[str, int]:
        """How many parameters (each once), temporal and excluded ones, states and
        groups there are, and links of each kind from parameters to states.
        """
        links = collections.Counter(
            link.how for r in self.parameters.values() for link in r.states.values()
        )
        return {
            "parameters": len(self.parameters),
            "temporal": len(self.temporal),
            "excluded": len(self.excluded),
            "states": len(self.states),
            "groups": len(self.groups),
            **{how: links[how] for how in ("direct", "through", "both", "value")},
        }

    def matrix(self) -> np.ndarray:
        """How each parameter (row) reaches each state (column): an array of strings,
        `""` where it doesn't.
        """
        return _matrix(self.parameters, self.states)

    def state_matrix(self) -> np.ndarray:
        """How each state before the step (row) reaches each after it (column)."""
        return _matrix(self.states, self.states)

    def eventually(self) -> dict[str, tuple[str, ...]]:
        """For each temporal parameter the states that it reaches in one step or more,
        with a derivative.
        """
        onward = {key: _derived(r) for key, r in self.states.items()}
        reached = {}
        for key in self.temporal:
            found = _closure(_derived(self.parameters[key]), onward)
            reached[key] = tuple(k for k in self.states if k in found)
        return reached

    def diff(self, other: "Reach") -> ReachDiff:
        """What is different in another: see [`peex.ReachDiff`][]."""
        return find_diff(self.parameters, other.parameters)

    def to_dict(self) -> dict[str, Any]:
        """All of it as dicts, lists, strings and numbers, as for JSON."""
        return {
            "parameters": [_dict(r) for r in self.parameters.values()],
            "states": [_dict(r) for r in self.states.values()],
            "inputs": [_dict(r) for r in self.inputs.values()],
            "outputs": list(self.outputs),
            "groups": [
                {"states": list(g.states), "recurrent": g.recurrent}
                for g in self.groups
            ],
            "excluded": self.excluded,
            "counts": self.counts,
        }

    def to_mermaid(self) -> str:
        """A diagram in the language of Mermaid (https://mermaid.js.org), which GitHub
        and Jupyter draw: parameters to states, and states to each other. Dotted:
        without a derivative; thick: through other parameters alone.
        """
        return mermaid(self.parameters, self.states, [g.states for g in self.groups])

    def plot(self, ax: Any = None) -> Any:
        """A picture of `matrix()`, with the states to each other below it. Needs
        matplotlib.

        **Arguments:**

        - `ax`: the axes of matplotlib to draw on; new ones if it isn't given.

        **Returns:**

        The axes.

        **Raises:**

        `ImportError` if matplotlib isn't installed.
        """
        return plot(self.parameters, self.states, ax)

    def __repr__(self) -> str:
        counts = self.counts
        parameters, states, groups = (
            plural(counts[f"{name}s"], name) for name in ("parameter", "state", "group")
        )
        temporal = counts["temporal"]
        return f"<Reach: {temporal} of {parameters} reach {states} in {groups}>"

    def _table(self) -> Table:
        return table(self.parameters, self.states, self.groups, self.counts)


def _derived(reached: Reached) -> set[str]:
    return {key for key, link in reached.states.items() if link.how != "value"}


def _closure(start: set[str], onward: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    todo = list(start)
    while todo:
        key = todo.pop()
        if key not in found:
            found.add(key)
            todo += onward[key]
    return found


def _groups(states: Mapping[str, Reached]) -> tuple[Group, ...]:
    """The strongly connected components, in the order of the states."""
    onward = {key: _derived(r) for key, r in states.items()}
    reached = {key: _closure(onward[key], onward) for key in states}
    groups, seen = [], set()
    for key in states:
        if key in seen:
            continue
        mutual = {k for k in reached[key] if key in reached[k]} | {key}
        seen |= mutual
        members = tuple(k for k in states if k in mutual)
        groups.append(Group(members, key in reached[key]))
    return tuple(groups)


def _matrix(rows: Mapping[str, Reached], columns: Mapping[str, Any]) -> np.ndarray:
    how = lambda r, key: r.states[key].how if key in r.states else ""
    cells = [[how(r, key) for key in columns] for r in rows.values()]
    return np.array(cells, dtype="<U7").reshape(len(rows), len(columns))


def _dict(reached: Reached) -> dict[str, Any]:
    links = lambda found: {
        key: {"how": link.how, "through": list(link.through)}
        for key, link in found.items()
    }
    return {
        "key": reached.key,
        "uses": list(reached.uses),
        "shape": list(reached.shape),
        "dtype": str(reached.dtype),
        "states": links(reached.states),
        "outputs": links(reached.outputs),
        "by": [list(pair) for pair in reached.by],
        "reason": reached.reason,
        "cut_by": [list(pair) for pair in reached.cut_by],
    }
