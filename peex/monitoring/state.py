"""What a monitor keeps from step to step, and where in it each site is."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, UInt32

from .._engine.values import eval_shape
from .._errors import LogShapeError
from .._log import Log
from .._wrappers.value_and_grad import Logs
from . import windows
from .stats import Recorded
from .windows import of_step, Window


ARGUMENTS = "arguments/"


class Slot(NamedTuple):
    """One array of what a site logs, or a parameter.

    - `name`: the key of the site, with `backward/` in front of that of a cotangent and
        `arguments/` of what a module is given; or the path of the parameter.
    - `path`: which array of its value.
    """

    name: str
    path: Any


class Group(NamedTuple):
    """Slots that are kept in the arrays of one window, along its first axis: of all of
    them what is recorded is alike.

    - `over`, `kept`: which of the axes that it gained are merged, and which are those
        of stacked layers.
    - `like`: what its window is like: the structure of what is recorded, and shapes
        and dtypes without the axes that are merged.
    """

    slots: tuple[Slot, ...]
    over: tuple[int, ...]
    kept: tuple[int, ...]
    like: Any


class Part(eqx.Module):
    """What was recorded of some slots, merged.

    - `windows`: one for each of `groups`.
    - `slots`: all of them, in the order of a log.
    """

    windows: tuple[Window, ...]
    groups: tuple[Group, ...] = eqx.field(static=True)
    slots: tuple[Slot, ...] = eqx.field(static=True)

    def with_step(self, each: Sequence[Recorded]) -> "Part":
        """With one more step, in which this was recorded at the slots."""
        found = dict(zip(self.slots, each, strict=True))
        step = Part(windows_of(found, self.groups), self.groups, self.slots)
        return self.merged(step)

    def merged(self, other: "Part") -> "Part":
        both = (self.windows, other.windows)
        return Part(windows.each(windows.merged, *both), self.groups, self.slots)

    def emptied(self) -> "Part":
        none = windows.each(windows.empty, self.windows)
        return Part(none, self.groups, self.slots)


class MonitorState(eqx.Module):
    """What a [`peex.monitoring.Monitor`][] has seen since it was last read: a pytree of
    few arrays, whose sizes don't depend on how much that was. It is made by its `init`.

    - `steps`: in how many steps it was on.
    - `sites`, `parameters`: what was recorded at sites, and of updates.
    - `inputs`: the keys of sites whose arguments are recorded too, and those of these.
    """

    steps: UInt32[Array, ""]
    sites: Part
    parameters: Part
    inputs: tuple[tuple[str, str], ...] = eqx.field(static=True)

    def merged(self, other: "MonitorState") -> "MonitorState":
        """What two have seen, as of processes that don't share their arrays."""
        steps = self.steps + other.steps
        sites = self.sites.merged(other.sites)
        parameters = self.parameters.merged(other.parameters)
        return MonitorState(steps, sites, parameters, self.inputs)

    def emptied(self) -> "MonitorState":
        """One that has seen nothing."""
        none = jnp.zeros_like(self.steps)
        parts = self.sites.emptied(), self.parameters.emptied()
        return MonitorState(none, *parts, self.inputs)


def part_of(
    found: Mapping[Slot, Recorded], stacked: Mapping[Slot, Sequence[bool]]
) -> Part:
    """One that has seen nothing of what is recorded, which may be shapes. `stacked`
    says of the axes that each gained which are those of layers.
    """
    groups: dict[Any, list[Slot]] = {}
    for slot, one in found.items():
        flags = stacked[slot]
        over = tuple(i for i, is_kept in enumerate(flags) if not is_kept)
        kept = tuple(i for i, is_kept in enumerate(flags) if is_kept)
        groups.setdefault((over, kept, _like(one, kept)), []).append(slot)
    made = tuple(Group(tuple(slots), *alike) for alike, slots in groups.items())
    merge = lambda each: windows_of(dict(zip(found, each, strict=True)), made)
    shapes = eval_shape(merge, list(found.values()))
    arrays = jtu.tree_map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return Part(arrays, made, tuple(found)).emptied()


def recorded_in(logs: Logs, arguments: Log) -> dict[Slot, Recorded]:
    """What the logs of a step hold, in their order."""
    found: dict[Slot, Recorded] = {}
    named = ("", logs.forward), ("backward/", logs.backward), (ARGUMENTS, arguments)
    for prefix, log in named:
        for key in log:
            entries, _ = jtu.tree_flatten_with_path(log[key], is_leaf=_is_recorded)
            for path, one in entries:
                found[Slot(f"{prefix}{key}", tuple(path))] = one
    return found


def windows_of(
    found: Mapping[Slot, Recorded], groups: Sequence[Group]
) -> tuple[Window, ...]:
    """What was recorded in one step, merged."""
    return tuple(_window([found[s] for s in group.slots], group) for group in groups)


def _window(here: Sequence[Recorded], group: Group) -> Window:
    together = lambda xs: jtu.tree_map(lambda *ys: jnp.stack(ys), *xs)
    if len({one.axes for one in here}) > 1:
        return together([of_step(one, group.over, group.kept) for one in here])
    behind = lambda axes: tuple(i + 1 for i in axes)
    return of_step(together(here), behind(group.over), (0, *behind(group.kept)))


def check_alike(found: Mapping[Slot, Recorded], part: Part) -> None:
    """**Raises:** `LogShapeError` for what isn't as it was when the state was made."""
    expected = {slot: group for group in part.groups for slot in group.slots}
    for slot in dict.fromkeys([*expected, *found]):
        if slot not in found:
            what = "isn't there in this call"
        elif slot not in expected:
            what = "is new in this call"
        else:
            group, one = expected[slot], found[slot]
            num_axes = len(group.over) + len(group.kept)
            if num_axes != len(one.axes):
                what = f"gained {num_axes} axes then, and {len(one.axes)} now"
            elif group.like != _like(one, group.kept):
                what = "is of another shape or dtype now, or has other statistics"
            else:
                continue
        raise LogShapeError(
            f"The state of this monitor was made for another call: {slot.name!r} "
            f"{what}. Make it of arguments like those of this one: `state = "
            "monitor.init(model, *batch)`."
        )


def _like(one: Recorded, kept: Sequence[int]) -> Any:
    leaves, treedef = jtu.tree_flatten(one)
    axes = one.axes
    sizes = tuple(axes[i] for i in kept if i < len(axes))
    own = ((tuple(x.shape[len(axes) :]), jnp.dtype(x.dtype)) for x in leaves)
    return treedef, sizes, tuple(own)


def _is_recorded(x: Any) -> bool:
    return isinstance(x, Recorded)
