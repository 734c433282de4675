"""`while` loops: the last iterations, and how many there were.

How often a loop runs isn't known before it has, so a log can't have an axis for it. It
keeps the last iteration, or the last few (`while_buffer`) in a ring. What is merged is
carried.
"""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ... import _compat
from ..loops import Loop, loop_of, named
from ..merging import empty, merge
from ..messages import BufferAsk, Ring
from ..primitives import lost
from ..reading import of_jaxpr
from ..rule import (
    AbstractRunner,
    Arrays,
    Body,
    LogArrays,
    Outcome,
    Params,
    register,
    Rule,
)
from ..signature import join, Signature, TapSpec
from ..values import zeros
from .cond import counted


def _signature(params: Params, operands: Sequence[Any]) -> Signature:
    parts = (of_jaxpr(params[name]) for name in ("cond_jaxpr", "body_jaxpr"))
    inside = join(part.at_place(i) for i, part in enumerate(parts))
    if not inside:
        return inside
    for info in inside.asks:
        if isinstance(info, BufferAsk):
            why = "which has no reverse-mode derivative."
        else:
            why = "so its hook can't be told which step it is in."
        lost(
            info.site,
            "it is inside a `while` loop (or a `fori_loop` with dynamic bounds), whose "
            f"number of steps isn't known, {why}{_instead(params['body_jaxpr'])}",
        )
    loop = loop_of(params["body_jaxpr"], "while")
    return dataclasses.replace(inside, taps=tuple(_kept(t, loop) for t in inside.taps))


def _instead(body: Any) -> str:
    """What makes a loop of known length of one that a library runs."""
    jaxpr, _ = _compat.open_jaxpr(body)
    codes = {code for eqn in jaxpr.eqns for code, _ in _compat.frames_of(eqn)}
    if not any("diffrax" in pathlib.Path(code.co_filename).parts for code in codes):
        return ""
    return (
        " In a solve by diffrax it is known with `adjoint=diffrax.DirectAdjoint()` and "
        "an explicit solver."
    )


def _kept(spec: TapSpec, loop: Loop) -> TapSpec:
    """What comes out of the loop of what is tapped in it."""
    if spec.info.merges:
        return spec
    size = spec.info.site.while_buffer
    if size is None:
        return counted(spec)
    place = spec.info.axes.step_place
    shapes = tuple(_compat.with_axis(s, place, size) for s in spec.log_shapes)
    axes = spec.info.axes.with_step(Ring(size), loop)
    info = dataclasses.replace(spec.info, axes=axes, counted=False)
    return counted(TapSpec(info, shapes))


# A ring: the kept values (the newest ones of `size`, in front a slot axis), the count,
# and how often something was put in.
State = tuple[list[Any], Any, Any]


def _size(spec: TapSpec) -> int:
    return spec.info.site.while_buffer or 1


def _start(spec: TapSpec) -> State | list[Any]:
    if spec.info.merges:
        return empty(spec)
    *shapes, count = counted(spec).shapes
    slots = (_compat.with_axis(s, 0, _size(spec)) for s in shapes)
    return [zeros(s) for s in slots], zeros(count), zeros(count)


def _put(spec: TapSpec, ring: Any, new: list[Any]) -> Any:
    """The ring after one more iteration, which adds nothing if the site didn't run; or
    what was merged before.
    """
    if spec.info.merges:
        return merge(spec.info, ring, new)
    kept, count, puts = ring
    if spec.info.counted:
        *new, added = new
    else:
        added = jnp.ones_like(count)
    # All in int32, and of equal ranks: a strict mode of JAX promotes nothing.
    added = added.astype(count.dtype)
    ran = added > 0
    here = (_slots(spec, puts) == (puts % _size(spec))[None]) & ran[None]

    def put(old: Any, new: Any) -> Any:
        where = here.reshape(here.shape + (1,) * (old.ndim - here.ndim))
        return jnp.where(where, new[None], old)

    kept = [put(o, n) for o, n in zip(kept, new, strict=True)]
    return kept, count + added, puts + ran.astype(puts.dtype)


