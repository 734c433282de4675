"""What goes from one place to another, to first order: `edges`."""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Inexact

from .._errors import PeexError
from .._hooks.axis_names import ANONYMOUS, AxisNames
from .._hooks.log_fns import IdentityLog
from .._log import Log
from .._sites.patterns import logged_matches
from .._wrappers.backward import BackwardHook
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
from .gradients import linearised, over_inputs
from .groups import Times, together
from .places import names_of
from .runs import as_arguments, run_logged, Runs
from .sources import check_source, made_source
from .wiring import earlier, End, ends_of, joined, stacked


def edges(
    model: Any,
    clean: Any,
    corrupted: Any,
    metric: Metric,
    *,
    senders: Where,
    receivers: Where,
    axes: str | Mapping[str, str],
    method: Method = "__call__",
    source: Source = "clean",
    direction: Direction = "denoising",
    steps: int | None = None,
) -> Effects:
    """Edge attribution patching
    ([Syed et al., 2023](https://arxiv.org/abs/2310.10348)): what would become of the
    metric if one reader, alone, were given one writer's value of the other run, to
    first order, for all pairs at once. Two forward passes and one backward pass.

    It is for models in which what a reader is given is a sum, as a residual stream is.
    An edge is estimated by the metric of the base run plus

    `sum((source - base of the writer) * gradient at what the reader is given)`.

    The sum of that over the writers before a reader is what
    [`peex.patching.attribution`][] says of what that reader is given.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        class Residual(eqx.Module):
            embed: eqx.nn.Linear
            layers: list[eqx.nn.MLP]

            def __call__(self, x):
                x = self.embed(x)
                for layer in self.layers:
                    x = x + layer(x)
                return x

        keys = jax.random.split(jax.random.key(0), 3)
        layers = [eqx.nn.MLP(4, 4, 8, 1, key=key) for key in keys[1:]]
        model = Residual(eqx.nn.Linear(2, 4, key=keys[0]), layers)
        effects = px.patching.edges(
            model, jnp.ones(2), jnp.zeros(2), jnp.sum,
            senders=["embed", "layers.*"], receivers="layers.*:in", axes="_",
        )
        effects.changes()["layers.0 -> layers.1:in"]
        ```

    **Arguments:**

    - `model`, `method`, `clean`, `corrupted`, `source`, `direction`: as those of
        [`peex.patching.sweep`][].
    - `metric`: maps the model's output to one floating-point number.
    - `senders`: the sites whose values are written into the sum: every one that differs
        between the runs.
    - `receivers`: the sites that are given the sum, as `"layers.*.norm:in"`. Both are
        chosen as by the `where` of [`peex.ForwardHook`][].
    - `axes`: the names of the axes that the sites' values have in a log, as for
        [`peex.patching.sweep`][]. Each step of a loop around a site is a writer (or
        reader) of its own, and so is each index of an axis with a name that only
        senders, or only receivers, have. All other named axes are kept; what is `_` is
        summed over.
    - `steps`: if given, the gradient is averaged over so many inputs between those of
        the runs, as by [`peex.patching.attribution`][].

    **Returns:**

    [`peex.patching.Effects`][], with a key for each pair of sites,
    `"embed -> layers.1:in"`: arrays `[*writers, *readers, *named axes]`, of which the
    first are named `"writer_layer"`, `"reader_layer"`. Where the writer isn't before
    the reader, it is the metric of the base.

    **Raises:**

    Before anything runs: as [`peex.patching.attribution`][], and
    [`peex.LogShapeError`][] for values that can't be terms of one sum. Afterwards (but
    not under a JAX transformation): [`peex.PeexError`][] if the senders before a
    receiver don't add up to it.
    """
    check_direction(direction)
    check_steps(steps, "input", source)
    chosen = {"senders": senders, "receivers": receivers}
    logging, groups = together(model, method, chosen)
    runs = Runs(logging, metric, as_arguments(clean), as_arguments(corrupted))
    shapes, _ = runs.shapes()
    check_metric(shapes.metric, "edges")
    sides, logs = [], {}
    for name, group in groups.items():
        keys = group.names(shapes.log)
        logs[name] = {own: shapes.log[key] for key, own in keys.items()}
        mine = _names_of(logs[name], axes)
        sides.append(ends_of(shapes.log, keys, mine))
        check_source(source, logs[name], [end.site for end in sides[-1]])
        check_sites(logs[name], "edges")
    names_of(logs["senders"] | logs["receivers"], axes, swept=False)  # all are used
    writers, readers = joined(*sides)
    args = given_and_base(direction, runs.clean, runs.corrupted)
    if steps is not None:
        check_inputs(*args)

    before = earlier(Times(shapes.log), writers, readers)
    hooked = BackwardHook(
        logging, None, IdentityLog(), where=groups["receivers"].patterns
    )
    given, base, changes, missing = _edges(
        hooked, metric, *args, source, tuple(writers), tuple(readers), before, steps
    )
    metrics = metrics_of(direction, given, base)
    _check_sums(missing, writers, readers, before)
    base_metric, _ = base
    estimate = lambda x: jtu.tree_map(lambda m: m + x.astype(m.dtype), base_metric)
    found = _pairs(changes, writers, readers)
    return Effects(
        {key: estimate(value) for key, (value, _) in found.items()},
        {key: names for key, (_, names) in found.items()},
        *metrics,
        base_of(direction),
    )


