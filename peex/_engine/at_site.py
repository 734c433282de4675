"""What is done at a site while the model runs: hook and log act, forward on the value,
backward on its cotangent.

This is Python at the call site, under whatever transformation is active there, so that
collectives, batching and control flow behave as they do in the model's own code.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .. import _compat
from .active_calls import listener_at
from .apply import apply, is_array
from .codec import encoded_shapes
from .collector import Collector
from .messages import ArraysAsk, Ask, Axes, BufferAsk, DataAsk, Mark, Tap
from .primitives import ask, lost, mark, tap
from .site import Frozen, Site
from .values import hidden_arrays, is_unsorted, passes_by, strong, with_arrays


_NO_AXES = Axes()
_ONE_ARRAY = jtu.tree_structure(0)


def at_site(site: Site, value: Any) -> Any:
    """The value with hook and log applied; what isn't an array passes by."""
    if site.only_logs and not site.backward and isinstance(value, jax.Array):
        collector = listener_at(site.depth)
        if collector is not None and _compat.current_trace() is collector.trace:
            # Most of what eager calls do: no need for all that follows.
            collector.record(Tap(site, _ONE_ARRAY, _NO_AXES), [value])
            return value
    act = _backward if site.backward else _forward
    keep = _is_differentiable if site.backward else is_array
    if isinstance(value, jax.Array) and keep(value):
        return act(site, [value], _ONE_ARRAY)[0]
    leaves, treedef = jtu.tree_flatten(value, is_leaf=passes_by)
    kept = [keep(x) for x in leaves]
    if site.asked:
        _check_containers(site, leaves)
    only = [x if k else None for x, k in zip(leaves, kept, strict=True)]
    # Of arrays: there are containers that take anything else for a part of themselves.
    structure = jtu.tree_structure(jtu.tree_unflatten(treedef, only))
    arrays = [x for x in only if x is not None]
    arrays = iter(act(site, arrays, structure))
    new = [next(arrays) if k else x for x, k in zip(leaves, kept, strict=True)]
    return with_arrays(value, leaves, new)


def _check_containers(site: Site, leaves: Sequence[Any]) -> None:
    for leaf in leaves:
        if hidden_arrays(leaf):
            name = type(leaf).__name__
            what, instead = (
                f"a {name}, which isn't a pytree",
                "Register the type, as with "
                f"`jax.tree_util.register_dataclass({name})`, or return a dict or an "
                "Equinox module.",
            )
            if is_unsorted(leaf):
                what = f"a {name} whose keys JAX can't sort, {list(leaf)}"
                instead = "Take strings as keys."
            lost(
                site,
                f"its value holds {what}, with arrays in it that neither JAX nor a "
                f"hook sees. {instead}",
            )


def _is_differentiable(x: object) -> bool:
    return is_array(x) and jnp.issubdtype(jnp.result_type(x), jnp.inexact)


def _forward(site: Site, arrays: list[Any], structure: Any) -> list[Any]:
    hook_arrays, log_arrays = _arrays(site, site.hook), _arrays(site, site.log)
    collector: Any = listener_at(site.depth)
    data, _ = _data(collector, site, arrays, hook_arrays, log_arrays)
    arrays, logs, treedef = apply(
        site, structure, arrays, hook_arrays, log_arrays, data
    )
    info = Tap(site, treedef, _NO_AXES)
    if site.merges:  # also into the carry of a loop
        logs = strong(logs)
    if _compat.current_trace() is collector.trace:
        collector.record(info, logs)
    else:
        collector.emits(site)
        # Its results aren't used: the value goes on as the very objects that it is.
        tap(arrays, logs, info)
    return arrays


def _arrays(site: Site, frozen: Frozen | None) -> Sequence[Any]:
    """The arrays of a hook or log. They come through the collector: closed over, they
    would be baked into programs that JAX has cached.
    """
    if frozen is None or not frozen.shapes:
        return ()
    collector: Any = listener_at(site.depth)
    return _ask(collector, (), ArraysAsk.of(site, frozen))


def _data(
    collector: Collector, site: Site, arrays: Sequence[Any], *own: Sequence[Any]
) -> tuple[tuple[Any, Any], tuple[bool, ...]]:
    """What hook and log are given for this call, step and example, and which of its
    arrays have batch axes.
    """
    of_hook, hook_batched = _data_of(collector, site, site.hook, own[0], arrays)
    of_log, log_batched = _data_of(collector, site, site.log, own[1], arrays)
    return (of_hook, of_log), (*hook_batched, *log_batched)


