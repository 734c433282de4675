"""JAX's high-level primitives: objects that hold functions, in place of jaxprs among
their parameters. From JAX 0.12 on `custom_root` is one.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from .._caches import weak_cache


class Root(NamedTuple):
    """The parts of a `custom_root`, as jaxprs; the arguments of each are listed.

    - `solve` (constants, guess): the root, and what the solver returns besides.
    - `f` (constants, x): the residual.
    - `tangent_solve` (constants, root, y): the solution of the linear system.
    """

    solve: Any
    f: Any
    tangent_solve: Any


class LinearMap(NamedTuple):
    """The linearized function that the tangent solver of a `custom_root` is given, as a
    jaxpr.
    """

    apply: Any


_known = weak_cache()


def parts_of(params: dict[str, Any]) -> Root | LinearMap | None:
    """The parts of the high-level primitive with these parameters, if it is one that
    may hold sites.
    """
    primitive: Any = params.get("_prim")
    make = _makers.get(type(primitive).__name__)
    if make is None:
        return None
    if primitive not in _known:
        _known[primitive] = make(primitive)
    return _known[primitive]


def _make_root(primitive: Any) -> Root:
    solve_consts, guess, f_consts, tangent_consts = primitive.in_avals
    root = _root(primitive)
    return Root(
        jax.make_jaxpr(primitive.solve)(solve_consts, guess),
        jax.make_jaxpr(primitive.f)(f_consts, root),
        jax.make_jaxpr(primitive.tangent_solve)(tangent_consts, root, root),
    )


def _make_linear_map(primitive: Any) -> LinearMap:
    return LinearMap(jax.make_jaxpr(primitive.expand)(*primitive.in_avals))


_makers: dict[str, Callable[[Any], Root | LinearMap]] = {
    "CustomRoot": _make_root,
    "_RootLinearMap": _make_linear_map,
}


def _root(primitive: Any) -> Any:
    return primitive.out_aval[0] if primitive.has_aux else primitive.out_aval


def bind_root(
    params: dict[str, Any],
    args: Sequence[Any],
    more: Any,
    run: Callable[[int, list[Any], Any], tuple[list[Any], Any]],
) -> tuple[list[Any], Any]:
    """Binds a `custom_root` as the primitive with these parameters and arguments, its
    parts run by other means.

    **Arguments:**

    - `more`: any pytree of arrays that the parts need besides.
    - `run`: is given the number of a part (as `Root` has them), its flat arguments, and
        `more`. It returns the flat results, and anything else.

    **Returns:**

    The results, and what `run` returned besides for `solve`.
    """
    primitive = params["_prim"]
    num = len(jax.tree.leaves(_root(primitive)))
    solve_consts, guess, f_consts, tangent_consts = (
        jax.tree.leaves(part) for part in jax.tree.unflatten(primitive.in_tree, args)
    )

    def solve(consts: Any, guess: list[Any]) -> Any:
        outs, others = run(0, [*consts[0], *guess], consts[1])
        return outs[:num], (outs[num:], others)

    def f(consts: Any, x: list[Any]) -> list[Any]:
        return run(1, [*consts[0], *x], consts[1])[0]

    def tangent_solve(consts: Any, x: list[Any], y: list[Any]) -> list[Any]:
        return run(2, [*consts[0], *x, *y], consts[1])[0]

    new = (solve_consts, more), guess, (f_consts, more), (tangent_consts, more)
    avals = jax.tree.map(jax.typeof, new)
    traced = jax.jit(solve).trace(*avals[:2])
    root: Any = type(primitive)(f, solve, tangent_solve, traced, avals, True)
    x, (aux, others) = root(*new)
    return [*x, *aux], others
