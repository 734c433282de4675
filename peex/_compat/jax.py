"""Every use of a private or version-dependent API of JAX.

No other file may import from `jax._src` or ask for a version. Each entry says which
versions it is for, and `tests/compat` holds a canary for each, so that a new
release of JAX fails there first, with a name, instead of somewhere in the engine.

Checked against JAX 0.10.2 and 0.12.0.1. (What is about jaxprs is in
`_compat/jaxprs.py`, `_compat/frames.py` and `_compat/hijax.py`, about meshes in
`_compat/meshes.py`, and what is of Equinox in `_compat/equinox.py`.)
"""

import functools as ft
import importlib
import traceback
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core as jax_core
import jax.extend.core as jex_core
import jax.extend.linear_util as lu
import jax.interpreters.ad as ad
import jax.interpreters.batching as batching
import jax.interpreters.mlir as mlir
import jax.interpreters.partial_eval as pe
import jax.tree_util as jtu
from jax._src import effects, source_info_util
from jax._src.core import trace_ctx
from jax._src.interpreters.ad import (
    CustomVJPException as CustomVJPException,
    primitive_linearizations,
)
from jax._src.interpreters.batching import batch_subtrace
from jax._src.lax.lax import _convert_element_type
from jax.custom_derivatives import SymbolicZero

from .jaxprs import debug_info, is_literal


Trace = jax_core.Trace
ShapedArray = jax_core.ShapedArray
Primitive = jex_core.Primitive
set_current_trace = jex_core.set_current_trace
register_lowering = mlir.register_lowering
primitive_jvps = ad.primitive_jvps
add_tangents = ad.add_tangents
instantiate_zeros = ad.instantiate_zeros
is_undefined_primal = ad.is_undefined_primal
primitive_transposes = ad.primitive_transposes
# Called with the axis, the arguments and their batch dimensions, even when no argument
# is batched.
batchers = batching.fancy_primitive_batchers


def current_trace() -> Trace:
    """The trace that the next primitive will be bound on.

    `jax.extend.core.take_current_trace` gives it too, but unsets it meanwhile, at ten
    times the cost.
    """
    return trace_ctx.trace


# What JAX raises where Python looks at the value of an array that is traced.
VALUE_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def is_eval_trace(trace: Trace) -> bool:
    """Whether `trace` runs primitives at once, on concrete arrays."""
    return type(trace).__name__ == "EvalTrace"


def hands_on(trace: Trace) -> bool:
    """Whether `trace` runs a primitive by a rule, on the trace below it. (Others stage
    it, or run it.)
    """
    return type(trace).__name__ in _HANDING_ON


_BATCHING = {"BatchTrace", "CollectTrace"}  # the latter is peex's own
_HANDING_ON = _BATCHING | {"JVPTrace", "JaxprTrace", "JetTrace", "LinearizeTrace"}


class _Shared:
    """Stands for all traces that share what a jitted function keeps."""


_shared = _Shared()


def share_jit_cache(trace: Trace) -> None:
    """Makes jitted functions take this trace for the same as others of which this is
    said. Under each new trace a jitted function keeps a further entry for the same
    arguments (in 0.10 to 0.12: it compares what `_weakref` refers to), without anything
    in it: what is compiled is found by another cache, and it is called directly only
    where no trace is. All entries would be looked through at each call.
    """
    trace._weakref = weakref.ref(_shared)  # pyright: ignore[reportAttributeAccessIssue]


class PassingPrimitive(Primitive):
    """A primitive whose first results are its first operands, and the others constants.

    It learns its rule for `jax.experimental.jet` where it meets that, which is an
    import of its own.
    """

    def num_passed(self, params: dict[str, Any]) -> int:
        """How many of its operands it passes on."""
        return params.get("num_values", 0)

    def bind_with_trace(self, trace: Any, args: Any, avals: Any, params: Any, /) -> Any:
        if type(_below(trace, {"CollectTrace"})).__name__ == "JetTrace":
            jet = importlib.import_module("jax.experimental.jet")
            jet.jet_rules.setdefault(self, ft.partial(self._jet, jet.zero_series))
        return super().bind_with_trace(trace, args, avals, params)

    def _jet(self, zero: Any, primals: Any, series: Any, **params: Any) -> Any:
        outs = self.bind(*primals, **params)
        if not self.multiple_results:
            return outs, series[0]
        passed = list(series[: self.num_passed(params)])
        return outs, [*passed, *[zero] * (len(outs) - len(passed))]


def _parent(trace: Any) -> Any:
    return getattr(trace, "parent", None) or getattr(trace, "parent_trace", None)


