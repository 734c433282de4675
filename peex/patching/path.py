"""What one place does by way of others: `path`."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Int, PyTree

from .._errors import PeexError
from .._hooks.hooks import IdentityHook
from .._hooks.log_fns import IdentityLog
from .._log import Log
from .._wrappers.forward import ForwardHook
from .._wrappers.types import Method, Where
from .direction import (
    base_of,
    check_direction,
    Direction,
    given_and_base,
    Metric,
    Source,
)
from .effects import Effects
from .groups import patterns_of, Times, together
from .patched import patched
from .places import by_site, places, SweptSite
from .runs import as_arguments, measured, Runs
from .sources import check_source, made_source


def path(
    model: Any,
    clean: Any,
    corrupted: Any,
    metric: Metric,
    *,
    senders: Where,
    receivers: Where,
    freeze: Where = None,
    axes: str | Mapping[str, str],
    method: Method = "__call__",
    source: Source = "clean",
    direction: Direction = "denoising",
    batch_size: int = 32,
) -> Effects:
    """Path patching ([Wang et al., 2022](https://arxiv.org/abs/2211.00593);
    [Goldowsky-Dill et al., 2023](https://arxiv.org/abs/2304.05969)): what a place does
    by way of others. For each place of the senders, two runs on the corrupted input:

    1. with the clean run's value at that place of the sender, and all of `freeze` as in
        the corrupted run, so that nothing goes by way of that; what the receivers have
        in this run is kept;
    2. with that at the receivers, and nothing frozen: what comes behind them is
        computed anew. The metric is that of the output.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        class Residual(eqx.Module):
            layers: list[eqx.nn.MLP]

            def __call__(self, x):
                for layer in self.layers:
                    x = x + layer(x)
                return x

        keys = jax.random.split(jax.random.key(0), 3)
        model = Residual([eqx.nn.MLP(4, 4, 8, 1, key=key) for key in keys])
        # From the first layer to the last, but not by way of the one between.
        effects = px.patching.path(
            model, jnp.ones(4), jnp.zeros(4), jnp.sum,
            senders="layers.0", receivers="layers.2:in", freeze="layers.1",
            axes="unit",
        )
        effects["layers.0"].shape  # (4,)
        ```

    **Arguments:**

    - `model`, `method`, `clean`, `corrupted`, `metric`, `source`, `direction`: as those
        of [`peex.patching.sweep`][].
    - `senders`: the sites whose places are patched in turn.
    - `receivers`: the sites by way of which that is to act, all together.
    - `freeze`: the sites by way of which it isn't; `None` for none of them. The place
        of the sender, and receivers, aren't frozen. All three are chosen as by the
        `where` of [`peex.ForwardHook`][]: outputs (`"layers.*.attn"`), arguments
        (`"layers.*.attn.q:in"`), values inside of a module.
    - `axes`: of the senders, as for [`peex.patching.sweep`][].
    - `batch_size`: how many places are run at once.

    **Returns:**

    [`peex.patching.Effects`][]: for each sender the metric, arrays
    `[*swept axes, *metric.shape]`, and that of the two runs. Of a place that is behind
    all receivers it is that of the corrupted run.

    **Raises:**

    Before anything runs: as [`peex.patching.sweep`][], and [`peex.PeexError`][] for a
    receiver that runs before all senders.
    """
    check_direction(direction)
    if batch_size < 1:
        raise TypeError(
            f"`batch_size={batch_size}` is how many places are run at once: a positive "
            "integer."
        )
    chosen = {"senders": senders, "receivers": receivers}
    chosen |= {} if freeze is None else {"freeze": freeze}
    logging, groups = together(model, method, chosen)
    runs = Runs(logging, metric, as_arguments(clean), as_arguments(corrupted))
    shapes, _ = runs.shapes()
    keys = {name: group.names(shapes.log) for name, group in groups.items()}
    mine = {name: shapes.log[key] for key, name in keys["senders"].items()}
    sites = places(mine, axes, None)
    check_source(source, mine, sites)
    _check_order(Times(shapes.log), keys["senders"], keys["receivers"])

    clean_run, corrupted_run = runs.run()
    given, base = given_and_base(direction, clean_run, corrupted_run)
    _, args = given_and_base(direction, runs.clean, runs.corrupted)
    named = lambda log: Log({n: log[key] for key, n in keys["senders"].items()})
    put_in = made_source(source, named(given.log), named(base.log), sites)
    frozen = frozenset(keys.get("freeze", ())) - frozenset(keys["receivers"])
    patterns = groups["receivers"].patterns
    every = patterns_of(groups)
    two_runs = _TwoRuns(
        ForwardHook(model, IdentityHook(), IdentityLog(), where=every, method=method),
        ForwardHook(model, IdentityHook(), None, where=patterns, method=method),
        Log(dict(base.log)),
        put_in,
        metric,
        args,
        tuple(keys["senders"].items()),
        tuple(keys["receivers"]),
        frozen,
        sites,
    )
    values = by_site(sites, _at_all(two_runs, batch_size))
    axis_names = {site.key: tuple(site.names[i] for i in site.swept) for site in sites}
    metrics = clean_run.metric, corrupted_run.metric
    return Effects(values, axis_names, *metrics, base_of(direction))


class _TwoRuns(eqx.Module):
    """The two runs of one place.

    - `first`, `second`: wrappers with a hook at all sites, which are logged, and at the
        receivers.
    - `base`: the values of all sites in the run that is changed.
    - `source`: what is put in, by the user's names of the senders.
    - `args`: of the run that is changed.
    - `senders`: the keys of the senders, with these names.
    - `receivers`, `frozen`: the keys of these.
    """

    first: ForwardHook
    second: ForwardHook
    base: Log
    source: Log
    metric: Metric
    args: tuple[Any, ...]
    senders: tuple[tuple[str, str], ...] = eqx.field(static=True)
    receivers: tuple[str, ...] = eqx.field(static=True)
    frozen: frozenset[str] = eqx.field(static=True)
    sites: tuple[SweptSite, ...] = eqx.field(static=True)

    def __call__(self, place: Int[Array, ""]) -> PyTree[Array]:
        by_name = {site.key: site.mask(place) for site in self.sites}
        sent = {key: (by_name[name], self.source[name]) for key, name in self.senders}
        values = dict(self.base)
        frozen = lambda key: None if key in self.frozen else False
        masks: dict[str, Any] = {key: frozen(key) for key in values}
        for key, (mask, new) in sent.items():
            if key in self.frozen:
                values[key] = jtu.tree_map(_chosen(mask), new, values[key])
            else:
                values[key], masks[key] = new, mask
        _, log = patched(self.first, values, masks)(*self.args)
        received = {key: log[key] for key in self.receivers}
        # Not what was put there: no path leads from a place to itself.
        masks = {key: ~sent[key][0] if key in sent else None for key in received}
        out, _ = patched(self.second, received, masks)(*self.args)
        return measured(self.metric, out)


def _chosen(mask: Bool[Array, "..."]) -> Any:
    return lambda new, old: jnp.where(mask, new, old)


@eqx.filter_jit
def _at_all(two_runs: _TwoRuns, batch_size: int) -> PyTree[Array]:
    """The metric at all places, along a new axis in front."""
    numbers = jnp.arange(sum(site.size for site in two_runs.sites))
    return jax.lax.map(two_runs, numbers, batch_size=batch_size)


def _check_order(
    times: Times, senders: Mapping[str, str], receivers: Mapping[str, str]
) -> None:
    for key, name in receivers.items():
        if not any(times.before(sender, key).any() for sender in senders):
            shown = ", ".join(map(repr, senders.values()))
            raise PeexError(
                f"The receiver {name!r} runs before all of the senders ({shown}), so "
                "no path leads there. Choose receivers that come later, as the "
                "arguments of a later layer: `receivers='layers.3:in'`."
            )
