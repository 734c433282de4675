"""Sites inside of `shard_map`: one more device axis, in front, sharded over the mesh.

Every device hands out its own log, and nothing is gathered, apart from what is merged.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ... import _compat
from ..collector import Collector
from ..merging import joined, merge_axis, parted
from ..messages import Ask
from ..reading import of_jaxpr
from ..rule import Arrays, Body, Outcome, Params, register, Rule
from ..signature import Signature, TapSpec
from ..trace import Runner


def _manual_axes(params: Params) -> tuple[str, ...]:
    """The axes that the body runs over, in the order of the mesh."""
    manual = params["newly_manual_axes"]
    return tuple(name for name in params["mesh"].axis_names if name in manual)


def _num_devices(params: Params) -> int:
    """On how many devices the body runs."""
    return math.prod(params["mesh"].shape[name] for name in _manual_axes(params))


def _signature(params: Params, operands: Sequence[Any]) -> Signature:
    inside, size = of_jaxpr(params["jaxpr"]), _num_devices(params)

    def tap(spec: TapSpec) -> TapSpec:
        if spec.info.merges:
            shapes = (_compat.ShapedArray(s.shape, s.dtype) for s in spec.shapes)
            return TapSpec(spec.info, tuple(shapes))
        axes = spec.info.axes.with_device(size)
        shapes = tuple(
            _compat.ShapedArray((size, *s.shape), s.dtype) for s in spec.shapes
        )
        return TapSpec(dataclasses.replace(spec.info, axes=axes), shapes)

    def ask(info: Ask) -> Ask:
        varying = info.varying - frozenset(_manual_axes(params))
        if info.merges:
            return dataclasses.replace(info, varying=varying)
        axes = info.axes.with_device(size)
        shapes = tuple(
            jax.ShapeDtypeStruct((size, *s.shape), s.dtype) for s in info.shapes
        )
        return dataclasses.replace(info, axes=axes, shapes=shapes, varying=varying)

    return dataclasses.replace(
        inside,
        taps=tuple(tap(t) for t in inside.taps),
        asks=tuple(ask(a) for a in inside.asks),
    )


def _bodies(params: Params, operands: Sequence[Any]) -> list[Body]:
    return [Body(params["jaxpr"], range(len(operands)), _num_devices(params))]


def _call(
    primitive: Any,
    functions: Sequence[Any],
    args: Sequence[Any],
    params: Params,
    collector: Collector,
) -> Any:
    """Runs a `shard_map`, its logs brought out. `None`: it has no sites."""
    (fun,) = functions
    returned: list[Any] = []

    def bind(*args: Any) -> list[Any]:
        outs = primitive.bind(*args, subfuns=(fun,), **params)
        leaves = list(outs)
        returned.append(outs.update([None] * len(leaves)))  # the structure alone
        return leaves

    # Its output specifications are known only once it has been traced.
    jaxpr, consts = _compat.open_jaxpr(jax.make_jaxpr(bind)(*args))
    (equation,) = (e for e in jaxpr.eqns if e.primitive is primitive)
    if len(equation.invars) != len(args):
        # It closes over arrays. Run as a jaxpr, it takes them as arguments.
        with _compat.set_current_trace(collector.trace):
            outs = _compat.eval_jaxpr(jaxpr, consts, *args)
        return returned[0].update(outs)
    params = equation.params
    inside = collector.scope.part(_signature(params, args))
    inside = inside.at_place(next(collector.places))
    if not inside:
        return None
    mesh, axes = params["mesh"], _manual_axes(params)
    split = lambda x: _compat.split_over(x, mesh, axes)
    merge = [info.merges for info in inside.asks]
    slots = [list(collector.supply(info)) for info in inside.asks]
    same, own = parted(slots, merge)
    own = [list(map(split, arrays)) for arrays in own]
    shared = {info.name: list(collector.supply(info)) for info in inside.arrays}
    devices = PartitionSpec(_manual_axes(params))

    runner = Runner(collector.scope, collector.owners)

    def body(args: Any, same: Any, own: Any, shared: Any) -> Outcome:
        asks, _ = parted(runner.inside(params["jaxpr"]).asks, merge)
        pairs = zip(same, asks, strict=True)
        same = [_compat.as_varying(xs, info.varying) for xs, info in pairs]
        own = [[x[0] for x in arrays] for arrays in own]
        given = Arrays(joined(same, own, merge), shared)
        outs, logs = runner.run(params["jaxpr"], args, given)
        return outs, [[jnp.expand_dims(x, 0) for x in arrays] for arrays in logs]

    outs, logs = jax.shard_map(
        body,
        mesh=params["mesh"],
        in_specs=(list(params["in_specs"]), PartitionSpec(), devices, PartitionSpec()),
        out_specs=(list(params["out_specs"]), devices),
        axis_names=params["newly_manual_axes"],
        check_vma=params["check_vma"],
    )(list(args), same, own, shared)
    for spec, arrays in zip(inside.taps, logs, strict=True):
        if spec.info.merges:
            arrays = merge_axis(spec.info, [_compat.unsharded(x) for x in arrays])
        collector.record(spec.info, arrays)
    return returned[0].update(outs)


register(_compat.shard_map_p, Rule(_signature, _bodies, None, call=_call))
