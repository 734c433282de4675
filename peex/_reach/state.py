"""Which arguments are the state of a model, and where in its output the new one is."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax.tree_util as jtu

from .._engine.values import is_state
from .._errors import PeexError
from .._report.parameters import is_array_or_shape
from .._text import shown_arrays
from .arguments import Argument, Leaf


# What names a part: a position or a name, or for the output a function of it.
One = int | str
State = One | Sequence[One] | None
NewOne = One | Callable[[Any], Any]
NewState = NewOne | Sequence[NewOne] | None


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of an output: what it is, and which of its arrays these are."""

    value: Any
    positions: tuple[int, ...]


def chosen(arguments: Sequence[Argument], state: State) -> list[Argument]:
    """The arguments that are the state."""
    if state is None:
        return []
    wanted = [state] if isinstance(state, int | str) else list(state)
    found = []
    for one in wanted:
        mine = [
            a
            for i, a in enumerate(arguments)
            if (i == one if isinstance(one, int) else a.name == one)
        ]
        if not mine and state == 1 and any(is_state(x) for x in _states(arguments)):
            continue  # the default, where Equinox's is all the state there is
        if not mine or not mine[0].leaves:
            names = ", ".join(f"{i}: {a.name}" for i, a in enumerate(arguments))
            what = "holds no array" if mine else "isn't an argument of this call"
            raise PeexError(
                f"The state was to be the argument {one!r} (`state={state!r}`), which "
                f"{what}. The arguments are: {names or 'none'}. Write `state=` with "
                "the position or name of what the model hands on to its next step, "
                "`state=None` for what the program's own scans carry, or `state=()` if "
                "there is none."
            )
        found.append(mine[0])
    return found


def _states(arguments: Sequence[Argument]) -> list[Any]:
    trees = [a.value for a in arguments]
    return [x for x in jtu.tree_leaves(trees, is_leaf=is_state) if is_state(x)]


def state_leaves(
    arguments: Sequence[Argument], wanted: Sequence[Argument]
) -> tuple[list[tuple[Any, list[Leaf]]], list[tuple[Any, list[Leaf]]]]:
    """The state: what was asked for, with its arrays, and each `eqx.nn.State`."""
    plain, of_equinox = [], []
    for argument in arguments:
        leaves = iter(argument.leaves)
        is_wanted = any(argument is a for a in wanted)
        inside = []
        for x in jtu.tree_leaves(argument.value, is_leaf=is_state):
            mine = [next(leaves) for _ in _arrays(x)]
            if is_state(x):
                of_equinox.append((x, mine))
            else:
                inside += mine
        if is_wanted and inside:
            plain.append((argument.value, inside))
    return plain, of_equinox


def _arrays(tree: Any) -> list[Any]:
    return [x for x in jtu.tree_leaves(tree) if is_array_or_shape(x)]


def _shape(tree: Any) -> Any:
    """What must be equal for two pytrees to be alike."""
    arrays = eqx.filter(tree, is_array_or_shape)
    found = jtu.tree_leaves(arrays)
    return [(x.shape, x.dtype) for x in found], jtu.tree_structure(arrays)


def _parts(value: Any, start: int = 0) -> Iterator[tuple[Part, list[Part]]]:
    """Each part of an output, with those that it is made of."""
    number = len(_arrays(value))
    children: list[Part] = []
    inside: list[Any] = []
    if not is_state(value):
        found = jtu.tree_leaves(value, is_leaf=lambda x: x is not value)
        inside = [] if len(found) == 1 and found[0] is value else found
    at = start
    for child in inside:
        size = len(_arrays(child))
        children.append(Part(child, tuple(range(at, at + size))))
        at += size
    yield Part(value, tuple(range(start, start + number))), children
    for child in children:
        first = child.positions[0] if child.positions else at
        yield from _parts(child.value, first)


