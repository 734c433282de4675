"""The loops of a program that run over parameters: those of stacked layers."""

from collections.abc import Iterator, Sequence
from typing import Any

from jax import lax

from .. import _compat
from .._engine.loops import Loop, loop_of
from .._engine.rule import rule_of
from .edges import is_inexact


# The loops around a place in a program, outermost first.
Loops = tuple[Loop, ...]
# What a value is made of: of constants alone, of these and parameters, or of more.
_CONSTANT, _PARAMETERS, _MORE = 0, 1, 2


class Scans:
    """The scans of a program, each with the loops around it, as the axes of what is
    logged in it have them; and whether it takes one layer after the other.
    """

    def __init__(self, jaxpr: Any, num_parameters: int):
        """`num_parameters` is how many of the first inputs are parameters."""
        opened, _ = _compat.open_jaxpr(jaxpr)
        more = len(opened.invars) - num_parameters
        given = [_PARAMETERS] * num_parameters + [_MORE] * more
        self._found: dict[Loops, bool] = {}
        _level(opened, given, (), self._found)

    def takes_layers(self, loops: Loops) -> bool:
        """Whether what the innermost of these loops runs over are parameters, and
        nothing else with a derivative.
        """
        if loops in self._found:
            return self._found[loops]
        # A branch that JAX has batched has moved: then it is known by its source alone.
        written = lambda loops: [loop.where for loop in loops]
        known = (v for k, v in self._found.items() if written(k) == written(loops))
        return any(known)


def _level(
    jaxpr: Any, given: Sequence[int], path: Any, found: dict[Loops, bool]
) -> list[int]:
    """Walks a program; what its outputs are made of. `path` are the equations and the
    loops on the way to it.
    """
    jaxpr, _ = _compat.open_jaxpr(jaxpr)
    env = dict(zip(jaxpr.invars, given, strict=True))
    read = lambda v: _CONSTANT if _compat.is_literal(v) else env.get(v, _CONSTANT)
    for place, eqn in enumerate(jaxpr.eqns):
        operands = [read(v) for v in eqn.invars]
        # What is chosen of parameters is made of them, whatever chooses: where JAX has
        # batched a branch, it does so with all that the branch is given.
        chosen_of = operands[1:] if eqn.primitive is lax.select_n_p else operands
        outs = [max(chosen_of, default=_CONSTANT)] * len(eqn.outvars)
        rule = rule_of(eqn.primitive)
        bodies = rule.bodies(eqn.params, eqn.invars) if rule is not None else []
        is_scan = eqn.primitive is _compat.scan_p
        for number, body in enumerate(bodies):
            args = [operands[i] for i in body.operands]
            for _, i in body.carried:
                args[i] = _MORE  # by the iteration before
            here = (*path, place)
            if rule is not None and len(bodies) > 1:
                here = (*here, number)
            if is_scan:
                here = (*here, loop_of(body.jaxpr, "scan"))
                found[tuple(_loops(here))] = _takes_layers(eqn, operands)
            results = _level(body.jaxpr, args, here, found)
            if len(bodies) == 1 and not body.carried:
                outs = [*results, *outs[len(results) :]]
        env.update(zip(eqn.outvars, outs, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _takes_layers(eqn: Any, operands: Sequence[int]) -> bool:
    """Whether what a scan runs over are parameters."""
    num_consts, num_carry = _compat.scan_layout(eqn.params)
    start = num_consts + num_carry
    over = [
        made_of
        for made_of, v in zip(operands[start:], eqn.invars[start:], strict=True)
        if is_inexact(v)
    ]
    return _PARAMETERS in over and _MORE not in over


def _loops(path: Sequence[Any]) -> Iterator[Loop]:
    """The loops on a path, each with its place in the one around it."""
    place: list[int] = []
    for part in path:
        if isinstance(part, Loop):
            yield Loop(part.where, tuple(place))
            place = []
        else:
            place.append(part)
