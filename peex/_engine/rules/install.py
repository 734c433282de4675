"""The rules that are put in the place of JAX's own."""

import threading
from typing import Any

from ... import _compat
from ..active_calls import next_depth
from ..reading import of_jaxpr
from .batching import logs_before_tangents, logs_out_first


_install_lock = threading.Lock()
_installed: list[Any] = []


def install() -> None:
    """Puts these rules in place, at the first hooked call (so that importing peex
    changes nothing). They leave programs without sites alone.
    """
    with _install_lock:
        if _installed:
            return
        for primitive in (_compat.cond_p, _compat.while_p):
            _compat.batchers[primitive] = logs_out_first(primitive)
        solve = _compat.linear_solve_p
        _compat.primitive_jvps[solve] = logs_before_tangents(solve)
        _compat.inline_noinline(lambda: next_depth() > 0, lambda j: bool(of_jaxpr(j)))
        _installed.append(True)