def find_new(
    output: Any,
    plain: Sequence[tuple[Any, list[Leaf]]],
    of_equinox: Sequence[tuple[Any, list[Leaf]]],
    new_state: NewState,
    same: Callable[[int], Any],
) -> dict[int, int]:
    """For the position of each array of the state, that of the new one in the output.
    What Equinox's state isn't returned has none.

    **Arguments:**

    - `same`: tells the arrays of the output apart: one that is returned twice is one.
    """
    made: dict[int, int] = {}
    parts = list(_parts(output))
    for state, leaves in of_equinox:
        alike = [p for p, _ in parts if is_state(p.value)]
        alike = [p for p in alike if _shape(p.value) == _shape(state)]
        if len(_distinct([p.positions for p in alike], same)) > 1:
            raise PeexError(
                f"The output has {len(alike)} `eqx.nn.State`s that are like the one "
                "given. Return one."
            )
        for part in alike[:1]:
            made |= _pairs(leaves, part.positions)
    if not plain:
        return made
    leaves = [leaf for _, mine in plain for leaf in mine]
    if new_state is not None:
        positions = _asked_for(output, new_state, len(plain))
        shapes = _arrays(output)
        got = [(tuple(shapes[i].shape), shapes[i].dtype) for i in positions]
        if got != [(leaf.shape, leaf.dtype) for leaf in leaves]:
            raise PeexError(
                f"`new_state={new_state!r}` is {_shown(shapes, positions)}, but the "
                f"state is {shown_arrays([value for value, _ in plain])}."
            )
        return made | _pairs(leaves, positions)
    return made | _pairs(leaves, _only_alike(output, parts, plain, same))


def _only_alike(
    output: Any,
    parts: Sequence[tuple[Part, list[Part]]],
    plain: Sequence[tuple[Any, list[Leaf]]],
    same: Callable[[int], Any],
) -> tuple[int, ...]:
    """The one part of the output that is like the state."""
    wanted = [_shape(value) for value, _ in plain]
    found: list[tuple[int, ...]] = []
    if len(wanted) == 1:
        found = [p.positions for p, _ in parts if _shape(p.value) == wanted[0]]
    else:  # one beside the other
        for _, children in parts:
            shapes = [_shape(child.value) for child in children]
            for i in range(len(children)):
                if shapes[i : i + len(wanted)] == wanted:
                    run = children[i : i + len(wanted)]
                    found.append(tuple(n for p in run for n in p.positions))
        if not found:
            each = [[p for p, _ in parts if _shape(p.value) == w] for w in wanted]
            if all(len(_distinct([p.positions for p in e], same)) == 1 for e in each):
                found = [tuple(n for e in each for n in e[0].positions)]
    different = _distinct(found, same)
    if len(different) == 1:
        return different[0]
    returned = shown_arrays(output)
    what = "isn't clear" if different else "isn't there"
    raise PeexError(
        f"Where in the output the new state {what}: the state is "
        f"{shown_arrays([value for value, _ in plain])}, and the output is {returned}, "
        f"of which {len(different)} parts are like it. Say which: `new_state=1` for "
        "the second of what is returned, or a function, as `new_state=lambda out: "
        "out.carry`; if another argument is the state, its position or name, as "
        "`state=0`."
    )


def _distinct(
    found: Sequence[tuple[int, ...]], same: Callable[[int], Any]
) -> list[tuple[int, ...]]:
    return list({tuple(map(same, p)): p for p in reversed(found)}.values())


def _asked_for(output: Any, new_state: Any, number: int) -> tuple[int, ...]:
    several = isinstance(new_state, Sequence) and not isinstance(new_state, str)
    asked = list(new_state) if several else [new_state]
    if several and len(asked) != number:
        raise PeexError(
            f"`new_state={new_state!r}` names {len(asked)} parts of the output, but "
            f"there are {number} arguments in `state`."
        )
    position = {id(x): i for i, x in enumerate(_arrays(output))}
    found: list[int] = []
    for one in asked:
        try:
            if callable(one):
                part = one(output)
            elif isinstance(one, str) and hasattr(output, one):
                part = getattr(output, one)
            else:
                part = output[one]
            found += [position[id(x)] for x in _arrays(part)]
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise PeexError(
                f"`new_state={one!r}` isn't a part of the output, which is "
                f"{shown_arrays(output)}."
            ) from error
    return tuple(found)


def _pairs(leaves: Sequence[Leaf], positions: Sequence[int]) -> dict[int, int]:
    return {leaf.position: p for leaf, p in zip(leaves, positions, strict=True)}


def _shown(shapes: Sequence[Any], positions: Sequence[int]) -> str:
    return shown_arrays([shapes[i] for i in positions])