def _below(trace: Any, kinds: set[str]) -> Any:
    """The first trace that isn't of these kinds."""
    while type(trace).__name__ in kinds:
        trace = _parent(trace)
    return trace


def _stages(trace: Any) -> bool:
    return type(trace).__name__ == "DynamicJaxprTrace"


def unbatched(trace: Trace) -> Any:
    """The first trace that doesn't only batch what is bound on it."""
    return _below(trace, _BATCHING)


def is_staging_trace(trace: Trace) -> bool:
    """Whether what is bound on `trace` is written into a jaxpr, batched or not, rather
    than differentiated at once.
    """
    return _stages(_below(trace, _BATCHING))


def is_compiled(trace: Any) -> bool:
    """Whether what is bound on `trace` ends up in a jaxpr, whatever happens to it on
    the way.
    """
    if is_eval_trace(trace):  # at every site of an eager call: quickly
        return False
    return _stages(_below(trace, _HANDING_ON))


def abandon(error: BaseException) -> None:
    """Lets go of the programs that JAX was staging when `error` ended that. Otherwise
    it keeps them, and their tracers, for good (in 0.10 to 0.12: a tracer of a constant
    has a finalizer, which holds the trace, whose equations hold the tracer).
    """
    live = []
    trace: Any = current_trace()
    while trace is not None:
        live.append(trace)
        trace = _parent(trace)
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in list(frame.f_locals.values()):
            if _stages(value) and not any(value is trace for trace in live):
                value.invalidate()
    traceback.clear_frames(error.__traceback__)
    error.__traceback__ = None


def is_zero(tangent: Any) -> bool:
    """Whether a tangent or cotangent is a symbolic zero."""
    return isinstance(tangent, ad.Zero)


def zero_tangent(x: Any) -> ad.Zero:
    """A symbolic zero tangent for `x` (`ad.Zero.from_primal_value` went in 0.12)."""
    return ad.Zero(jax.typeof(x).to_tangent_aval())


def linearize_as_sum(primitive: Primitive) -> None:
    """Gives a primitive with one result the rule that its tangent is the sum of those
    of its arguments. JAX would find that from its JVP, at four times the cost.
    """

    def rule(is_vjp: bool, nonzeros: Sequence[bool], *primals: Any) -> tuple[Any, ...]:
        del is_vjp
        nothing = (None,) * _num_residuals()
        return primitive.bind(*primals), any(nonzeros), *nothing, linearized

    def linearized(*args: Any) -> Any:
        return add_tangents(*args[_num_residuals() :])

    primitive_linearizations[primitive] = rule


def linearize_to_nothing(primitive: Primitive) -> None:
    """Gives a primitive without results its rule."""

    def rule(is_vjp: bool, nonzeros: Any, *primals: Any, **params: Any) -> Any:
        del is_vjp, nonzeros
        nothing = (None,) * _num_residuals()
        return primitive.bind(*primals, **params), [], *nothing, lambda *args: []

    primitive_linearizations[primitive] = rule


@ft.cache
def _num_residuals() -> int:
    """How many things a linearization rule saves: one, from 0.12 on two."""
    sin = primitive_linearizations[jax.lax.sin_p]
    return len(sin(True, [True], 0.0, accuracy=None)) - 3


class _IsHeard(effects.Effect):
    """That somebody hears of an equation, whatever becomes of its results."""

    def __repr__(self) -> str:
        return "IsHeard"


_is_heard = _IsHeard()
for _allowed in (
    effects.control_flow_allowed_effects,
    effects.custom_derivatives_allowed_effects,
    effects.lowerable_effects,
    effects.partial_eval_kept_effects,
    effects.remat_allowed_effects,
):
    _allowed.add_type(_IsHeard)


def keep_unused(primitive: Primitive, abstract: Callable[..., list[Any]]) -> None:
    """Gives a primitive its shape rule, and an effect: where JAX drops what isn't used,
    as in a derivative, it leaves equations with effects alone.
    """
    primitive.def_effectful_abstract_eval(
        lambda *avals, **params: (abstract(*avals, **params), {_is_heard})
    )


