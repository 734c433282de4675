"""The derivative rule that brings cotangents out.

A mark becomes an identity with a second argument, the buffer, that does nothing. In
the backward pass the hook acts on the cotangent, and what the log makes of it is
returned as the cotangent of the buffer: so it is stacked, batched and summed as JAX
does with every cotangent, and comes back as the gradient with respect to the log.

The identity is linear, and all that is done is done where it is transposed. So it is a
primitive with a transpose rule rather than a `custom_vjp`: forward mode goes on
working, and sees the identity. Where the cotangent itself is logged, and nothing acts
on it, the rule is that of adding the buffer: this is `add_buffer_p`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .. import _compat
from .apply import apply
from .codec import encode
from .messages import Ask, Mark
from .primitives import to_axis
from .site import Site


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch axis: its size and name, which of the arrays that hook and log are given
    have it, and whether the buffers don't: then what is logged is summed over it.
    """

    size: int
    name: Any
    given: tuple[bool, ...]
    summed: bool


@dataclasses.dataclass(frozen=True)
class Pull:
    """What is done with the cotangent of a value, a pytree of the given structure: by
    hook and log of a site, to each example. `batches` are outermost first.

    The arguments of the primitive are the arrays of the value, the buffers, and what
    hook and log are given: the arrays of each, and data. `sizes` are how many there are
    of the first four. `places` are, for each place of the structure, which array is
    there.
    """

    site: Site
    structure: Any
    places: tuple[int, ...]
    sizes: tuple[int, int, int, int]
    data: Any
    batches: tuple[Batch, ...]

    def split(self, args: Sequence[Any]) -> list[list[Any]]:
        parts, rest = [], list(args)
        for size in self.sizes:
            parts.append(rest[:size])
            rest = rest[size:]
        return [*parts, rest]

    @property
    def num_linear(self) -> int:
        return self.sizes[0] + self.sizes[1]


def attach(
    values: Sequence[Any],
    others: Sequence[Any],
    info: Mark,
    supply: Callable[[Ask], Sequence[Any]],
) -> list[Any]:
    """The values of a mark with its derivative rule."""
    shared = (list(supply(ask)) for ask in info.shared)
    hook_arrays = [] if info.site.hook is None else next(shared)
    log_arrays = [] if info.site.log is None else next(shared)
    buffers, data = list(others[: info.num_buffers]), others[info.num_buffers :]
    at_places = [values[i] for i in info.places]
    if info.site.only_logs:
        # An explicit sharding of a batch axis may be known only here.
        pairs = zip(buffers, at_places, strict=True)
        buffers = [_compat.typed_as(x, jax.typeof(value)) for x, value in pairs]
    varying = _compat.varying(jax.typeof(x) for x in buffers)
    alike = all(
        _compat.varying([jax.typeof(x)]) == varying and x.dtype == b.dtype
        for x, b in zip(at_places, buffers, strict=False)
    )
    if info.site.only_logs and alike:
        tied = list(values)
        for i, buffer in zip(info.places, buffers, strict=True):
            tied[i] = add_buffer_p.bind(tied[i], buffer)
        return tied
    arrays = [*hook_arrays, *log_arrays]
    given = (False,) * len(arrays) + info.per_example
    pull = Pull(
        info.site,
        info.structure,
        info.places,
        (len(values), len(buffers), len(hook_arrays), len(log_arrays)),
        info.data,
        tuple(
            Batch(size, name, given, summed)
            for size, name, summed in zip(
                info.batch, info.names, info.summed, strict=True
            )
        ),
    )
    return cotangent_p.bind(*values, *buffers, *arrays, *data, pull=pull)


def _cotangent_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, pull: Pull
) -> tuple[list[Any], list[Any]]:
    values, linear = pull.split(primals)[0], tangents[: pull.num_linear]
    if all(_compat.is_zero(t) for t in linear):
        return values, list(linear[: len(values)])
    linear = [_compat.instantiate_zeros(t) for t in linear]
    given = primals[pull.num_linear :]
    return values, cotangent_p.bind(*linear, *given, pull=pull)


