"""The primitives of the engine: how a site speaks to its collector from inside of
whatever JAX transformations it runs under.

- `tap` hands a value out. It is the identity on the site's value, to which the leaves
    of its log are attached; since the value flows through, it stays wherever that is
    used.
- `ask` takes arrays in: the buffer of a backward log, or those of a hook. The site's
    value is its operand, so that a buffer is batched exactly when the value is.
- `mark` says that a value's cotangent is wanted, and into which buffer. It is the
    identity, under inner derivatives too; the collector makes a derivative rule of it.

A collector takes all three out of a program before JAX compiles it. One that JAX comes
to compile or execute has met no collector: its value would be lost, so it raises
(unless it is in a derivative rule that nobody listens to: see `excuse` in
`reading.py`).
"""

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax.numpy as jnp

from .. import _compat
from .._errors import SiteLostError
from .active_calls import SitePrimitive
from .merging import merge_axis
from .messages import ArraysAsk, Ask, DataAsk, Mark, Tap
from .site import Site


tap_p: Any = SitePrimitive("peex_tap")
mark_p: Any = SitePrimitive("peex_mark")
ask_p: Any = SitePrimitive("peex_ask")


def tap(values: Sequence[Any], logs: Sequence[Any], info: Tap) -> list[Any]:
    """Attaches `logs` (with the count last, if `info.counted`) to `values`."""
    return tap_p.bind(*values, *logs, info=info, num_values=len(values))


def ask(anchors: Sequence[Any], info: Ask) -> list[Any]:
    """Asks for arrays of `info.shapes`, batched if the `anchors` are."""
    return ask_p.bind(*anchors, info=info)


def mark(values: Sequence[Any], others: Sequence[Any], info: Mark) -> list[Any]:
    """Marks `values`; `others` are the buffers, and the data of hook and log."""
    return mark_p.bind(*values, *others, info=info, num_values=len(values))


def lost(site: Site, why: str) -> NoReturn:
    kind = "cotangent" if site.backward else "value"
    error = SiteLostError(
        f"The site {site.key!r} ran, but its {kind} can't be brought out: {why}\n"
        "Leave the site out by naming the others, as in "
        "`where=['encoder.**', 'head']`, or hook a module around it."
    )
    error.key, error.why = site.key, why
    raise error


# By identity: of these very objects, not of all that equal them.
_may_be_lost: weakref.WeakValueDictionary[int, Site] = weakref.WeakValueDictionary()


def may_be_lost(site: Site) -> None:
    """Says that nobody listens to this site where JAX executes what it emits."""
    _may_be_lost[id(site)] = site


def _not_collected(*args: Any, info: Any, num_values: int = 0) -> list[Any]:
    if _may_be_lost.get(id(info.site)) is info.site:
        return list(args[:num_values])
    lost(
        info.site,
        "it is inside a function that JAX or a library runs on its own (such as a "
        "custom derivative rule or a callback), which peex doesn't see into.",
    )


def _lowering(ctx: Any, *args: Any, **params: Any) -> list[Any]:
    del ctx
    return _not_collected(*args, **params)


def _same(*avals: Any, num_values: int, info: Any) -> list[Any]:
    del info
    return list(avals[:num_values])


def _ask_abstract(*avals: Any, info: Ask) -> list[Any]:
    axes = info.varying
    return [_compat.varying_array(s.shape, s.dtype, axes, avals) for s in info.shapes]


def to_axis(x: Any, dim: int | None, where: int, size: Any) -> Any:
    """`x` with its batch axis at `where`; repeated along a new one if it has none."""
    if dim is not None:
        return x if dim == where else jnp.moveaxis(x, dim, where)
    x = jnp.expand_dims(x, where)
    return jnp.broadcast_to(x, x.shape[:where] + (size,) + x.shape[where + 1 :])


