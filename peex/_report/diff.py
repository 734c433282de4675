"""What is different between two reports."""

import dataclasses
from typing import Any

from .result import Call, Report
from .table import shown_arrays, shown_bytes, shown_count


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


def diff(old: Report, new: Report) -> ReportDiff:
    added = tuple(key for key in new.entries if key not in old.entries)
    removed = {
        key: new.missing[key].why if key in new.missing else ""
        for key in old.entries
        if key not in new.entries
    }
    changed = {}
    for key, call in old.entries.items():
        if key in new.entries:
            before, after = _facts(call), _facts(new.entries[key])
            changes = {
                name: (before[name], after[name])
                for name in before
                if before[name] != after[name]
            }
            if changes:
                changed[key] = changes
    return ReportDiff(added, removed, changed)


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
