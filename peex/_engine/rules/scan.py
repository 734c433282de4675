"""`scan`: one more step axis. What is merged is carried instead."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ... import _compat
from ..loops import Loop, loop_of, named
from ..merging import joined, merging, parted
from ..messages import Ask, Axes, Tap
from ..reading import of_jaxpr
from ..rule import AbstractRunner, Arrays, Body, Outcome, Params, register, Rule
from ..signature import Signature, TapSpec


def _signature(params: Params, operands: Sequence[Any]) -> Signature:
    inside, length = of_jaxpr(params["jaxpr"]), params["length"]
    if not inside:
        return inside
    loop = loop_of(params["jaxpr"], "scan", params["reverse"])
    carried = _carried(loop)

    def stacked(shape: Any, axes: Axes) -> Any:
        return _compat.with_axis(shape, axes.step_place, length)

    def tap(spec: TapSpec) -> TapSpec:
        if carried(spec.info):
            return spec
        axes = spec.info.axes
        shapes = tuple(stacked(s, axes) for s in spec.shapes)
        info = dataclasses.replace(spec.info, axes=axes.with_step(length, loop))
        return TapSpec(info, shapes)

    def ask(info: Ask) -> Ask:
        if carried(info):
            return info
        shapes = tuple(stacked(s, info.axes) for s in info.shapes)
        axes = info.axes.with_step(length, loop)
        return dataclasses.replace(info, shapes=shapes, axes=axes)

    return dataclasses.replace(
        inside,
        taps=tuple(tap(t) for t in inside.taps),
        asks=tuple(ask(a) for a in inside.asks),
    )


def _carried(loop: Loop) -> Callable[[Tap | Ask], bool]:
    """Whether something is merged over the steps of a loop, rather than stacked."""
    return lambda info: info.merges and loop.where not in info.site.kept


def _bodies(params: Params, operands: Sequence[Any]) -> list[Body]:
    num_consts, num_carry = _compat.scan_layout(params)
    carried = [(i, num_consts + i) for i in range(num_carry)]
    every = range(len(operands))
    return [Body(params["jaxpr"], every, params["length"], carried)]


def _run(
    params: Params, args: Sequence[Any], arrays: Arrays, runner: AbstractRunner
) -> Outcome:
    num_consts, num_carry = _compat.scan_layout(params)
    consts, init = args[:num_consts], args[num_consts : num_consts + num_carry]
    xs = args[num_consts + num_carry :]
    inside = runner.inside(params["jaxpr"])
    loop = loop_of(params["jaxpr"], "scan")
    carried = _carried(loop)
    taps_merge = [carried(spec.info) for spec in inside.taps]
    asks_merge = [carried(info) for info in inside.asks]
    same, slots = parted(arrays.slots, asks_merge)
    _, sliced = parted(inside.asks, asks_merge)
    of_merged, of_stacked = parted(inside.taps, taps_merge)
    start, more = merging(of_merged)

    def body(carry: Any, x: Any) -> Any:
        (carry, merged), (x, slots) = carry, x
        given = Arrays(joined(same, slots, asks_merge), arrays.shared)
        outs, logs = runner.run(params["jaxpr"], [*consts, *carry, *x], given)
        new, logs = parted(logs, taps_merge)
        return (outs[:num_carry], more(merged, new)), (outs[num_carry:], logs)

    (carry, merged), (ys, logs) = lax.scan(
        named(body, loop),
        (list(init), start),
        (list(xs), _move_steps(slots, sliced, out=False)),
        # A symbolic one, as in `jax.export`, is that of the inputs.
        length=None if xs else params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    logs = _move_steps(logs, [spec.info for spec in of_stacked], out=True)
    return [*carry, *ys], joined(merged, logs, taps_merge)


def _move_steps(
    arrays: list[list[Any]], infos: Sequence[Tap | Ask], out: bool
) -> list[list[Any]]:
    """`scan` has its steps in front; a log has them behind its device axes."""
    moved = []
    for xs, info in zip(arrays, infos, strict=True):
        place = info.axes.step_place
        ends = (0, place) if out else (place, 0)
        moved.append([jnp.moveaxis(x, *ends) for x in xs] if place else xs)
    return moved


register(_compat.scan_p, Rule(_signature, _bodies, _run, sees_into=True))
