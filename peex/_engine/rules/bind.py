"""Binding primitives again as they were, with other bodies."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from ... import _compat


def bind_checkpoint(fun: Callable[..., Any], params: dict[str, Any], *args: Any) -> Any:
    """Runs `fun` as the body of a `checkpoint` primitive with these parameters."""
    leaves, treedef = jax.tree.flatten(args)
    flat = lambda *leaves: fun(*treedef.unflatten(leaves))
    made, shapes = jax.make_jaxpr(flat, return_shape=True)(*leaves)
    body, consts = _compat.open_jaxpr(made)
    if consts:
        # The body of this primitive has none: they become arguments.
        jaxpr = body
        run = lambda consts, leaves: _compat.eval_jaxpr(jaxpr, consts, *leaves)
        body, _ = _compat.open_jaxpr(jax.make_jaxpr(run)(list(consts), leaves))
        leaves = [*consts, *leaves]
    outs = _compat.remat_p.bind(*leaves, **{**params, "jaxpr": body})
    return jax.tree.structure(shapes).unflatten(outs)


def bind_cond(
    params: dict[str, Any], index: Any, branches: Sequence[Callable], *args: Any
) -> Any:
    """Runs a `cond` primitive with other branches (`jax.lax.switch` would clamp the
    index once more).
    """
    leaves, treedef = jax.tree.flatten(args)
    made = []
    for branch in branches:
        run = lambda *leaves, branch=branch: branch(*treedef.unflatten(leaves))
        made.append(jax.make_jaxpr(run, return_shape=True)(*leaves))
    jaxprs, shapes = zip(*made, strict=True)
    params = {**params, "branches": jaxprs}
    outs = _compat.cond_p.bind(index, *leaves, **params)
    return jax.tree.structure(shapes[0]).unflatten(outs)