def _data_of(
    collector: Collector,
    site: Site,
    frozen: Frozen | None,
    own: Sequence[Any],
    arrays: Sequence[Any],
) -> tuple[Any, tuple[bool, ...]]:
    if frozen is None or not frozen.takes_data:
        return None, ()
    local: Any = frozen.thaw(own)
    value = tuple(_shape(x) for x in arrays)
    wanted, treedef = jtu.tree_flatten(local.wants(value, site))
    if not wanted:
        return treedef.unflatten(()), ()
    per_example = tuple(datum.per_example for datum in wanted)
    info = DataAsk(
        site,
        tuple(datum.shape for datum in wanted),
        varying=_varying(arrays),
        fn=frozen.name,
        per_example=per_example,
        treedef=treedef,
        value=value,
    )
    return treedef.unflatten(_ask(collector, arrays, info)), per_example


def given_at(site: Site, frozen: Frozen, leaves: Sequence[Any]) -> tuple[Any, Any]:
    """What stands around a call, and the data that it is given, `None` if it takes
    none. `leaves` are those of the arguments.
    """
    collector: Any = listener_at(site.depth)
    own = _arrays(site, frozen)
    arrays = [x for x in leaves if is_array(x)]
    data, _ = _data_of(collector, site, frozen, own, arrays)
    return frozen.thaw(own), data


def _varying(arrays: Sequence[Any]) -> frozenset[str]:
    """The mesh axes that what is supplied for these varies over: if any, all, since
    each device has its own.
    """
    vary = _compat.varying(map(jax.typeof, arrays))
    return _compat.manual_axes() if vary else vary


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    shape = _compat.plain_shape(jax.typeof(x))
    if jnp.issubdtype(shape.dtype, jax.dtypes.extended):
        return shape
    # A float64 array outside of x64 mode is a float32 one to all that is done with it.
    return shape.update(dtype=jax.dtypes.canonicalize_dtype(shape.dtype))


def _ask(collector: Collector, anchors: Sequence[Any], info: Ask) -> Sequence[Any]:
    if _compat.current_trace() is collector.trace:
        return collector.supply(info)
    if not isinstance(info, ArraysAsk):
        collector.emits(info.site)
    return ask(anchors, info)


def _backward(site: Site, arrays: list[Any], structure: Any) -> list[Any]:
    collector: Any = listener_at(site.depth)
    if collector.scope.discards:
        return arrays
    data, per_example = (None, None), ()
    if any(fn is not None and fn.takes_data for fn in (site.hook, site.log)):
        own = _arrays(site, site.hook), _arrays(site, site.log)
        data, per_example = _data(collector, site, arrays, *own)
    logged = _logged(site, structure, arrays, data)
    info = BufferAsk(
        site,
        encoded_shapes(logged.leaves),
        varying=_varying(arrays),
        treedef=logged.treedef,
        dtypes=tuple(x.dtype for x in logged.leaves),
    )
    buffers = _ask(collector, arrays, info)
    if site.hook is None and site.log is None:
        return arrays  # it is known now that it ran
    # An array that is there twice stays one, with one cotangent.
    unique = list({id(x): x for x in arrays}.values())
    order = [id(x) for x in unique]
    places = tuple(order.index(id(x)) for x in arrays)
    given, data_structure = jtu.tree_flatten(data)
    info = Mark(site, structure, places, len(buffers), data_structure, per_example)
    marked = mark(unique, [*buffers, *given], info)
    return [marked[i] for i in places]


def _logged(
    site: Site, structure: Any, arrays: Sequence[Any], data: tuple[Any, Any]
) -> "_Logged":
    """The shapes of what will be logged. Hook and log are tried here, in the forward
    pass, so that errors come as early as they can be known.
    """
    shapes = [_shape(x) for x in arrays]
    if site.only_logs:
        return _Logged(shapes, structure)
    hook_arrays, log_arrays = (f.shapes if f else () for f in (site.hook, site.log))
    return jax.eval_shape(
        lambda *args: _Logged(*apply(site, structure, *args)[1:]),
        shapes,
        hook_arrays,
        log_arrays,
        jtu.tree_map(_shape, data),
    )


class _Logged(eqx.Module):
    """Carries the structure of a log out of `eval_shape`."""

    leaves: list[Any]
    treedef: Any = eqx.field(static=True)
