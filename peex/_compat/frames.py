"""Where the equations of a jaxpr come from: what JAX keeps of the Python stack. As
`_compat/jax.py`: it may change with JAX.
"""

import inspect
import sys
import sysconfig
import types
from typing import Any, no_type_check

import equinox as eqx
import jax
import jax.tree_util as jtu
import jaxtyping
import numpy as np

from .jax import current_traceback


# A function on the Python stack, and the place in its bytecode that is being run.
Frame = tuple[types.CodeType, int]


def frames_of(eqn: Any) -> list[Frame]:
    """The Python stack when an equation was made, innermost first."""
    return _frames(eqn.source_info.traceback)


def line_of(frame: Frame) -> int:
    """The line of a place in a function."""
    code, place = frame
    lines = (line for start, end, line in code.co_lines() if start <= place < end)
    return next(lines, None) or code.co_firstlineno


def shown_place(file: str, line: int) -> str:
    """A place in the source, the file seen from where modules are imported."""
    roots = [f"{root}/" for root in sys.path if root]
    inside = [root for root in roots if file.startswith(root)]
    return f"{file.removeprefix(max(inside, key=len, default=''))}:{line}"


def current_frames() -> list[Frame]:
    """The stack that an equation would be given now."""
    return _frames(current_traceback())


def _frames(traceback: Any) -> list[Frame]:
    # `frames()` is documented no better, and has neither code nor place.
    return [] if traceback is None else list(zip(*traceback.raw_frames(), strict=True))


def is_of_jax(code: types.CodeType) -> bool:
    """Whether a function is part of JAX."""
    return code.co_filename.startswith(_JAX)


def is_of_model(file: str) -> bool:
    """Whether a file isn't of JAX, nor of what JAX calls, or of what calls models."""
    return not (file.startswith(_JAX) or _is_of_library(file))


def is_of_library(code: types.CodeType) -> bool:
    """Whether a function is part of what JAX calls, or what calls models: of Python's
    library, NumPy, the type checkers, or what Equinox keeps private.
    """
    return _is_of_library(code.co_filename)


def _is_of_library(file: str) -> bool:
    if file.startswith(_STDLIB):
        return "site-packages" not in file and "dist-packages" not in file
    return file.startswith(_LIBRARIES) or "beartype" in file


_JAX = jax.__file__.removesuffix("__init__.py")
_LIBRARIES = (
    "<frozen ",
    np.__file__.removesuffix("__init__.py"),
    jaxtyping.__file__.removesuffix("__init__.py"),
    f"{eqx.__file__.removesuffix('__init__.py')}_",
    f"{eqx.__file__.removesuffix('__init__.py')}internal/",
)
_STDLIB = sysconfig.get_path("stdlib")


_MAPS = {inspect.unwrap(f).__code__ for f in (jtu.tree_map, jtu.tree_map_with_path)}
_EVAL_SHAPE = inspect.unwrap(jax.eval_shape).__code__


@no_type_check  # frames are counted
def mapping_frame(up: int) -> types.FrameType | None:
    """The frame of `jax.tree.map`, if it is this that called, by way of JAX's C++, what
    is `up` frames above this one.
    """
    frame: Any = sys._getframe(up)
    if frame.f_code.co_name == "<listcomp>":  # a frame of its own up to Python 3.11
        frame = frame.f_back
    return frame if frame.f_code in _MAPS else None


def is_abstract(until: types.FrameType | None) -> bool:
    """Whether a `jax.eval_shape` runs, which was called above this frame."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame is not until:
        if frame.f_code is _EVAL_SHAPE:
            return True
        frame = frame.f_back
    return False


def in_callback() -> bool:
    """Whether a function runs that a compiled program calls."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename in _CALLBACKS:
            return True
        frame = frame.f_back
    return False


_CALLBACKS = {
    inspect.unwrap(f).__code__.co_filename
    for f in (jax.pure_callback, jax.debug.callback)
}


def function_of(jaxpr: Any) -> tuple[str, int] | None:
    """The file and first line of the function that a jaxpr was traced from."""
    info = jaxpr.debug_info
    if info.func_filename is None or info.func_lineno is None:
        return None
    return info.func_filename, info.func_lineno
