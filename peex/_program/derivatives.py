"""Which results of an equation have a derivative by which operand, as JAX's own `vjp`
of that one equation says. So there is no table of what `floor`, `stop_gradient` or a
`custom_vjp` do.
"""

from collections.abc import Sequence
from typing import Any

import jax

from .. import _compat
from .._caches import weak_cache
from .edges import Derivatives, is_inexact
from .flow import find_flow
from .spread import spread


# By primitive, what was found for parameters and avals.
_known = weak_cache()


class Asked:
    """Asks JAX, of each kind of equation once."""

    def __init__(self) -> None:
        self._by_equation: dict[Any, tuple[Any, Derivatives]] = {}

    def __call__(self, eqn: Any, some: tuple[bool, ...]) -> Derivatives:
        """Of one equation. Where asking is dear, only of `some` of the operands: those
        that have a derivative themselves.
        """
        ins = [i for i, v in enumerate(eqn.invars) if is_inexact(v)]
        outs = [j for j, v in enumerate(eqn.outvars) if is_inexact(v)]
        none = [[False] * len(eqn.outvars) for _ in eqn.invars]
        if not ins or not outs:
            return none
        key = _key(eqn)
        if key is not None:
            known = _known.setdefault(eqn.primitive, {})
            if key not in known:
                known[key] = _ask(eqn, ins, outs, none)
            return known[key]
        # What holds programs or functions is remembered as long as it is walked: these
        # may hold a model.
        key = id(eqn), some
        if key not in self._by_equation:
            ins = [i for i in ins if some[i]]
            self._by_equation[key] = eqn, _ask(eqn, ins, outs, none)
        return self._by_equation[key][1]


def _key(eqn: Any) -> Any:
    if _compat.sub_jaxprs(eqn.params) or any(map(callable, eqn.params.values())):
        return None
    first: dict[Any, int] = {}
    operands = tuple(
        (v.aval, None if _compat.is_literal(v) else first.setdefault(v, i))
        for i, v in enumerate(eqn.invars)
    )
    key = tuple(sorted(eqn.params.items(), key=lambda item: item[0])), operands
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _ask(
    eqn: Any, ins: Sequence[int], outs: Sequence[int], none: list[list[bool]]
) -> Derivatives:
    operands = (eqn.invars[i] for i in ins)
    wanted = list(dict.fromkeys(v for v in operands if not _compat.is_literal(v)))
    every = sum(1 << j for j in outs)
    try:
        masks = _masks(eqn, wanted, outs) if wanted else {}
    except Exception:  # whatever a rule raises for an operand that it isn't for
        masks = {v: _mask(eqn, v, outs, every) for v in wanted}
    of_operand = [0 if _compat.is_literal(v) else masks.get(v, 0) for v in eqn.invars]
    return [[bool(m >> j & 1) for j, _ in enumerate(none[0])] for m in of_operand]


def _mask(eqn: Any, variable: Any, outs: Sequence[int], every: int) -> int:
    """Of one operand alone."""
    try:
        return _masks(eqn, [variable], outs)[variable]
    except (NameError, TypeError):
        # It runs over an axis of a mesh, and can't be asked of alone.
        return every
    except Exception:  # as JAX and others say that there is none: of a callback
        return 0


def _masks(eqn: Any, wanted: Sequence[Any], outs: Sequence[int]) -> dict[Any, int]:
    """For each of these operands the bits of the results with a derivative by it."""
    operands = dict.fromkeys(v for v in eqn.invars if not _compat.is_literal(v))
    variables, results = list(operands), [eqn.outvars[j] for j in outs]
    jaxpr = _compat.jaxpr_of([eqn], variables, results)

    def grads(args: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        by_variable = dict(zip(variables, args, strict=True))

        def run(*some: Any) -> Any:
            given = by_variable | dict(zip(wanted, some, strict=True))
            return _compat.eval_jaxpr(jaxpr, (), *(given[v] for v in variables))

        _, vjp = jax.vjp(run, *(by_variable[v] for v in wanted))
        return vjp(list(cotangents))

    shapes = lambda some: [
        jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in some
    ]
    program = jax.make_jaxpr(grads)(shapes(variables), shapes(results))
    flow = find_flow(program, 0)
    made = flow.inputs[len(variables) :]
    sources = {node: 1 << j for node, j in zip(made, outs, strict=True)}
    found = spread(flow.size, flow.edges, sources, lambda edge: True)
    return {
        v: 0 if node is None else found[node]
        for v, node in zip(wanted, flow.outputs, strict=True)
    }
