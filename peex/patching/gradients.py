"""Gradients of a metric at the sites of a run, without those of the model."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float, Inexact, PyTree

from .. import _compat
from .._hooks.axis_names import ANONYMOUS
from .._log import Log
from .._wrappers.backward import BackwardHook
from .._wrappers.forward import ForwardHook
from .._wrappers.run import run as run_hooked
from .._wrappers.traced_once import PlaceholderCollector, value_and_grad
from .direction import Metric
from .groups import steps_of
from .patched import patched
from .places import SweptSite
from .runs import measured


class Linearised(NamedTuple):
    """A run, and the gradient of its metric.

    - `metric`, `log`: of the run.
    - `cotangents`: at sites, in the layout of a log.
    """

    metric: PyTree[Inexact[Array, ""]]
    log: Log
    cotangents: Log


def linearised(
    hooked: BackwardHook, metric: Metric, args: tuple[Any, ...]
) -> Linearised:
    """One forward and one backward pass. `hooked` is around a `ForwardHook` that logs;
    nothing in the model has a gradient, so no more is computed than the cotangents.
    """
    outside = _compat.current_trace()

    def call(_: Any) -> tuple[Any, Any, PlaceholderCollector]:
        make = lambda: PlaceholderCollector(None, hooked.log_fn, outside)
        out, collector = run_hooked(hooked.plan, hooked.model, make, True, args, {})
        output, log = out
        value = measured(metric, output)
        return jtu.tree_leaves(value)[0], (value, log), collector

    (value, log), _, cotangents = value_and_grad(call, ())
    return Linearised(value, log, cotangents)


def midpoints(n: int) -> Float[Array, " n"]:
    """The middles of `n` equal parts of the way from the base to the other run."""
    return (jnp.arange(n, dtype=jnp.float32) + 0.5) / n


def between(base: Any, other: Any, alpha: Float[Array, ""]) -> Any:
    """`base + alpha (other - base)` for all floating-point arrays; the rest is that of
    the base.
    """

    def one(x: Any, y: Any) -> Any:
        if not eqx.is_inexact_array(x):
            return x
        x, y = jnp.asarray(x), jnp.asarray(y)
        return x + alpha.astype(x.dtype) * (y - x)

    return jtu.tree_map(one, base, other)


def over_inputs(
    hooked: BackwardHook,
    metric: Metric,
    args: tuple[Any, ...],
    others: tuple[Any, ...],
    steps: int,
) -> Log:
    """The cotangents, averaged over runs on inputs between those of two runs."""

    def one(alpha: Float[Array, ""]) -> Log:
        found = linearised(hooked, metric, between(args, others, alpha))
        return jtu.tree_map(wide, found.cotangents)

    return _mean(one, midpoints(steps))


def over_activations(
    hooked: ForwardHook,
    metric: Metric,
    args: tuple[Any, ...],
    base: Log,
    source: Log,
    steps: int,
) -> Log:
    """The gradients of the metric with respect to the values of one site, averaged over
    runs in which these lie between `base` and `source`. A step of a loop is a site of
    its own: what comes later depends on it. `hooked` has a hook at these sites.
    """
    sites: list[SweptSite] = []
    for key in base:
        (x,) = jtu.tree_leaves(base[key])
        loops = steps_of(base, key)
        names = tuple("step" if i in loops else ANONYMOUS for i in range(x.ndim))
        offset = sum(site.size for site in sites)
        ones = (1,) * x.ndim
        sites.append(SweptSite(key, x.shape, x.shape, names, ones, offset))
    ends = Log(dict(base)), Log(dict(source))  # of one structure

    def one(item: tuple[Array, Array]) -> Log:
        place, alpha = item
        masks = {site.key: site.mask(place) for site in sites}

        def run(values: Log) -> Array:
            out, _ = patched(hooked, values, masks)(*args)
            return jtu.tree_leaves(measured(metric, out))[0]

        gradient = jax.grad(run)(between(*ends, alpha))
        return jtu.tree_map(wide, gradient)

    alphas = midpoints(steps)
    numbers = jnp.arange(sum(site.size for site in sites))
    total = _mean(one, (jnp.repeat(numbers, steps), jnp.tile(alphas, len(numbers))))
    return jtu.tree_map(lambda x: x * len(numbers), total)


def wide(x: Inexact[Array, "..."]) -> Inexact[Array, "..."]:
    """In single precision at least, so that sums of many lose no digits."""
    return x if jnp.finfo(x.dtype).bits >= 32 else x.astype(jnp.float32)


def _mean(fn: Callable[[Any], Any], items: Any) -> Any:
    """The mean of a function over items along a leading axis, one after the other."""
    n = len(jtu.tree_leaves(items)[0])
    shapes = jax.eval_shape(fn, jtu.tree_map(lambda x: x[0], items))
    zeros = jtu.tree_map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    add = lambda total, item: (jtu.tree_map(jnp.add, total, fn(item)), None)
    total, _ = jax.lax.scan(add, zeros, items)
    return jtu.tree_map(lambda x: x / n, total)