def _cotangent_transpose(cotangents: Any, *args: Any, pull: Pull) -> list[Any]:
    cotangents = [_compat.instantiate_zeros(c) for c in cotangents]
    _, _, *given = pull.split(args)

    def one(cotangents: Any, given: Any) -> tuple[list[Any], list[Any]]:
        at_places = [cotangents[i] for i in pull.places]
        hook_arrays, log_arrays, data = given
        data = pull.data.unflatten(data)
        new, logs, _ = apply(
            pull.site, pull.structure, at_places, hook_arrays, log_arrays, data
        )
        new = [new[pull.places.index(i)] for i in range(len(cotangents))]
        return new, logs

    # Hook and log see one example, as the site does in the forward pass.
    structure = jax.tree.structure(given)
    for batch in reversed(pull.batches):
        axes = [0 if batched else None for batched in batch.given]
        one = jax.vmap(
            one,
            in_axes=(0, structure.unflatten(axes)),
            axis_size=batch.size,
            axis_name=batch.name,
        )
        one = _summed(one) if batch.summed else one
    new, logs = one(cotangents, given)
    results = [*new, *encode(logs), *(None for _ in args[pull.num_linear :])]
    return [
        _compat.typed_as(x, arg.aval) if _compat.is_undefined_primal(arg) else None
        for x, arg in zip(results, args, strict=True)
    ]


def _summed(fn: Callable[..., Any]) -> Callable[..., Any]:
    """With what is logged summed over the examples."""

    def run(*args: Any) -> tuple[list[Any], list[Any]]:
        new, logs = fn(*args)
        return new, [jnp.sum(x, axis=0, dtype=x.dtype) for x in logs]

    return run


def _cotangent_batch(
    axis: Any, args: Sequence[Any], dims: Sequence[int | None], *, pull: Pull
) -> tuple[list[Any], list[int | None]]:
    num = pull.num_linear
    if all(d is None for d in dims):
        return cotangent_p.bind(*args, pull=pull), [None] * pull.sizes[0]
    num_values = pull.sizes[0]
    summed = pull.site.merges and all(d is None for d in dims[num_values:num])
    pairs = list(zip(args, dims, strict=True))
    values = [to_axis(x, d, 0, axis.size) for x, d in pairs[:num_values]]
    buffers = [
        x if summed else to_axis(x, d, 0, axis.size) for x, d in pairs[num_values:num]
    ]
    linear = [*values, *buffers]
    given = [x if d is None else to_axis(x, d, 0, axis.size) for x, d in pairs[num:]]
    batched = tuple(d is not None for d in dims[num:])
    batches = (Batch(axis.size, axis.name, batched, summed), *pull.batches)
    pull = dataclasses.replace(pull, batches=batches)
    return cotangent_p.bind(*linear, *given, pull=pull), [0] * pull.sizes[0]


class _CotangentPrimitive(_compat.PassingPrimitive):
    def num_passed(self, params: dict[str, Any]) -> int:
        return params["pull"].sizes[0]


cotangent_p = _CotangentPrimitive("peex_cotangent")
cotangent_p.multiple_results = True
cotangent_p.def_impl(lambda *args, pull: list(args[: pull.sizes[0]]))
cotangent_p.def_abstract_eval(lambda *args, pull: list(args[: pull.sizes[0]]))
_compat.primitive_jvps[cotangent_p] = _cotangent_jvp
_compat.primitive_transposes[cotangent_p] = _cotangent_transpose
_compat.batchers[cotangent_p] = _cotangent_batch
_compat.register_lowering(cotangent_p, lambda ctx, *args, pull: args[: pull.sizes[0]])


def _add_buffer_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    return add_buffer_p.bind(*primals), _compat.add_tangents(*tangents)


def _add_buffer_batch(axis: Any, args: Any, dims: Any) -> tuple[Any, int | None]:
    if all(d is None for d in dims):
        return add_buffer_p.bind(*args), None
    value, buffer = (
        to_axis(x, d, 0, axis.size) for x, d in zip(args, dims, strict=True)
    )
    return add_buffer_p.bind(value, buffer), 0


add_buffer_p = _compat.PassingPrimitive("peex_add_buffer")
add_buffer_p.def_impl(lambda value, buffer: value)
add_buffer_p.def_abstract_eval(lambda value, buffer: value)
_compat.primitive_jvps[add_buffer_p] = _add_buffer_jvp
_compat.linearize_as_sum(add_buffer_p)
_compat.batchers[add_buffer_p] = _add_buffer_batch
_compat.register_lowering(add_buffer_p, lambda ctx, value, buffer: [value])
