"""What a report holds, and how it is shown."""

import dataclasses
from collections.abc import Iterator, Set
from typing import Any

from .._sites.keys import split_method
from .._sites.patterns import nearest
from .._table import Column, Shown, Table
from .._text import plural, shown_arrays, shown_bytes, shown_count
from .calls import Call, Tree
from .parameters import HasParameters, Parameter, parameter_notes, parameters_dict


@dataclasses.dataclass(frozen=True)
class Missing:
    """A site of which no log will hold anything.

    - `kind`: `"never called"`, `"read"` (its parameters are read without a call),
        `"static"` (in a static field), `"rule"` (only inside a derivative rule),
        `"no such name"` (of a value inside of a module) or `"lost"` (its values can't
        be brought out).
    - `why`: the same in words.
    """

    key: str
    class_name: str
    kind: str
    why: str


@dataclasses.dataclass(frozen=True)
class ReportDiff:
    """What [`peex.Report.diff`][] found; false if nothing.

    - `added`, `removed`: the keys of calls that only the other report has, and that it
        doesn't have. Those that are missing there, with the reason.
    - `changed`: for each other key, what was and what is, by name: `class`, `inputs`,
        `outputs`, `axes`, `when`, `parameters`, `flops`.
    """

    added: tuple[str, ...]
    removed: dict[str, str]
    changed: dict[str, dict[str, tuple[str, str]]]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def __str__(self) -> str:
        lines = [f"+ {key}" for key in self.added]
        lines += [f"- {k}{f': {w}' if w else ''}" for k, w in self.removed.items()]
        for key, changes in self.changed.items():
            lines += [f"~ {key}: {n} {a} => {b}" for n, (a, b) in changes.items()]
        return "\n".join(lines) or "no difference"


def _facts(call: Call) -> dict[str, Any]:
    count, size = call.parameter_count, call.parameter_bytes
    return {
        "class": call.class_name,
        "inputs": call.shown_inputs,
        "outputs": shown_arrays(call.outputs),
        "axes": ", ".join(f"{kind} {size}" for kind, size in call.axes) or "none",
        "when": call.when,
        "parameters": f"{shown_count(count)} ({shown_bytes(size)})",
        "flops": "?" if call.flops is None else shown_count(call.flops),
    }


def _parameters(call: Call) -> str:
    every, own = call.parameter_count, call.own_parameter_count
    return f"{shown_count(every)}{'' if own == every else f' ({shown_count(own)} own)'}"