def _slots(spec: TapSpec, puts: Any) -> Any:
    """The numbers of the slots of a ring, along an axis in front of those of `puts`."""
    slots = jnp.arange(_size(spec), dtype=puts.dtype)
    return slots.reshape(-1, *(1,) * puts.ndim)


def _read(spec: TapSpec, ring: Any) -> list[Any]:
    """The arrays of the tap, oldest first."""
    if spec.info.merges:
        return ring
    kept, count, puts = ring
    if spec.info.site.while_buffer is None:
        return [*(x[0] for x in kept), count]
    size = _size(spec)
    oldest = jnp.where(puts >= size, puts % size, 0)
    order = (_slots(spec, puts) + oldest[None]) % size

    def read(x: Any) -> Any:
        index = order.reshape(order.shape + (1,) * (x.ndim - order.ndim))
        x = jnp.take_along_axis(x, index, axis=0)
        return jnp.moveaxis(x, 0, place)

    place = spec.info.axes.step_place
    return [*(read(x) for x in kept), jnp.expand_dims(count, place)]


def _bodies(params: Params, operands: Sequence[Any]) -> list[Body]:
    num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
    every = range(len(operands))
    carry = every[num_cond + num_body :]
    body_consts = every[num_cond : num_cond + num_body]
    carried = [(i, num_body + i) for i in range(len(carry))]
    return [
        Body(params["cond_jaxpr"], [*every[:num_cond], *carry], None, decides=True),
        Body(params["body_jaxpr"], [*body_consts, *carry], None, carried),
    ]


def _run(
    params: Params, args: Sequence[Any], arrays: Arrays, runner: AbstractRunner
) -> Outcome:
    num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
    cond_consts = args[:num_cond]
    body_consts = args[num_cond : num_cond + num_body]
    init = args[num_cond + num_body :]
    cond_taps, body_taps = (
        runner.inside(params[name]).taps for name in ("cond_jaxpr", "body_jaxpr")
    )
    taps = (*cond_taps, *body_taps)
    varying = _compat.varying(s for spec in taps for s in spec.shapes)

    def check(carry: Any, once_more: bool = True) -> Outcome:
        args = [*cond_consts, *carry]
        return runner.run(params["cond_jaxpr"], args, arrays, once_more=once_more)

    def put(rings: list[Any], specs: Sequence[TapSpec], found: LogArrays) -> list[Any]:
        rings = [_put(*x) for x in zip(specs, rings, found, strict=True)]
        return _compat.as_varying(rings, varying)

    # The condition runs once more than the body, and last on the final state. So its
    # last value is found after the loop; earlier ones only where they are wanted: for
    # a ring, to be merged, or where the site may not have run in the last.
    early = any(
        spec.info.site.while_buffer is not None or spec.info.counted or spec.info.merges
        for spec in cond_taps
    )

    def cond(state: Any) -> Any:
        (keep_going,), _ = check(state[0], once_more=False)
        return keep_going

    def body(state: Any) -> Any:
        carry, steps, of_cond, of_body = state
        if early:
            of_cond = put(of_cond, cond_taps, check(carry)[1])
        outs, found = runner.run(params["body_jaxpr"], [*body_consts, *carry], arrays)
        steps = None if steps is None else steps + 1
        return outs, steps, of_cond, put(of_body, body_taps, found)

    rings = [[_start(t) for t in specs] for specs in (cond_taps, body_taps)]
    rings = _compat.as_varying(rings, varying)
    steps = jnp.zeros((), jnp.int32) if cond_taps and not early else None
    state = list(init), steps, *rings
    body = named(body, loop_of(params["body_jaxpr"], "while"))
    carry, steps, of_cond, of_body = lax.while_loop(cond, body, state)
    if cond_taps:
        of_cond = put(of_cond, cond_taps, check(carry)[1])
        if not early:
            of_cond = [(kept, count + steps, puts) for kept, count, puts in of_cond]
    logs = [_read(*x) for x in zip(taps, [*of_cond, *of_body], strict=True)]
    return list(carry), logs


register(_compat.while_p, Rule(_signature, _bodies, _run, sees_into=True))
