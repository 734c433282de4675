"""Programs that nobody listens to: derivatives of functions that are heard before."""

from collections.abc import Callable
from typing import Any

import jax

from .. import _compat
from .primitives import may_be_lost
from .reading import of_jaxpr, QUIET, refuse_asks


def quietly(fn: Callable[..., Any], *args: Any) -> Any:
    """Runs a function whose sites say nothing. Their hooks act. It runs in a `jit` of a
    name that tells collectors not to look inside, whatever becomes of the program.

    **Raises:** `SiteLostError` if a hook asks for something there.
    """
    jaxpr, shapes = jax.make_jaxpr(fn, return_shape=True)(*args)
    for site in of_jaxpr(jaxpr).sites:
        refuse_asks(site)
        may_be_lost(site)
    opened, consts = _compat.open_jaxpr(jaxpr)

    def run(consts: Any, leaves: Any) -> list[Any]:
        return _compat.eval_jaxpr(opened, consts, *leaves)

    run.__name__ = run.__qualname__ = QUIET
    outs = jax.jit(run)(list(consts), jax.tree.leaves(args))
    return jax.tree.unflatten(jax.tree.structure(shapes), outs)
