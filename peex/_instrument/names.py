"""What the program of a forward pass names, found from its jaxpr.

A traced forward pass is a list of equations. A name stands for an operation
(`div`), for a function that is an equation of its own (of `jax.jit`, `jax.custom_jvp`),
for a mark (`jax.ad_checkpoint.checkpoint_name`), or for a Python function: JAX keeps
with each equation the stack of calls that made it, so the equations of one call are
known, and its value is what they hand on. Nothing here runs anything.
"""

import dataclasses
import pathlib
import types
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _compat
from .._engine.rule import rule_of
from .aliases import primitive_of
from .returned import returned_p


# The calls that made an equation, outermost first: the code of each function, and the
# place in it from which the next one is called. `None`: not known.
CallPath = tuple[_compat.Frame, ...] | None
Codes = frozenset[types.CodeType]

_HERE = str(pathlib.Path(__file__).parents[1])


def sees_into(eqn: Any) -> bool:
    """Whether values in the bodies of an equation have names. Other primitives with
    bodies have rules that stand in the place of these.
    """
    rule = rule_of(eqn.primitive)
    return rule is not None and rule.sees_into


@dataclasses.dataclass(frozen=True)
class Found:
    """A named value of one jaxpr: the `index`-th of its name in the forward pass. It is
    made by the equations `first` to `last`, which are written at `place`.
    """

    name: str
    index: int
    first: int
    last: int
    variables: tuple[Any, ...]
    place: str


@dataclasses.dataclass(frozen=True)
class Named:
    """A jaxpr with the named values in it, by the equation behind which they are there;
    and the bodies of its equations that hold some.
    """

    jaxpr: Any
    found: Mapping[int, Sequence[Found]]
    bodies: Mapping[int, Sequence["Named"]]


