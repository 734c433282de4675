"""Loops, each of which a step axis is of."""

import dataclasses
import pathlib
from typing import Any

from .. import _compat


_HERE = f"{pathlib.Path(__file__).parents[1]}/"


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop of a program.

    - `where`: where it is in the model's source: file and line of its function.
    - `place`: where it is in the loop around it (or in the whole program): of each
        jaxpr on the way, which equation.
    - `reverse`: whether it runs from its last step to its first.
    """

    where: str
    place: tuple[int, ...] = ()
    reverse: bool = False


def loop_of(body: Any, name: str, reverse: bool = False) -> Loop:
    """The loop with this body, of a primitive of this name."""
    return Loop(_where(body) or name, reverse=reverse)


def _where(body: Any) -> str | None:
    jaxpr, _ = _compat.open_jaxpr(body)
    function = _compat.function_of(jaxpr)
    if function is None:
        return None
    file, line = function
    if file.startswith(_HERE):
        return jaxpr.debug_info.func_name  # see `named`
    if _is_of_model(file):
        return _compat.shown_place(file, line)
    # A function of a library's, as that of `jax.lax.map`: the model's that it calls.
    for eqn in jaxpr.eqns:
        called = None
        for code, _ in _compat.frames_of(eqn):
            if (code.co_filename, code.co_firstlineno) == function:
                break
            if _is_of_model(code.co_filename):
                called = code
        if called is not None:
            return _compat.shown_place(called.co_filename, called.co_firstlineno)
    return None


def _is_of_model(file: str) -> bool:
    return _compat.is_of_model(file) and not file.startswith(_HERE)


def named(fn: Any, loop: Loop) -> Any:
    """A function that is the body of a loop, bound again: other wrappers around see
    where the loop is by its name.
    """
    fn.__name__ = loop.where
    return fn
