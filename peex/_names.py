"""What the program of a forward pass names, found from its jaxpr.

A traced forward pass is a list of equations. A name stands for an operation
(`div`), for a function that is an equation of its own (of `jax.jit`, `jax.custom_jvp`),
for a mark (`jax.ad_checkpoint.checkpoint_name`), or for a Python function: JAX keeps
with each equation the stack of calls that made it, so the equations of one call are
known, and its value is what they hand on. Nothing here runs anything.
"""

import dataclasses
import dis
import pathlib
import types
from collections.abc import Mapping, Sequence
from typing import Any

from . import _compat_frames, _compat_jaxprs


# The calls that made an equation, outermost first: the code of each function, and the
# place in it from which the next one is called. `None`: not known.
Path = tuple[_compat_frames.Frame, ...] | None
Codes = frozenset[types.CodeType]

_HERE = str(pathlib.Path(__file__).parent)

# Primitives that hold named values in their bodies. The others with bodies have rules
# that stand in the place of these.
INLINED = ("jit", "closed_call", "core_call")
OPEN = (*INLINED, "remat2", "scan", "cond", "while")


@dataclasses.dataclass(frozen=True)
class Found:
    """A named value of one jaxpr: the `index`-th of its name in the forward pass. It is
    made by the equations `first` to `last`.
    """

    name: str
    index: int
    first: int
    last: int
    variables: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Level:
    """A jaxpr with the named values in it, by the equation behind which they are there;
    and the bodies of its equations that hold some.
    """

    jaxpr: Any
    found: Mapping[int, Sequence[Found]]
    bodies: Mapping[int, Sequence["Level"]]


@dataclasses.dataclass(frozen=True)
class Names:
    """All the names of a jaxpr: those that equations have, those of Python functions,
    and those that occur where nothing can be brought out, with what is around.
    """

    equations: Mapping[str, None]
    functions: Mapping[str, None]
    hidden: Mapping[str, str]