def on_recomputation(primitive: Primitive, again: Callable[[Any], Any]) -> None:
    """Says what an equation becomes where a `checkpoint` computes it once more for its
    derivative: `None` if its results are to be saved instead, as they are if the policy
    saves them. (The rule that JAX has for this, as in 0.10 to 0.12: which parts are
    known, and which are instantiated in the part that is staged for later.)
    """

    def rule(
        saveable: Any, unknown: Sequence[bool], instantiated: Sequence[bool], eqn: Any
    ) -> tuple[Any, Any, list[bool], list[bool], list[Any]]:
        yes, no = [True] * len(eqn.outvars), [False] * len(eqn.outvars)
        at_hand = dict(zip(map(id, eqn.invars), instantiated, strict=True))

        def residuals(eqn: Any) -> list[Any]:
            return [v for v in eqn.invars if not is_literal(v) and not at_hand[id(v)]]

        if any(unknown):
            return None, eqn, yes, yes, residuals(eqn)
        saved = saveable(primitive, *(v.aval for v in eqn.invars), **eqn.params)
        staged = again(eqn)
        if staged is None or saved is True or type(saved).__name__ == "SaveableType":
            return eqn, None, no, no, []
        return eqn, staged, no, yes, residuals(staged)

    pe.partial_eval_jaxpr_custom_rules[primitive] = rule


def batch_as_is(
    fn: Callable[..., Sequence[Any]], axis: Any, dims: Sequence[int | None], args: Any
) -> tuple[list[Any], list[int | None]]:
    """Runs `fn` under one more batch axis and returns its outputs with the dimensions
    that they happen to be batched along.

    `jax.vmap` can't say "batched if it comes out batched", and makes the axis anew;
    here the axis (its name, size and mesh) is the one of the batching rule that calls.
    """
    wrapped = lu.wrap_init(fn, debug_info=debug_info("peex"))
    wrapped, out_dims = batch_subtrace(wrapped, jex_core.TraceTag(), axis, tuple(dims))
    outs = wrapped.call_wrapped(*args)
    return list(outs), list(out_dims())


def jvp_as_is(
    fn: Callable[..., Sequence[Any]], primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Runs `fn` under a derivative, from a rule for it, where zeros are symbolic: they
    stay so.
    """
    some = [i for i, t in enumerate(tangents) if not is_zero(t)]

    def run(*changing: Any) -> list[Any]:
        args = list(primals)
        for i, x in zip(some, changing, strict=True):
            args[i] = x
        return list(fn(*args))

    return jax.jvp(run, [primals[i] for i in some], [tangents[i] for i in some])


def fresh(fun: lu.WrappedFun) -> lu.WrappedFun:
    """`fun`, ready to be called once more: its stores emptied."""
    for store in fun.stores:
        if store:
            store.reset()
    return fun


def holds_no_module(fun: lu.WrappedFun) -> bool:
    """Whether a function with rules of its own can't have come by a module: it closes
    over nothing, and is called with bare arrays (as `jax.nn.relu` is). `False` if that
    can't be told.
    """
    plain: Any = getattr(fun.f, "__wrapped__", fun.f)
    if not isinstance(plain, types.FunctionType):
        return False
    if plain.__closure__ or plain.__defaults__ or plain.__kwdefaults__:
        return False

    def is_bare(arg: Any) -> bool:
        if isinstance(arg, jtu.PyTreeDef):
            return arg == jtu.tree_structure((0,) * arg.num_leaves)
        return arg == () or isinstance(arg, jex_core.DebugInfo)

    return all(is_bare(arg) for _, args in fun.transforms for arg in args)


def keep_one(fun: lu.WrappedFun, rule: lu.WrappedFun) -> None:
    """Leaves the stores of `fun` or of its derivative rule filled, not both: JAX wants
    to know which of them ran.
    """
    try:
        for store in rule.stores:
            if store:
                store.val  # noqa: B018
    except lu.StoreException:
        fresh(rule)
    else:
        fresh(fun)


def call_bwd(bwd: lu.WrappedFun, res: Sequence[Any], cotangents: Any) -> list[Any]:
    """Calls the flat backward rule of a `custom_vjp`, `None` for its symbolic zeros.

    From 0.12 on it returns a pair, of cotangents and of JAX's own backward logs.
    """
    out = bwd.call_wrapped(*res, *cotangents)
    if isinstance(out, tuple) and len(out) == 2 and isinstance(out[0], list):
        out, _ = out
    return [None if isinstance(x, ad.Zero) or is_symbolic_zero(x) else x for x in out]


def as_weak_as(x: Any, shape: Any) -> Any:
    """An array with the type of a Python number, if another one of its dtype has that:
    then it doesn't promote what it meets.
    """
    if not shape.weak_type or jax.typeof(x).weak_type:
        return x
    return _convert_element_type(x, weak_type=True)


def is_symbolic_zero(x: object) -> bool:
    return isinstance(x, SymbolicZero)


def current_traceback() -> Any:
    """What JAX would keep of the Python stack with an equation that is made now."""
    return source_info_util.current().traceback
