"""What is known of a monitor's sites before its first step."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from .._report.report import report
from .._report.result import Call
from .._sites.keys import input_key, split_call
from .._sites.patterns import logged_matches
from .state import ARGUMENTS


class Sites(NamedTuple):
    """- `stacked`: of each site, by its name in a summary, which of the axes that it
        gains are those of layers.
    - `sizes`: the sizes of these, by the key of the module.
    - `inputs`: the keys of sites whose arguments are recorded too, and those of these.
    """

    stacked: dict[str, tuple[bool, ...]]
    sizes: dict[str, tuple[int, ...]]
    inputs: tuple[tuple[str, str], ...]


def sites_of(monitor: Any, model: Any, args: Any, kwargs: Any) -> Sites:
    """Found by tracing the loss."""

    def calls(where: Any) -> Mapping[str, Call]:
        return report(model, *args, where=where, method=monitor.loss, **kwargs).entries

    stacked: dict[str, tuple[bool, ...]] = {}
    sizes: dict[str, tuple[int, ...]] = {}

    def add(prefix: str, found: Mapping[str, Call]) -> None:
        for key, call in found.items():
            stacked[f"{prefix}{key}"] = call.stacked
            pairs = zip(call.axes, call.stacked, strict=True)
            layers = tuple(axis.size for axis, is_kept in pairs if is_kept)
            if layers and not call.is_inside:
                sizes[call.site] = layers

    of_where: Mapping[str, Call] = {}
    inputs: list[tuple[str, str]] = []
    for prefix in ("", "backward/"):
        stats = monitor.backward if prefix else monitor.forward
        if stats is None:
            continue
        if monitor.where is None and isinstance(stats, Mapping):
            found = calls(list(stats))
        else:
            found = of_where = of_where or calls(monitor.where)
        add(prefix, found)
        if not prefix:
            inputs = [
                (key, input_key(c.site, c.number))
                for key, c in found.items()
                if _asks(stats, c)
            ]
    if inputs:
        keys = dict.fromkeys(split_call(key)[0] for _, key in inputs)
        add(ARGUMENTS, calls(list(keys)))
    return Sites(stacked, sizes, tuple(inputs))


def _asks(stats: Any, call: Call) -> bool:
    """Whether the arguments of a call are wanted."""
    if call.is_inside:
        return False
    if isinstance(stats, Mapping):
        mine = (p for p in stats if logged_matches(p, call.key))
        stats = stats.get(next(mine, None))
    return stats is not None and "out_over_in" in stats.names