class Report(HasParameters, Shown):
    """What a call of a model has to hook; made by [`peex.report`][].

    Printed, it is a table of the entries, with totals; of more than 30, those that are
    alike but for the numbers in their keys are one row (`report.show(fold=False)` has
    all). `report[key]` is any call, of the entries or the tree.

    FLOPs are counted from shapes: `2 * M * N * K` for a matrix product, for each batch
    index; 2 for each term of a convolution; 1 for each element that a reduction reads,
    or that any other floating point operation returns; 0 for what only moves or casts.
    A `scan` counts times its length, a `cond` as its most expensive branch, a `while`
    as one iteration.

    **Attributes:**

    - `entries`: a dict from keys to calls: the sites that `where` chose, in the order
        of a log.
    - `tree`: the calls of these, and of all modules (by `__call__`, or any other public
        method), within each other; its `children` are those that are in no other call.
    - `missing`: a dict from keys to what didn't run, or can't be brought out, each with
        its `why`.
    - `parameters`: all arrays of the model, each once, with its `uses`.
    - `flops`: of the whole call.
    - `uncounted`: the names of operations in it whose FLOPs aren't counted.
    """

    def __init__(
        self,
        *,
        entries: dict[str, Call],
        tree: Tree,
        missing: dict[str, Missing],
        parameters: tuple[Parameter, ...],
        flops: int,
        uncounted: tuple[str, ...],
    ):
        self.entries = entries
        self.tree = tree
        self.missing = missing
        self.parameters = parameters
        self.flops = flops
        self.uncounted = uncounted
        self._calls = {call.key: call for call in tree} | entries

    def __getitem__(self, key: str) -> Call:
        if key in self._calls:
            return self._calls[key]
        if key in self.missing:
            raise KeyError(f"{key!r} has no call: {self.missing[key].why}.")
        raise KeyError(
            f"{key!r} isn't a call of this report. Nearest: {nearest(key, self._calls)}"
        )

    def __contains__(self, key: object) -> bool:
        return key in self._calls

    def __iter__(self) -> Iterator[str]:
        """The keys of the entries."""
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def calls_of(self, parameter: str) -> tuple[str, ...]:
        """The keys of the calls that use a parameter, by any of its places: those of
        the modules that hold it themselves, as `"b.shared"` and `"b.shared#1"` of
        `"b.shared.weight"`.
        """
        return tuple(path[-1] for path in self._paths_to(parameter))

    def owner(self, parameter: str) -> str:
        """The key of the deepest call around all calls that use a parameter; `"."` if
        that is the whole.
        """
        paths = self._paths_to(parameter)
        shared = (keys for keys in zip(*paths, strict=False) if len(set(keys)) == 1)
        around = [keys[0] for keys in shared]
        return around[-1] if around else "."

    def _paths_to(self, parameter: str) -> list[tuple[str, ...]]:
        """For each call that uses a parameter, the keys of those around it, and its."""
        known = {use: p for p in self.parameters for use in p.uses}
        if parameter not in known:
            raise KeyError(
                f"{parameter!r} isn't a parameter of this report. Nearest: "
                f"{nearest(parameter, known)}"
            )
        paths: list[tuple[str, ...]] = []

        def visit(call: Call, around: tuple[str, ...], modules: Set[str]) -> bool:
            path = (*around, call.key)
            module, _ = split_method(call.site)
            inside = [visit(c, path, modules | {module}) for c in call.children]
            # What a module's own method does is done by the call around.
            uses = known[parameter] in call.parameters and module not in modules
            if uses and not any(inside):
                paths.append(path)
            return uses or any(inside)

        for call in self.tree.children:
            visit(call, (), frozenset())
        return paths

    @property
    def log_bytes(self) -> int:
        """What a log of the values of all entries would take."""
        return sum(call.log_bytes for call in self.entries.values())

    def diff(self, other: "Report") -> ReportDiff:
        """What is different in another report: see [`peex.ReportDiff`][]."""
        added = tuple(key for key in other.entries if key not in self.entries)
        removed = {
            key: other.missing[key].why if key in other.missing else ""
            for key in self.entries
            if key not in other.entries
        }
        changed = {}
        for key, call in self.entries.items():
            if key in other.entries:
                before, after = _facts(call), _facts(other.entries[key])
                changes = {
                    name: (before[name], after[name])
                    for name in before
                    if before[name] != after[name]
                }
                if changes:
                    changed[key] = changes
        return ReportDiff(added, removed, changed)

    def to_dict(self) -> dict[str, Any]:
        """All of it as dicts, lists, strings and numbers, as for JSON."""
        return {
            "entries": list(self.entries),
            "calls": [call.to_dict() for call in self.tree],
            "missing": [dataclasses.asdict(m) for m in self.missing.values()],
            "parameters": parameters_dict(self.parameters),
            "parameter_count": self.parameter_count,
            "parameter_bytes": self.parameter_bytes,
            "log_bytes": self.log_bytes,
            "flops": self.flops,
            "uncounted": list(self.uncounted),
        }

    def __repr__(self) -> str:
        missing = f", {len(self.missing)} missing" if self.missing else ""
        return f"<Report: {plural(len(self), 'call')}{missing}>"

    def __treescope_repr__(self, path: Any, subtree_renderer: Any) -> Any:
        # Only treescope itself calls this.
        from treescope import repr_lib  # pyright: ignore[reportMissingImports]

        shown = {"entries": self.entries, "missing": self.missing}
        return repr_lib.render_object_constructor(
            type(self), shown, path, subtree_renderer
        )

    def _table(self) -> Table:
        columns = (
            Column("site", flexible=True),
            Column("class", flexible=True),
            Column("input -> output", flexible=True),
            Column("axes", flexible=True),
            Column("params", right=True),
            Column("log", right=True),
            Column("FLOPs", right=True),
        )
        shared = {p for p in self.parameters if len(p.uses) > 1}
        rows = [
            (
                call.key,
                call.class_name,
                call.arrows,
                call._axes(),
                _parameters(call) + ("*" if shared & set(call.parameters) else ""),
                shown_bytes(call.log_bytes),
                "?" if call.flops is None else shown_count(call.flops),
            )
            for call in self.entries.values()
        ]
        missing = self.missing.values()
        flops = f"{shown_count(self.flops)} FLOPs"
        if self.uncounted:
            flops += f" (not counted: {', '.join(self.uncounted)})"
        notes = [
            f"{plural(len(self), 'call')}, log {shown_bytes(self.log_bytes)}, {flops}",
            *parameter_notes(self.parameters),
        ]
        listed = [("missing: ", m.key, f" ({m.class_name}): {m.why}") for m in missing]
        return Table(columns, rows, notes, listed, keyed=True)
