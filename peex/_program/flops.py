"""What a program costs, and which of its arguments it reads, by walking its jaxpr.

FLOPs are counted from the shapes of its operations:

- A matrix product (`dot_general`) of `(..., M, K)` with `(..., K, N)`: `2 * M * N * K`
    for each batch index: one multiplication and one addition for each term, as XLA's
    own analysis counts them, and Hoffmann et al. (https://arxiv.org/abs/2203.15556,
    appendix F).
- A convolution: `2 * K` for each element of its output, where `K` is the number of
    elements of the kernel that go into one (its window times its input channels).
- A reduction or a cumulative sum: 1 for each element that it reads.
- Whatever only moves, makes or casts data: 0.
- Any other operation: 1 for each element of its output, as an exponential, a sum, a
    comparison. None of these count where no floating point (or complex) array is read
    or returned.
- A `scan`: its body times its length. A `shard_map`: its body times its devices. A
    `cond`: the most expensive branch. A `while`: one iteration, as their number isn't
    known. A `custom_linear_solve`, a `custom_root`: its solver.

What isn't counted (sorting, linear algebra, kernels and callbacks) is named instead.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from .. import _compat
from .._engine.primitives import ask_p, mark_p, tap_p
from .._engine.rule import Body, rule_of
from .._engine.site import Site


def _names(lines: str) -> frozenset[str]:
    return frozenset(lines.split())


_FREE = _names("""
    all_gather all_gather_invariant all_to_all axis_index bitcast_convert_type
    broadcast_in_dim complex concatenate convert_element_type copy device_put
    dynamic_slice dynamic_update_slice empty empty2 from_edtype gather imag iota
    optimization_barrier pad pbroadcast pcast ppermute pvary random_bits
    random_fold_in random_seed random_split random_unwrap random_wrap real
    reduce_precision reshape rev rng_bit_generator scatter sharding_constraint slice
    split squeeze stack tile to_edtype transpose unstack
""")
_REDUCTIONS = _names("""
    argmax argmin cumlogsumexp cummax cummin cumprod cumsum pmax pmin psum
    psum_invariant reduce reduce_max reduce_min reduce_prod reduce_scatter reduce_sum
""")
_WINDOWS = _names("""
    reduce_window reduce_window_max reduce_window_min reduce_window_sum
""")
_SCATTERS = _names("scatter-add scatter-max scatter-min scatter-mul scatter-sub")
_UNCOUNTED = _names("""
    approx_top_k call_hi_primitive cholesky cholesky_update eig eigh ffi_call fft
    geqp3 geqrf hessenberg householder_product io_callback lu ormqr pallas_call
    pure_callback qr ragged_dot_general schur select_and_gather_add
    select_and_scatter select_and_scatter_add sort svd symmetric_product top_k
    triangular_solve tridiagonal tridiagonal_solve
