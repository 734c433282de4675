"""Activation patching at all places of a model: `sweep`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from .._hooks.hooks import IdentityHook
from .._hooks.log_fns import IdentityLog
from .._hooks.logged_call import LoggedCall
from .._log import Log
from .._wrappers.forward import ForwardHook
from .._wrappers.types import Method, Where
from .chunks import Program
from .direction import (
    base_of,
    check_direction,
    Direction,
    given_and_base,
    Metric,
    Source,
)
from .effects import Effects
from .places import by_site, places
from .runs import as_arguments, Runs
from .skipped import itself, reported, skipped as skipped_of, WithCalls
from .sources import check_source, made_source


def sweep(
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
    windows: int | Mapping[str, int] | None = None,
    batch_size: int = 32,
    max_bytes: int | None = None,
    progress: bool = True,
) -> Effects:
    """Activation patching at every place
    ([Vig et al., 2020](https://arxiv.org/abs/2004.12265);
    [Meng et al., 2022](https://arxiv.org/abs/2202.05262)): for each place the model is
    run on the corrupted input, with what the clean run has there put in, and the metric
    of its output says how much that brings back.

    A place is a point on the named axes of a site: one layer at one position, one head.
    They are all run by one compiled program, some at a time, that the next sweep with
    the same model and the same metric uses again. Calls before all that is patched in
    one chunk aren't made, since it is known what they return: layers below, or earlier
    steps of a scan. (Of a layer with parameters, that runs always, and in which the
    model takes no derivatives; effects of its Python code happen once, while it is
    traced.)

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
        effects = px.patching.sweep(
            cell,
            clean,
            -clean,
            jnp.sum,
            method=run,
            where=".",
            axes="time unit",
        )
        effects["."].shape  # (5, 4)
        effects.normalised().top(3)  # which unit at which time
        ```

    **Arguments:**

    - `model`, `method`, `where`, `pre_hook`: as those of [`peex.ForwardHook`][]. The
        chosen sites are what is patched, each of them by itself. Names of your own,
        values inside of a forward pass and arguments may stand side by side:
        `where={"resid": "layers", "z": "layers.attn.o_proj:in"}`.
    - `clean`, `corrupted`: what the model is called with in the two runs: a tuple of
        arguments, or one.
    - `metric`: maps the model's output to a pytree of arrays: a number, several, or one
        for each example where inputs are batches. It is part of the program, so define
        it once: another function, if only by another `lambda`, is compiled again.
    - `axes`: the names of the axes that the sites' values have in a log (steps, batch
        axes, those of the value), in that order: `"layer pos _"`. Named axes are gone
        along, `_` is patched whole; `"layer _ (head=9 _)"` splits the last axis into 9
        heads. Or a dict from patterns over keys to these (the first that matches).
    - `source`: what is put in. `"clean"`: what the other run has there. `"zero"`:
        zeros. `"mean"`: the other run's mean over the axes that are patched whole, but
        the last: of `"layer _ pos _"`, with examples along the first `_`, over these.
        Or a [`peex.Log`][] of the same sites and shapes.
    - `direction`: `"denoising"` puts values of the clean run into the corrupted one,
        `"noising"` those of the corrupted run into the clean one ([Heimersheim and
        Nanda, 2024](https://arxiv.org/abs/2404.15255), say what each of them shows).
    - `windows`: how many neighbours along the axis `"layer"` are patched at once, or a
        dict by the names of swept axes: `{"layer": 3}`. The window of index `i` are
        layers `i`, `i + 1`, `i + 2`, so there are two fewer windows than layers. Or by
        patterns over sites of one shape, for layers in a list: with `{"layers.*": 3}`,
        the effects at `"layers.0"` are of the first three at once, in the order in
        which they run.
    - `batch_size`: how many places are run at once (at most: chunks are made equal).
    - `max_bytes`: how much memory that may take: what the compiled program needs for
        temporaries and outputs, and all metrics together. The largest batch size that
        fits is taken; each one that is tried is compiled. The two logs, and what the
        model is given, aren't counted.
    - `progress`: whether to show a progress bar over the chunks, where tqdm is
        installed, of a sweep that takes longer than a second.

    **Returns:**

    [`peex.patching.Effects`][]: for each site the metric of the patched runs, arrays
    `[*swept axes, *metric.shape]`, and that of the two runs as they are.

    **Raises:**

    Before anything runs: [`peex.LogShapeError`][] if a site's shape differs between the
    runs, or from that in `source`; [`peex.SiteNotFiredError`][] if a site runs in one
    of them alone; [`peex.HookShapeError`][] if the names don't fit a site's axes;
    [`peex.PeexError`][] where `axes` names none of a site's axes, a site's value has
    several arrays, or windows don't fit; `TypeError` for arguments of other types.
    [`peex.LogTooLargeError`][] if one place at a time would take more than `max_bytes`.
    """
    check_direction(direction)
    if batch_size < 1:
        raise TypeError(
            f"`batch_size={batch_size}` is how many places are run at once: a positive "
            "integer."
        )
    sweeping = {"where": where, "pre_hook": pre_hook}
    logging = ForwardHook(model, None, IdentityLog(), method=method, **sweeping)
    runs = Runs(logging, metric, as_arguments(clean), as_arguments(corrupted))
    shapes, _ = runs.shapes()
    sites = places(shapes.log, axes, windows)
    check_source(source, shapes.log, sites)

    _, args = given_and_base(direction, runs.clean, runs.corrupted)
    at_once = sum(site.size for site in sites) <= batch_size
    found = reported(model, method, where, args)
    skipped = skipped_of(found, sites, pre_hook, at_once)
    if skipped is None:
        patched = ForwardHook(model, IdentityHook(), None, method=method, **sweeping)
    else:
        calls = {"where": skipped.where, "method": method}
        logging_calls = ForwardHook(model, None, itself, **calls)
        logging = ForwardHook(logging_calls, None, IdentityLog(), **sweeping)
        runs = dataclasses.replace(runs, hooked=logging, metric=WithCalls(metric))
        skipping = ForwardHook(model, LoggedCall(Log(), {}), None, **calls)
        patched = ForwardHook(skipping, IdentityHook(), None, **sweeping)

    clean_run, corrupted_run = runs.run()
    given, base = given_and_base(direction, clean_run, corrupted_run)
    metrics, known = (clean_run.metric, corrupted_run.metric), None
    if skipped is not None:
        known = skipped, base.metric[1]
        metrics = clean_run.metric[0], corrupted_run.metric[0]
    put_in = made_source(source, given.log, base.log, sites)
    program = Program(patched, put_in, sites, metric, args, known)
    size = program.batch_size(batch_size, max_bytes, shapes.metric)
    values = by_site(sites, program.run(size, progress))
    axis_names = {
        site.key: tuple(site.names[i] for i in site.swept)
        for site in sites
        if site.key in values
    }
    return Effects(values, axis_names, *metrics, base_of(direction))