def _tap_batch(
    axis: Any, args: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[list[Any], list[int | None]]:
    info, num_values = params["info"], params["num_values"]
    values, logs = args[:num_values], args[num_values:]
    if any(d is not None for d in dims):
        # Steps stay in front of batches, however vmap and scan nest.
        where = 0 if info.merges else info.axes.batch_place
        logs = [
            to_axis(x, d, where, axis.size)
            for x, d in zip(logs, dims[num_values:], strict=True)
        ]
        if info.merges:
            logs = merge_axis(info, logs)
        else:
            axes = info.axes.with_batch(axis.size, axis.name)
            info = dataclasses.replace(info, axes=axes)
    return tap(values, logs, info), list(dims[:num_values])


def _mark_batch(
    axis: Any, args: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[list[Any], list[int | None]]:
    info, num_values = params["info"], params["num_values"]
    if all(d is None for d in dims):
        return mark(args[:num_values], args[num_values:], info), [None] * num_values
    first = num_values + info.num_buffers
    # One buffer for all examples: what they log is summed.
    buffers = dims[num_values:first]
    summed = info.site.merges and all(d is None for d in buffers)
    batched = (*(True for _ in dims[:num_values]), *(not summed for _ in buffers))
    per_example = (*batched, *info.per_example)
    args = [
        to_axis(x, d, 0, axis.size) if each else x
        for x, d, each in zip(args, dims, per_example, strict=True)
    ]
    info = dataclasses.replace(
        info,
        batch=(axis.size, *info.batch),
        names=(axis.name, *info.names),
        summed=(summed, *info.summed),
    )
    return mark(args[:num_values], args[num_values:], info), [0] * num_values


def _ask_batch(
    axis: Any, args: Sequence[Any], dims: Sequence[int | None], *, info: Ask
) -> tuple[list[Any], list[int | None]]:
    if isinstance(info, ArraysAsk) or info.merges or all(d is None for d in dims):
        return ask(args, info), [None] * len(info.shapes)
    where = info.axes.batch_place
    mesh_axis = axis.explicit_mesh_axis
    batched = (True,) * len(info.shapes)
    if isinstance(info, DataAsk):
        batched = info.per_example
    shapes = tuple(
        _compat.with_axis(s, where, axis.size, mesh_axis) if each else s
        for s, each in zip(info.shapes, batched, strict=True)
    )
    axes = info.axes.with_batch(axis.size, axis.name)
    info = dataclasses.replace(info, shapes=shapes, axes=axes)
    return ask(args, info), [where if each else None for each in batched]


def _passing_jvp(primitive: Any) -> Callable[..., tuple[list[Any], list[Any]]]:
    """Tangents pass by: an inner derivative sees the identity, and the log is of the
    primal value, once.
    """

    def rule(
        primals: Sequence[Any], tangents: Sequence[Any], **params: Any
    ) -> tuple[list[Any], list[Any]]:
        outs = primitive.bind(*primals, **params)
        return outs, list(tangents[: len(outs)])

    return rule


def _passing_transpose(
    cotangents: Sequence[Any], *args: Any, info: Any, num_values: int = 0
) -> list[Any]:
    """A transposed linear function doesn't compute the value: nothing is handed out."""
    del info
    cotangents = cotangents[:num_values]
    return [*cotangents, *(None for _ in args[num_values:])]


def _ask_jvp(
    primals: Sequence[Any], tangents: Any, *, info: Ask
) -> tuple[list[Any], list[Any]]:
    del tangents
    if isinstance(info, DataAsk):
        info = dataclasses.replace(info, differentiated=True)
    outs = ask(primals, info)
    return outs, [_compat.zero_tangent(x) for x in outs]


# A tapped value that is computed once more, in the backward pass of a `checkpoint`.
recomputed_p = _compat.Primitive("peex_recomputed")
recomputed_p.multiple_results = True
recomputed_p.def_impl(lambda *xs: list(xs))
recomputed_p.def_abstract_eval(lambda *avals: list(avals))
_compat.register_lowering(recomputed_p, lambda ctx, *xs: list(xs))
_compat.primitive_jvps[recomputed_p] = _passing_jvp(recomputed_p)
_compat.batchers[recomputed_p] = lambda axis, args, dims: (
    recomputed_p.bind(*args),
    list(dims),
)
_compat.primitive_transposes[recomputed_p] = lambda cotangents, *args: list(cotangents)


def _recompute_tap(eqn: Any) -> Any:
    """Its log is that of the first time."""
    values = eqn.invars[: eqn.params["num_values"]]
    return eqn.replace(
        primitive=recomputed_p, invars=values, params={}, effects=frozenset()
    )


def _recompute_ask(eqn: Any) -> Any | None:
    """It isn't asked again, which would be a further call: what came is kept. (The
    arrays of hooks are the same for all calls.)
    """
    return eqn if isinstance(eqn.params["info"], ArraysAsk) else None


_compat.on_recomputation(tap_p, _recompute_tap)
_compat.on_recomputation(ask_p, _recompute_ask)
for _p in (tap_p, mark_p, ask_p):
    _p.def_impl(_not_collected)
    _compat.register_lowering(_p, _lowering)
_compat.keep_unused(tap_p, _same)
_compat.keep_unused(ask_p, _ask_abstract)
mark_p.def_abstract_eval(_same)
_compat.batchers[tap_p] = _tap_batch
_compat.batchers[mark_p] = _mark_batch
_compat.batchers[ask_p] = _ask_batch
_compat.primitive_jvps[tap_p] = _passing_jvp(tap_p)
_compat.primitive_jvps[mark_p] = _passing_jvp(mark_p)
_compat.primitive_jvps[ask_p] = _ask_jvp
_compat.primitive_transposes[tap_p] = _passing_transpose
_compat.primitive_transposes[mark_p] = _passing_transpose
_compat.primitive_transposes[ask_p] = _passing_transpose
