"""What Python functions return while a forward pass is traced.

A profiler sees each call of a function of a wanted name, and writes into the program
where it begins and what it returns. So calls are told apart however they are made, and
several values are in the order in which the function returns them.
"""

import contextlib
import fnmatch
import sys
import types
from collections.abc import Callable, Collection, Iterator
from typing import Any

import jax.tree_util as jtu
from jax.core import Tracer

from .. import _compat
from .._engine.active_calls import this_thread
from .._engine.values import is_unsorted
from .._sites.chosen import is_wild


class _Marking(_compat.Primitive):
    """Marks a place in a traced program. Anywhere else it is nothing."""

    multiple_results = True

    def bind_with_trace(self, trace: Any, args: Any, avals: Any, params: Any, /) -> Any:
        if not this_thread.marks:
            return []
        return super().bind_with_trace(trace, args, avals, params)


def _batch(axis: Any, args: Any, dims: Any, **params: Any) -> tuple[list[Any], Any]:
    return returned_p.bind(*args, **params), []


def _jvp(primals: Any, tangents: Any, **params: Any) -> tuple[list[Any], list[Any]]:
    return returned_p.bind(*primals, **params), []


# The results of a call are its operands; `begins` says that a call begins there.
returned_p: Any = _Marking("peex_returned")
returned_p.def_impl(lambda *args, **params: [])
_compat.keep_unused(returned_p, lambda *avals, **params: [])
_compat.batchers[returned_p] = _batch
_compat.primitive_jvps[returned_p] = _jvp
_compat.linearize_to_nothing(returned_p)
_compat.register_lowering(returned_p, lambda ctx, *args, **params: [])


@contextlib.contextmanager
def listening(
    names: Collection[str],
    is_own: Callable[[types.FrameType], bool],
    is_visible: Callable[[types.FrameType], bool],
) -> Iterator[None]:
    """Marks the calls of functions of these names inside, if their frame `is_own`. Of
    patterns among the names, if it `is_visible` too.
    """
    exact = frozenset(name for name in names if not is_wild(name))
    patterns = [name for name in names if is_wild(name)]
    # What is begun: the frame itself, so that each return finds its own.
    begun: list[types.FrameType] = []

    def profile(frame: types.FrameType, event: str, value: Any) -> None:
        name = frame.f_code.co_name
        if event == "call":
            wanted = name in exact or (
                any(fnmatch.fnmatchcase(name, p) for p in patterns)
                and is_visible(frame)
            )
            if wanted and is_own(frame):
                begun.append(frame)
                returned_p.bind(name=name, begins=True)
        elif event == "return" and begun and begun[-1] is frame:
            begun.pop()
            leaves = jtu.tree_leaves(value, is_leaf=is_unsorted)
            arrays = [x for x in leaves if isinstance(x, Tracer)]
            returned_p.bind(*arrays, name=name, begins=False)

    with _profiled(profile):
        yield


def not_listening() -> contextlib.AbstractContextManager[None]:
    """The marks of a program that runs inside are nothing."""
    return _profiled(None)


@contextlib.contextmanager
def _profiled(profile: Callable[..., None] | None) -> Iterator[None]:
    before, was_on = sys.getprofile(), this_thread.marks
    this_thread.marks = profile is not None
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)
        this_thread.marks = was_on