@dataclasses.dataclass(frozen=True)
class Names:
    """All the names of a jaxpr: those that equations have, those of Python functions,
    and those that occur where nothing can be brought out, with what is around.
    """

    equations: Mapping[str, None]
    functions: Mapping[str, None]
    hidden: Mapping[str, str]

    def equation(self, name: str) -> str | None:
        """The name of the equations that are meant by a name; `None` if a Python
        function is.
        """
        if name in self.equations:
            return name
        return None if name in self.functions else primitive_of(name, self.equations)

    def has(self, name: str, equation: str | None) -> bool:
        """Whether a name is here, with what `equation` says of it."""
        return (
            name in self.functions if equation is None else equation in self.equations
        )


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

    def own_path(self, path: CallPath) -> CallPath:
        """A path, from the method itself on."""
        codes = [code for code, _ in path or ()]
        return path[codes.index(self._own) :] if path and self._own in codes else path

    def _functions(self, path: CallPath) -> list[str]:
        """The names of the functions on a path, in order; the method itself, and what
        is peex's own, has none.
        """
        unnamed = lambda c: c is self._own or c.co_filename.startswith(_HERE)
        return ["" if unnamed(code) else code.co_name for code, _ in path or ()]

    def _paths(self, jaxpr: Any) -> list[CallPath]:
        """The paths in a body, from its function on: what is outside may be of another
        call, for which JAX traced it first.
        """
        function = _compat.function_of(jaxpr)
        paths: list[CallPath] = []
        for eqn in jaxpr.eqns:
            path: list[_compat.Frame] = []
            for frame in _compat.frames_of(eqn):
                path.append(frame)
                if (frame[0].co_filename, frame[0].co_firstlineno) == function:
                    paths.append(self.own_path(tuple(reversed(path))))
                    break
            else:
                paths.append(None)
        return paths

    def _num_own(self, path: CallPath) -> int:
        """How many of the calls are of this module: those up to a part's, or to where
        the engine runs the program of a part, or the hook or log of another site.
        """
        for i, (code, _) in enumerate(path or ()):
            part = code in self._parts and (i > 0 or code is not self._own)
            runs = code.co_name in ("at_site", "_run_part", "_run_bodies")
            if part or (runs and code.co_filename.startswith(_HERE)):
                return i
        return len(path or ())

    def _is_own(self, path: CallPath) -> bool:
        return self._num_own(path) == len(path or ())

    def names(self, jaxpr: Any, paths: Sequence[CallPath] | None = None) -> Names:
        """All names, those in bodies too. `paths` are given for the jaxpr of the method
        itself.
        """
        if id(jaxpr) in self._names:
            return self._names[id(jaxpr)]
        equations: dict[str, None] = {}
        functions: dict[str, None] = {}
        hidden: dict[str, str] = {}
        for eqn, path in zip(jaxpr.eqns, paths or self._paths(jaxpr), strict=True):
            if eqn.primitive is returned_p:
                functions[eqn.params["name"]] = None
                continue
            own = self._functions(path)[: self._num_own(path)]
            functions |= dict.fromkeys(name for name in own if name)
            if not self._is_own(path):
                continue
            equations |= dict.fromkeys(_equation_names(eqn))
            for body in _compat.sub_jaxprs(eqn.params):
                inside = self.names(body)
                if sees_into(eqn):
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
        paths: Sequence[CallPath] | None,
        wanted: Mapping[str, str | None],
        counts: dict[str, int],
    ) -> Named:
        """Where the `wanted` names are, each with that of the equations that it means,
        or `None` for a Python function. `counts` is how often each was met before; it
        goes on counting.
        """
        paths = self._paths(jaxpr) if paths is None else paths
        ranges: list[tuple[str, int, int, int]] = []
        for name, equation in wanted.items():
            if equation is None:
                places = self._calls(jaxpr, paths, name)
            else:
                places = self._equations(jaxpr, paths, equation)
            ranges += [(name, *place) for place in places]
        found: dict[int, list[Found]] = {}
        bodies: dict[int, list[Named]] = {}
        for i, (eqn, path) in enumerate(zip(jaxpr.eqns, paths, strict=True)):
            taken = {name for name, first, last, _ in ranges if first <= i <= last}
            inside = {n: w for n, w in wanted.items() if n not in taken}
            if sees_into(eqn) and self._is_own(path):
                levels = self._bodies(eqn, inside, counts)
                if any(x.found or x.bodies for x in levels):
                    bodies[i] = levels
            # What is inside of another ends first.
            ending = sorted(
                (r for r in ranges if r[2] == i), key=lambda r: (-r[1], -r[3])
            )
            for name, first, last, _ in ending:
                index = counts[name] = counts.get(name, -1) + 1
                variables = _leaving(jaxpr, first, last)
                place = _written((path or ())[: self._num_own(path)])
                new = Found(name, index, first, last, variables, place)
                found.setdefault(i, []).append(new)
        return Named(jaxpr, found, bodies)

    def _bodies(
        self, eqn: Any, wanted: Mapping[str, str | None], counts: dict[str, int]
    ) -> list[Named]:
        levels = []
        rule = rule_of(eqn.primitive)
        exclusive = rule is not None and rule.exclusive
        before, after = dict(counts), dict(counts)
        for body in _compat.sub_jaxprs(eqn.params):
            names = self.names(body)
            here = {n: e for n, e in wanted.items() if names.has(n, e)}
            # Of the branches of a `cond` one runs: each counts from the same number.
            mine = dict(before) if exclusive else after
            levels.append(self.level(body, None, here, mine))
            after |= {n: max(k, after.get(n, k)) for n, k in mine.items()}
        counts |= after
        return levels

    def places(
        self, jaxpr: Any, paths: Sequence[CallPath] | None = None
    ) -> dict[str, str]:
        """All names that a reader of the model's code knows, and where each is first
        written: of an operation, and of a function that is called.
        """
        found: dict[str, str] = {}
        for eqn, path in zip(jaxpr.eqns, paths or self._paths(jaxpr), strict=True):
            if eqn.primitive is returned_p:
                continue
            own = (path or ())[: self._num_own(path)]
            for i, name in self._visible_functions(own):
                found.setdefault(name, _written(own[:i] or own[i : i + 1]))
            if not self._is_own(path):
                continue
            for name in _equation_names(eqn):
                if not name.startswith("peex_"):
                    found.setdefault(name, _written(own))
            for body in _compat.sub_jaxprs(eqn.params) if sees_into(eqn) else ():
                found |= self.places(body) | found
        return found

    def _visible_functions(self, path: CallPath) -> list[tuple[int, str]]:
        """The functions on a path that a reader of the model's code knows, by where
        they are on it.
        """
        codes = [code for code, _ in path or ()]
        names = enumerate(self._functions(path))
        return [(i, name) for i, name in names if name and _is_visible(codes[: i + 1])]

    def is_visible_call(self, frame: types.FrameType) -> bool:
        """Whether it is that of such a function."""
        return _is_visible(_codes_above(frame))

    def _equations(
        self, jaxpr: Any, paths: Sequence[CallPath], name: str
    ) -> list[tuple[int, int, int]]:
        """The equations of this name: first, last, and how deep they are in calls."""
        return [
            (i, i, len(path or ()))
            for i, (eqn, path) in enumerate(zip(jaxpr.eqns, paths, strict=True))
            if name in _equation_names(eqn) and self._is_own(path)
        ]

    def _calls(
        self, jaxpr: Any, paths: Sequence[CallPath], name: str
    ) -> list[tuple[int, int, int]]:
        """The calls of a Python function of this name, as `_equations`: from the mark
        where it begins to the one where it returns.
        """
        del paths
        calls: list[tuple[int, int, int]] = []
        begun: list[int] = []
        for i, eqn in enumerate(jaxpr.eqns):
            if eqn.primitive is not returned_p or eqn.params["name"] != name:
                continue
            if eqn.params["begins"]:
                begun.append(i)
            elif begun:
                calls.append((begun.pop(), i, len(begun)))
        # What returns what it was given has no value.
        return [call for call in calls if _leaving(jaxpr, *call[:2])]

    def is_own_call(self, around: types.CodeType, frame: types.FrameType) -> bool:
        """Whether a function that is called is one of this module's: above the frame of
        `around` there is its own method first, and nothing of a part.
        """
        code = frame.f_code
        if code in self._parts or code.co_filename.startswith(_HERE):
            return False
        codes = []
        above: Any = frame.f_back
        while above is not None and above.f_code is not around:
            codes.append(above.f_code)
            above = above.f_back
        if above is None or not codes:
            return False
        places: CallPath = tuple((code, 0) for code in reversed(codes))
        return self._is_own(self.own_path(places))


