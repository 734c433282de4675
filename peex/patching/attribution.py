"""What a sweep would find, to first order: `attribution`."""

from collections.abc import Mapping
from typing import Any, Literal, TYPE_CHECKING

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Inexact, PyTree

from .._hooks.hooks import IdentityHook
from .._hooks.log_fns import IdentityLog
from .._log import Log
from .._wrappers.backward import BackwardHook
from .._wrappers.forward import ForwardHook
from .._wrappers.types import Method, Where
from .differentiable import check_inputs, check_metric, check_sites, check_steps
from .direction import (
    base_of,
    check_direction,
    Direction,
    given_and_base,
    Metric,
    metrics_of,
    Said,
    Source,
)
from .effects import Effects
from .gradients import linearised, over_activations, over_inputs, wide
from .places import places, SweptSite
from .runs import as_arguments, run_logged, Runs
from .sources import check_source, made_source


if TYPE_CHECKING:
    Path = Literal["input", "activation"]
else:
    # Checked by peex itself, whose errors say what to write instead.
    Path = Any


def attribution(
    model: Any,
    clean: Any,
    corrupted: Any,
    metric: Metric,
    *,
    where: Where,
    axes: str | Mapping[str, str],
    pre_hook: bool = False,
    method: Method = "__call__",
    source: Source = "clean",
    direction: Direction = "denoising",
    steps: int | None = None,
    path: Path = "input",
) -> Effects:
    """Attribution patching: what [`peex.patching.sweep`][] would find, to first order,
    for all places at once. Two forward passes and one backward pass, whatever the
    number of places.

    The metric at a place is estimated by that of the base run plus

    `sum((source - base) * gradient)`,

    over what is at the place: `base` is the value in the run into which something is
    put, `gradient` that of the metric there, in that run
    ([Nanda, 2023](https://www.neelnanda.io/mechanistic-interpretability/attribution-patching);
    [Syed et al., 2023](https://arxiv.org/abs/2310.10348)). The sum itself is in
    `effects.changes()`.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        cell = eqx.nn.GRUCell(2, 4, key=jax.random.key(0))

        def run(cell, xs):
            step = lambda h, x: (cell(x, h), None)
            return jax.lax.scan(step, jnp.zeros(4), xs)[0]

        clean = jax.random.normal(jax.random.key(1), (5, 2))
        effects = px.patching.attribution(
            cell, clean, -clean, jnp.sum, method=run, where=".", axes="time unit"
        )
        effects["."].shape  # (5, 4)
        effects.normalised().top(3)  # which unit at which time
        ```

    **Arguments:**

    - `model`, `method`, `where`, `pre_hook`, `clean`, `corrupted`, `axes`, `source`,
        `direction`: as those of [`peex.patching.sweep`][].
    - `metric`: maps the model's output to one floating-point number.
    - `steps`: if given, the gradient is the mean of those at so many points between the
        runs (the middles of `steps` equal parts), instead of the one at the base:
        integrated gradients ([Sundararajan et al.,
        2017](https://arxiv.org/abs/1703.01365)).
    - `path`: where these points are. `"input"`: runs on inputs between those of the two
        runs, which costs a forward and a backward pass for each step
        ([Hanna et al., 2024](https://arxiv.org/abs/2403.17806)). `"activation"`: runs
        on the input of the base, with the values of one site (one step of a loop) at a
        time between `base` and `source`, which costs as much for each of these, and is
        needed where inputs are integers
        ([Marks et al., 2024](https://arxiv.org/abs/2403.19647)).

    **Returns:**

    [`peex.patching.Effects`][]: for each site the estimated metric, arrays
    `[*swept axes]`, and that of the two runs.

    **Raises:**

    Before anything runs: as [`peex.patching.sweep`][], and [`peex.PeexError`][] for a
    metric that isn't one floating-point number, a site of integers, and inputs that
    can't be interpolated. [`peex.SiteLostError`][] where there is no gradient, as in a
    while loop.
    """
    check_direction(direction)
    check_steps(steps, path, source)
    choose = {"where": where, "pre_hook": pre_hook}
    logging = ForwardHook(model, None, IdentityLog(), method=method, **choose)
    runs = Runs(logging, metric, as_arguments(clean), as_arguments(corrupted))
    shapes, _ = runs.shapes()
    check_metric(shapes.metric, "attribution")
    sites = places(shapes.log, axes, None)
    check_source(source, shapes.log, sites)
    check_sites(shapes.log, "attribution")
    args = given_and_base(direction, runs.clean, runs.corrupted)
    if steps is not None and path == "input":
        check_inputs(*args)

    first_order = _FirstOrder(
        BackwardHook(logging, None, IdentityLog(), **choose),
        ForwardHook(model, IdentityHook(), None, method=method, **choose),
        metric,
        sites,
        steps,
        path,
    )
    given, base, values = _attributed(first_order, *args, source)
    values = {site.key: values[site.key] for site in sites}  # JAX sorts keys
    metrics = metrics_of(direction, given, base)
    axis_names = {site.key: tuple(site.names[i] for i in site.swept) for site in sites}
    return Effects(values, axis_names, *metrics, base_of(direction))