""")


def bodies(eqn: Any) -> list[Body]:
    """The programs inside of an equation, if it is one of those that peex sees into."""
    rule = rule_of(eqn.primitive)
    return [] if rule is None else rule.bodies(eqn.params, eqn.invars)


@dataclasses.dataclass(frozen=True)
class Cost:
    """What is known of a program.

    - `flops`: of one run.
    - `uncounted`: the names of the operations in it whose FLOPs aren't counted.
    - `reads`: which of its arguments an operation uses, by position.
    - `in_rules`: which go into a function with a derivative rule of its own.
    - `sites`: the sites in it, also where they can't be brought out.
    """

    flops: int
    uncounted: frozenset[str]
    reads: frozenset[int]
    in_rules: frozenset[int]
    sites: tuple[Site, ...]


class Costs:
    """Finds the costs of programs, of each once."""

    def __init__(self) -> None:
        self._known: dict[Any, Cost] = {}

    def of_jaxpr(self, jaxpr: Any) -> Cost:
        jaxpr, _ = _compat.open_jaxpr(jaxpr)
        if jaxpr not in self._known:
            self._known[jaxpr] = self._walk(jaxpr)
        return self._known[jaxpr]

    def _walk(self, jaxpr: Any) -> Cost:
        position = {v: i for i, v in enumerate(jaxpr.invars)}
        where = lambda operands: {
            position[v] for v in operands if not _compat.is_literal(v) and v in position
        }
        flops = 0
        uncounted: set[str] = set()
        reads: set[int] = set()
        in_rules: set[int] = set()
        sites: list[Site] = []
        for eqn in jaxpr.eqns:
            if eqn.primitive is tap_p:
                # Hands on what it is given: to use its results is to use these.
                sites.append(eqn.params["info"].site)
                for out, operand in zip(eqn.outvars, eqn.invars, strict=False):
                    if not _compat.is_literal(operand) and operand in position:
                        position[out] = position[operand]
                continue
            if eqn.primitive in (ask_p, mark_p):
                continue
            found = self.of_equation(eqn)
            flops += found.flops
            uncounted |= found.uncounted
            reads |= where(eqn.invars[i] for i in found.reads)
            in_rules |= where(eqn.invars[i] for i in found.in_rules)
            sites.extend(found.sites)
        return Cost(
            flops,
            frozenset(uncounted),
            frozenset(reads),
            frozenset(in_rules),
            tuple(dict.fromkeys(sites)),
        )

    def of_equation(self, eqn: Any) -> Cost:
        """The cost of an equation; `reads` and `in_rules` are of its operands."""
        name = eqn.primitive.name
        every = frozenset(range(len(eqn.invars)))
        inside = bodies(eqn)
        if not inside:
            sub = [self.of_jaxpr(j) for j in _compat.sub_jaxprs(eqn.params)]
            # Reductions and scatters may have their operation as a jaxpr.
            counted = _FREE | _REDUCTIONS | _WINDOWS | _SCATTERS
            unknown = name in _UNCOUNTED or (bool(sub) and name not in counted)
            return Cost(
                0 if unknown else equation_flops(eqn),
                frozenset({name}) if unknown else frozenset(),
                every,
                frozenset(),
                tuple(site for cost in sub for site in cost.sites),
            )
        rule: Any = rule_of(eqn.primitive)
        costs = [self.of_jaxpr(body.jaxpr) for body in inside]
        pairs = zip(costs, inside, strict=True)
        each = [cost.flops * body.times_counted for cost, body in pairs]
        reads = _operands(inside, [c.reads for c in costs])
        in_rules = _operands(inside, [c.in_rules for c in costs])
        return Cost(
            max(each) if rule.exclusive else sum(each),
            frozenset().union(*(c.uncounted for c in costs)),
            # Of several bodies the first operand chooses one.
            reads | {0} if rule.exclusive else reads,
            every if rule.own_derivative else in_rules,
            tuple(site for cost in costs for site in cost.sites),
        )


def _operands(
    inside: Sequence[Body], positions: Sequence[frozenset[int]]
) -> frozenset[int]:
    """Positions among the arguments of the bodies as positions among the operands."""
    pairs = zip(inside, positions, strict=True)
    return frozenset(body.operands[i] for body, found in pairs for i in found)


def equation_flops(eqn: Any) -> int:
    """The FLOPs of one operation, by the formulas above."""
    name = eqn.primitive.name
    ins = [v.aval for v in eqn.invars if hasattr(v.aval, "shape")]
    outs = [v.aval for v in eqn.outvars if hasattr(v.aval, "shape")]
    if name in _FREE or not any(_is_inexact(a) for a in (*ins, *outs)):
        return 0
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        terms = math.prod(ins[0].shape[i] for i in contracted)
        return 2 * _size(outs[0]) * terms
    if name == "conv_general_dilated":
        kernel = ins[1].shape
        out_channels = kernel[eqn.params["dimension_numbers"].rhs_spec[0]]
        terms = math.prod(kernel) // out_channels if out_channels else 0
        return 2 * _size(outs[0]) * terms
    if name in _REDUCTIONS:
        return sum(_size(a) for a in ins if _is_inexact(a))
    if name in _WINDOWS:
        return _size(outs[0]) * math.prod(eqn.params["window_dimensions"])
    if name in _SCATTERS:
        return _size(ins[2])
    return sum(_size(a) for a in outs)


def _size(aval: Any) -> int:
    return math.prod(aval.shape)


def _is_inexact(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.inexact)