def _names_of(
    log: Mapping[str, Any], axes: str | Mapping[str, str]
) -> dict[str, AxisNames]:
    """Of the sites of one side, those that `axes` says of both."""
    if not isinstance(axes, str):
        axes = {
            p: x for p, x in axes.items() if any(logged_matches(p, key) for key in log)
        }
    return names_of(log, axes, swept=False)


@eqx.filter_jit
def _edges(
    hooked: BackwardHook,
    metric: Metric,
    others: tuple[Any, ...],
    args: tuple[Any, ...],
    source: Any,
    writers: tuple[End, ...],
    readers: tuple[End, ...],
    before: Bool[Any, "writers readers"],
    steps: int | None,
) -> tuple[
    Said, Said, Inexact[Array, "writers readers shared"], Float[Array, " readers"]
]:
    """Of the run that gives values, and of the base; what each edge changes of the
    metric; and what part of the change of each reader the writers before it aren't, or
    0 where that is lost in rounding. `args` are those of the base.
    """
    given_metric, given = run_logged(hooked.model, metric, others)
    base_metric, base, gradients = linearised(hooked, metric, args)
    if steps is not None:
        gradients = over_inputs(hooked, metric, args, others, steps)
    eps = max(float(jnp.finfo(jnp.result_type(x)).eps) for x in jtu.tree_leaves(base))

    def of(ends: Sequence[End], log: Log) -> Log:
        return Log({end.site.key: log[end.key] for end in ends})

    def change(ends: Sequence[End]) -> Inexact[Array, "rows shared whole"]:
        mine, sites = of(ends, base), tuple(end.site for end in ends)
        put_in = made_source(source, of(ends, given), mine, sites)
        return stacked(ends, put_in) - stacked(ends, mine)

    written, read = change(writers), change(readers)
    gradient = stacked(readers, of(readers, gradients))
    # JAX's gradient g of a real number in a complex one says that it becomes Re(g dz).
    product = jnp.real(jnp.einsum("wsi,rsi->wrs", written, gradient))
    changes = jnp.where(before[:, :, None], product, 0)

    weights = jnp.asarray(before).astype(written.dtype)
    missing = _norm(read - jnp.einsum("wr,wsi->rsi", weights, written))
    sum_of = lambda rows: _norm(rows) @ weights.real
    size = sum_of(written) + _norm(read)
    values = sum_of(stacked(writers, of(writers, base)))
    values += _norm(stacked(readers, of(readers, base)))
    lost = eps**0.5 * size + 10 * eps * values
    missing = jnp.where(missing > lost, missing / _norm(read), 0)
    return (given_metric, given.counts), (base_metric, base.counts), changes, missing


def _norm(rows: Inexact[Array, "rows shared whole"]) -> Float[Array, " rows"]:
    return jnp.sqrt(jnp.sum(jnp.abs(rows) ** 2, (1, 2)))


def _check_sums(
    missing: Float[Array, " readers"],
    writers: Sequence[End],
    readers: Sequence[End],
    before: Bool[np.ndarray, "writers readers"],
) -> None:
    if isinstance(missing, Tracer) or not np.any(np.asarray(missing)):
        return
    worst = int(np.argmax(np.asarray(missing)))
    reader, at = _at(readers, worst)
    mine = dict.fromkeys(
        _at(writers, i)[0].site.key for i in np.flatnonzero(before[:, worst]).tolist()
    )
    raise PeexError(
        f"The senders don't add up to what the receiver {reader.site.key!r}{at} is "
        f"given: what they lack is {float(missing[worst]):.0%} of how that differs "
        f"between the runs. Those before it: {', '.join(map(repr, mine)) or 'none'}. "
        "Add to `senders` what else is written there, as the embedding, and take "
        "values as they are added (behind a norm or a factor). What is read as a "
        "whole is what `px.patching.attribution(where=...)` is of."
    )


def _at(ends: Sequence[End], row: int) -> tuple[End, str]:
    """Of which site a row is, and where along the axes that tell these apart."""
    for end in ends:
        if row < end.n:
            index = np.unravel_index(row, end.apart)
            names = end.names((*end.steps, *end.own))
            pairs = zip(names, map(int, index), strict=True)
            at = ", ".join(f"{name} {i}" for name, i in pairs)
            return end, f" ({at})" if at else ""
        row -= end.n
    raise IndexError(row)


def _pairs(
    changes: Inexact[Array, "writers readers shared"],
    writers: Sequence[End],
    readers: Sequence[End],
) -> dict[str, tuple[Inexact[Array, "..."], tuple[str, ...]]]:
    """For each pair of sites, the part that is of them, and the names of its axes."""
    # Of many small parts each is a program, unless NumPy cuts them.
    xp = jnp if isinstance(changes, Tracer) else np
    rest, found = xp.asarray(changes), {}
    for i, writer in zip(np.cumsum([w.n for w in writers]), writers, strict=True):
        for j, reader in zip(np.cumsum([r.n for r in readers]), readers, strict=True):
            part = rest[i - writer.n : i, j - reader.n : j]
            shared, _ = reader.sum_shape
            part = part.reshape((*writer.apart, *reader.apart, *shared))
            names = [
                *(f"writer_{n}" for n in writer.names((*writer.steps, *writer.own))),
                *(f"reader_{n}" for n in reader.names((*reader.steps, *reader.own))),
            ]
            whole = [k for k, n in enumerate(names) if n.endswith(f"er_{ANONYMOUS}")]
            names = [n for k, n in enumerate(names) if k not in whole]
            key = f"{writer.site.key} -> {reader.site.key}"
            summed = jnp.asarray(part.sum(tuple(whole)))
            found[key] = summed, (*names, *reader.names(reader.shared))
    return found