class _FirstOrder(eqx.Module):
    """What is computed, apart from what it is computed of.

    - `hooked`: a backward wrapper around one that logs.
    - `patched`: a wrapper with a hook at the same sites.
    """

    hooked: BackwardHook
    patched: ForwardHook
    metric: Metric
    sites: tuple[SweptSite, ...] = eqx.field(static=True)
    steps: int | None = eqx.field(static=True)
    path: str = eqx.field(static=True)

    def gradients(
        self, args: tuple[Any, ...], others: tuple[Any, ...], base: Log, source: Log
    ) -> Log:
        """If they aren't those of the base run alone."""
        assert self.steps is not None
        if self.path == "input":
            return over_inputs(self.hooked, self.metric, args, others, self.steps)
        return over_activations(
            self.patched, self.metric, args, base, source, self.steps
        )


@eqx.filter_jit
def _attributed(
    what: _FirstOrder, others: tuple[Any, ...], args: tuple[Any, ...], source: Any
) -> tuple[Said, Said, dict[str, PyTree]]:
    """Of the run that gives values, and of the base, and the estimated metric by site.
    `args` are those of the base.
    """
    hooked, metric = what.hooked, what.metric
    given_metric, given = run_logged(hooked.model, metric, others)
    if what.steps is None:
        base_metric, base, gradients = linearised(hooked, metric, args)
        put_in = made_source(source, given, base, what.sites)
    else:
        base_metric, base = run_logged(hooked.model, metric, args)
        put_in = made_source(source, given, base, what.sites)
        gradients = what.gradients(args, others, base, put_in)

    def estimate(site: SweptSite) -> PyTree:
        logs = base, put_in, gradients
        arrays = [jtu.tree_leaves(log[site.key])[0] for log in logs]
        change = _change(site, *arrays)
        return jtu.tree_map(lambda m: m + change.astype(m.dtype), base_metric)

    values = {site.key: estimate(site) for site in what.sites}
    return (given_metric, given.counts), (base_metric, base.counts), values


def _change(
    site: SweptSite,
    base: Inexact[Array, "..."],
    source: Inexact[Array, "..."],
    gradient: Inexact[Array, "..."],
) -> Inexact[Array, "..."]:
    """`(source - base) * gradient`, summed over what is patched whole."""
    base, source, gradient = map(wide, (base, source, gradient))
    # JAX's gradient g of a real number in a complex one says that it becomes Re(g dz).
    product = jnp.real((source - base) * gradient).reshape(site.split)
    whole = [i for i in range(len(site.split)) if i not in site.swept]
    return jnp.sum(product, whole)