def _is_visible(codes: Sequence[types.CodeType]) -> bool:
    """Whether a reader of the model's code knows the last of functions that called each
    other: one of the model, or one of JAX that it calls.
    """
    *above, code = codes
    if _compat.is_of_library(code):
        return False
    if not _compat.is_of_jax(code):
        return not code.co_name.startswith(("<", "__"))
    if code.co_name.startswith("_") or "." in code.co_qualname:
        return False
    # Behind the wrappers of JAX, as that of `jax.jit`.
    wrappers = lambda c: _compat.is_of_jax(c) and "<locals>" in c.co_qualname
    callers = (c for c in reversed(above) if not wrappers(c))
    caller = next(callers, None)
    return caller is None or _compat.is_of_model(caller.co_filename)


def _codes_above(frame: types.FrameType) -> list[types.CodeType]:
    """Those of a frame and of what called it, as far as it matters to `_is_visible`."""
    codes = [frame.f_code]
    above = frame.f_back
    while above is not None:
        codes.append(above.f_code)
        if not _compat.is_of_jax(above.f_code):
            break
        above = above.f_back
    return codes[::-1]


def _written(path: CallPath) -> str:
    """The place in the model's code from which the last call of a path is made."""
    for frame in reversed(path or ()):
        file = frame[0].co_filename
        if _compat.is_of_model(file) and not file.startswith(_HERE):
            return _compat.shown_place(file, _compat.line_of(frame))
    return "?"


def _equation_names(eqn: Any) -> list[str]:
    if eqn.primitive is returned_p:
        return []
    primitive, name = eqn.primitive.name, eqn.params.get("name")
    if primitive == "name":  # a mark
        return [name]
    names = [primitive, name] if isinstance(name, str) else [primitive]
    rule = rule_of(eqn.primitive)
    if rule is not None and rule.own_derivative:
        (body,) = rule.bodies(eqn.params, eqn.invars)
        jaxpr, _ = _compat.open_jaxpr(body.jaxpr)
        names.append(jaxpr.debug_info.func_name)
    return names


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [v for v in atoms if not _compat.is_literal(v)]


def _leaving(jaxpr: Any, first: int, last: int) -> tuple[Any, ...]:
    """What these equations hand on: those of one call, or one equation."""
    eqn = jaxpr.eqns[last]
    if eqn.primitive is not returned_p:
        return tuple(eqn.outvars)
    made = {v for eqn in jaxpr.eqns[first:last] for v in eqn.outvars}
    returned = dict.fromkeys(_variables(eqn.invars))
    return tuple(v for v in returned if v in made)
