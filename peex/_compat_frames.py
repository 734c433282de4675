"""Where the equations of a jaxpr come from: what JAX keeps of the Python stack. As
`_compat.py`: it may change with JAX.
"""

import types
from typing import Any

import jax

from ._compat import current_traceback


# A function on the Python stack, and the place in its bytecode that is being run.
Frame = tuple[types.CodeType, int]


def frames_of(eqn: Any) -> list[Frame]:
    """The Python stack when an equation was made, innermost first."""
    return _frames(eqn.source_info.traceback)


def current_frames() -> list[Frame]:
    """The stack that an equation would be given now."""
    return _frames(current_traceback())


def _frames(traceback: Any) -> list[Frame]:
    # `frames()` is documented no better, and has neither code nor place.
    return [] if traceback is None else list(zip(*traceback.raw_frames(), strict=True))


def is_of_jax(code: types.CodeType) -> bool:
    """Whether a function is part of JAX."""
    return code.co_filename.startswith(_JAX)


_JAX = jax.__file__.removesuffix("__init__.py")


def function_of(jaxpr: Any) -> tuple[str, int] | None:
    """The file and first line of the function that a jaxpr was traced from."""
    info = jaxpr.debug_info
    if info.func_filename is None or info.func_lineno is None:
        return None
    return info.func_filename, info.func_lineno
