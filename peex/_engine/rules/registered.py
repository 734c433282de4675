"""Rules for primitives of other libraries: [`register_rule`][].

Such a primitive is described by a function: what it does, in terms of JAX's operations.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from ... import _compat
from ..primitives import lost
from ..quiet import quietly
from ..reading import of_jaxpr
from ..rule import AbstractRunner, Arrays, Body, Outcome, Params, register, Rule
from ..signature import Signature
from .batching import logs_before_tangents, logs_out_first
from .custom import no_tangent


def register_rule(
    primitive: Any,
    body: Callable[..., Sequence[Any]],
    *,
    own_derivative: bool = True,
) -> None:
    """Makes peex see into a primitive of your library, whose parameters hold programs
    (jaxprs) that may contain hooked modules. Without a rule, a site in such a program
    is a `SiteLostError`. Call it once, where the primitive is defined.

    !!! Example

        A primitive that applies a function, which it holds as a jaxpr:

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px
        from jax.extend.core import jaxpr_as_fun, Primitive
        from jax.interpreters import mlir

        apply_p = Primitive("apply")
        apply_p.multiple_results = True

        def apply(*operands, jaxpr):
            return jaxpr_as_fun(jaxpr)(*operands)

        apply_p.def_impl(apply)
        apply_p.def_abstract_eval(lambda *avals, jaxpr: jaxpr.out_avals)
        mlir.register_lowering(apply_p, mlir.lower_fun(apply, multiple_results=True))

        px.register_rule(apply_p, apply, own_derivative=False)

        def model(linear, x):
            return apply_p.bind(x, jaxpr=jax.make_jaxpr(linear)(x))[0]

        linear = eqx.nn.Linear(3, 3, key=jax.random.key(0))
        out, log = px.ForwardHook(linear, method=model)(jnp.ones(3))
        assert (log["."] == out).all()
        ```

    **Arguments:**

    - `primitive`: the primitive, which has several results.
    - `body`: `body(*operands, **params)` does what the primitive does, and returns its
        results. It is traced wherever the primitive is bound and holds sites; where it
        holds none, nothing changes.
    - `own_derivative`: whether the primitive has a derivative rule that stands in the
        place of autodiff through `body`, as that of an implicit solver does. Then the
        rule is kept, and says nothing to hooks: a site is logged as it runs in `body`,
        which runs once more for its log where the primitive is differentiated; a
        `BackwardHook` there is a `SiteLostError`. With `False` the body runs in the
        primitive's place.
    """
    make = _kept if own_derivative else _inlined
    register(primitive, make(primitive, body))
    if primitive in _compat.batchers:
        _compat.batchers[primitive] = logs_out_first(primitive)
    if own_derivative and primitive in _compat.primitive_jvps:
        _compat.primitive_jvps[primitive] = logs_before_tangents(primitive)


Function = Callable[..., Sequence[Any]]


def _traced(body: Function, params: Params, operands: Sequence[Any]) -> Any:
    avals = [x.aval if hasattr(x, "aval") else jax.typeof(x) for x in operands]
    return jax.make_jaxpr(lambda *args: list(body(*args, **params)))(*avals)


def _inlined(primitive: Any, body: Function) -> Rule:
    def signature(params: Params, operands: Sequence[Any]) -> Signature:
        return of_jaxpr(_traced(body, params, operands))

    def bodies(params: Params, operands: Sequence[Any]) -> list[Body]:
        return [Body(_traced(body, params, operands), range(len(operands)))]

    def rebind(
        params: Params, args: Sequence[Any], arrays: Arrays, runner: AbstractRunner
    ) -> Outcome:
        return runner.run(_traced(body, params, args), args, arrays)

    return Rule(signature, bodies, rebind)


def _kept(primitive: Any, body: Function) -> Rule:
    inlined = _inlined(primitive, body)
    derivative: Any = _compat.primitive_jvps.get(primitive)

    def signature(params: Params, operands: Sequence[Any]) -> Signature:
        inside = inlined.signature(params, operands)
        if inside.asks:
            lost(
                inside.asks[0].site,
                f"it is inside of a `{primitive.name}`, whose derivative rule stands "
                "in the place of autodiff there.",
            )
        return inside

    def rebind(
        params: Params, args: Sequence[Any], arrays: Arrays, runner: AbstractRunner
    ) -> Outcome:
        jaxpr = _traced(body, params, args)
        call = jax.custom_jvp(lambda *args: runner.run(jaxpr, *args))

        def rule(primals: Any, tangents: Any) -> Any:
            (args, arrays), (tangents, _) = primals, tangents
            symbolic = _compat.is_symbolic_zero
            known = {i: t for i, t in enumerate(tangents) if not symbolic(t)}

            def derive(args: Any, known: Any) -> Any:
                tangents = [
                    known[i] if i in known else _compat.zero_tangent(x)
                    for i, x in enumerate(args)
                ]
                outs, tangents = derivative(args, tangents, **params)
                return outs, [_compat.instantiate_zeros(t) for t in tangents]

            outs, tangents = quietly(derive, list(args), known)
            _, logs = runner.run(jaxpr, args, arrays)
            return (outs, logs), (tangents, jax.tree.map(no_tangent, logs))

        call.defjvp(rule, symbolic_zeros=True)
        return call(list(args), arrays)

    return Rule(signature, inlined.bodies, rebind)