class Reader:
    """Finds the names of one forward pass.

    - `own`: the code of the method itself, whose frame is no name.
    - `parts`: the code of methods of callable modules inside: what runs there is inside
        of those.
    """

    def __init__(self, own: types.CodeType | None, parts: Codes):
        self._own = own
        self._parts = parts
        self._names: dict[int, Names] = {}

    def own_path(self, path: Path) -> Path:
        """A path, from the method itself on."""
        codes = [code for code, _ in path or ()]
        return path[codes.index(self._own) :] if path and self._own in codes else path

    def _functions(self, path: Path) -> list[str]:
        """The names of the functions on a path, in order; the method itself, and what
        is peex's own, has none.
        """
        unnamed = lambda c: c is self._own or c.co_filename.startswith(_HERE)
        return ["" if unnamed(code) else code.co_name for code, _ in path or ()]

    def _paths(self, jaxpr: Any) -> list[Path]:
        """The paths in a body, from its function on: what is outside may be of another
        call, for which JAX traced it first.
        """
        function = _compat_frames.function_of(jaxpr)
        paths: list[Path] = []
        for eqn in jaxpr.eqns:
            path: list[_compat_frames.Frame] = []
            for frame in _compat_frames.frames_of(eqn):
                path.append(frame)
                if (frame[0].co_filename, frame[0].co_firstlineno) == function:
                    paths.append(self.own_path(tuple(reversed(path))))
                    break
            else:
                paths.append(None)
        return paths

    def _num_own(self, path: Path) -> int:
        """How many of the calls are of this module: those up to a part's, or to where
        the engine runs the program of a part, or the hook or log of another site.
        """
        for i, (code, _) in enumerate(path or ()):
            part = code in self._parts and (i > 0 or code is not self._own)
            runs = code.co_name in ("_fire", "_run_part", "_run_equation")
            if part or (runs and code.co_filename.startswith(_HERE)):
                return i
        return len(path or ())

    def _is_own(self, path: Path) -> bool:
        return self._num_own(path) == len(path or ())

    def names(self, jaxpr: Any, paths: Sequence[Path] | None = None) -> Names:
        """All names, those in bodies too. `paths` are given for the jaxpr of the method
        itself.
        """
        if id(jaxpr) in self._names:
            return self._names[id(jaxpr)]
        equations: dict[str, None] = {}
        functions: dict[str, None] = {}
        hidden: dict[str, str] = {}
        for eqn, path in zip(jaxpr.eqns, paths or self._paths(jaxpr), strict=True):
            own = self._functions(path)[: self._num_own(path)]
            functions |= dict.fromkeys(name for name in own if name)
            if not self._is_own(path):
                continue
            equations |= dict.fromkeys(_equation_names(eqn))
            for body in _compat_jaxprs.sub_jaxprs(eqn.params):
                inside = self.names(body)
                if eqn.primitive.name in OPEN:
                    equations |= inside.equations
                    functions |= inside.functions
                    hidden |= inside.hidden
                else:
                    every = (*inside.equations, *inside.functions, *inside.hidden)
                    where = f"{_equation_names(eqn)[-1]!r} (`{eqn.primitive.name}`)"
                    hidden |= dict.fromkeys(every, where)
        self._names[id(jaxpr)] = Names(equations, functions, hidden)
        return self._names[id(jaxpr)]

    def level(
        self,
        jaxpr: Any,
        paths: Sequence[Path] | None,
        wanted: Mapping[str, bool],
        counts: dict[str, int],
    ) -> Level:
        """Where the `wanted` names are: those of equations (`True`) or of Python
        functions. `counts` is how often each was met before; it goes on counting.
        """
        paths = self._paths(jaxpr) if paths is None else paths
        uses = {v: i for i, e in enumerate(jaxpr.eqns) for v in _variables(e.invars)}
        uses |= dict.fromkeys(_variables(jaxpr.outvars), len(jaxpr.eqns))
        ranges: list[tuple[str, int, int, int]] = []
        for name, of_equations in wanted.items():
            find = self._equations if of_equations else self._calls
            ranges += [(name, *found) for found in find(jaxpr, paths, name)]
        found: dict[int, list[Found]] = {}
        bodies: dict[int, list[Level]] = {}
        for i, (eqn, path) in enumerate(zip(jaxpr.eqns, paths, strict=True)):
            taken = {name for name, first, last, _ in ranges if first <= i <= last}
            inside = {n: w for n, w in wanted.items() if n not in taken}
            if eqn.primitive.name in OPEN and self._is_own(path):
                levels = self._bodies(eqn, inside, counts)
                if any(x.found or x.bodies for x in levels):
                    bodies[i] = levels
            # What is inside of another ends first.
            ending = sorted(
                (r for r in ranges if r[2] == i), key=lambda r: (-r[1], -r[3])
            )
            for name, first, last, _ in ending:
                index = counts[name] = counts.get(name, -1) + 1
                variables = _leaving(jaxpr, uses, first, last)
                new = Found(name, index, first, last, variables)
                found.setdefault(i, []).append(new)
        return Level(jaxpr, found, bodies)

    def _bodies(
        self, eqn: Any, wanted: Mapping[str, bool], counts: dict[str, int]
    ) -> list[Level]:
        levels = []
        before, after = dict(counts), dict(counts)
        for body in _compat_jaxprs.sub_jaxprs(eqn.params):
            names = self.names(body)
            here = {
                name: of_equations
                for name, of_equations in wanted.items()
                if name in (names.equations if of_equations else names.functions)
            }
            # Of the branches of a `cond` one runs: each counts from the same number.
            mine = dict(before) if eqn.primitive.name == "cond" else after
            levels.append(self.level(body, None, here, mine))
            after |= {n: max(k, after.get(n, k)) for n, k in mine.items()}
        counts |= after
        return levels

    def visible_functions(self, paths: Sequence[Path]) -> dict[str, None]:
        """The functions that a reader of the model's code knows: its own, and those of
        JAX that it calls.
        """
        visible: dict[str, None] = {}
        for path in paths:
            called = True
            for (code, _), name in zip(path or (), self._functions(path), strict=True):
                if not _compat_frames.is_of_jax(code):
                    called = True
                    if name and not name.startswith(("<", "__")):
                        visible[name] = None
                elif called and "<locals>" not in code.co_qualname:
                    called = False
                    if not name.startswith("_") and "." not in code.co_qualname:
                        visible[name] = None
        return visible

    def _equations(
        self, jaxpr: Any, paths: Sequence[Path], name: str
    ) -> list[tuple[int, int, int]]:
        """The equations of this name: first, last, and how deep they are in calls."""
        return [
            (i, i, len(path or ()))
            for i, (eqn, path) in enumerate(zip(jaxpr.eqns, paths, strict=True))
            if name in _equation_names(eqn) and self._is_own(path)
        ]

    def _calls(
        self, jaxpr: Any, paths: Sequence[Path], name: str
    ) -> list[tuple[int, int, int]]:
        """The calls of a Python function of this name, as `_equations`.

        Equations one after the other with the same calls around the function are of one
        call of it; unless, where it is called in a loop, its first one comes again.
        """
        calls: list[tuple[int, int, int]] = []
        current: Any = None
        for i, (eqn, path) in enumerate(zip(jaxpr.eqns, paths, strict=True)):
            if path is None:
                continue  # of a program that was traced before: of what is around it
            names = self._functions(path)
            depth = names.index(name) if name in names else -1
            if not 0 <= depth < self._num_own(path):
                current = None
                continue
            call = path[:depth], path[depth][0]
            start = path[depth:], eqn.primitive
            again = current is not None and start == current[1] and _is_looped(call[0])
            if current is not None and current[0] == call and not again:
                calls[-1] = (calls[-1][0], i, depth)
            else:
                current = call, start
                calls.append((i, i, depth))
        return calls


def _equation_names(eqn: Any) -> list[str]:
    primitive, name = eqn.primitive.name, eqn.params.get("name")
    if primitive == "name":  # a mark
        return [name]
    names = [primitive, name] if isinstance(name, str) else [primitive]
    if primitive in ("custom_jvp_call", "custom_vjp_call"):
        body, _ = _compat_jaxprs.open_jaxpr(eqn.params["call_jaxpr"])
        names.append(body.debug_info.func_name)
    return names


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [v for v in atoms if not _compat_jaxprs.is_literal(v)]


def _leaving(
    jaxpr: Any, uses: Mapping[Any, int], first: int, last: int
) -> tuple[Any, ...]:
    """What these equations hand on."""
    if first == last:
        return tuple(jaxpr.eqns[last].outvars)
    made = [v for eqn in jaxpr.eqns[first : last + 1] for v in eqn.outvars]
    leaving = tuple(v for v in made if uses.get(v, -1) > last)
    return leaving or tuple(jaxpr.eqns[last].outvars)


def _is_looped(path: Sequence[_compat_frames.Frame]) -> bool:
    """Whether one of these places is in a loop (of JAX's code, only its `tree.map`)."""
    counts = lambda code: (
        not _compat_frames.is_of_jax(code) or code.co_filename.endswith("tree_util.py")
    )
    return any(
        any(start <= place <= end for start, end in _loops(code))
        for code, place in path
        if counts(code)
    )


def _loops(code: types.CodeType) -> tuple[tuple[int, int], ...]:
    return tuple(
        (instruction.argval, instruction.offset)
        for instruction in dis.get_instructions(code)
        if "JUMP_BACKWARD" in instruction.opname
    )
