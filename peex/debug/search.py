"""Finding what made a value or a gradient that isn't finite."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._report.report import report
from .._report.result import Report
from .._sites.patterns import logged_matches
from .._wrappers.plan import check_method
from .._wrappers.run import as_function
from .._wrappers.types import Method, Where
from .blamed import Blame
from .blames import blames_of
from .calls import calls_of
from .causes import backward_causes, Cause, forward_causes, in_gradient
from .drill import drilled, drilled_outside
from .given import bad_leaves, given_badly, sorted_given
from .magnitude import KINDS, kinds
from .nonfinite import NonFinite
from .recorded import Question, record


def find_nonfinite(
    model: Any,
    *args: Any,
    method: Method = "__call__",
    where: Where = "**",
    grad: bool = True,
    ignore: str | Sequence[str] | None = None,
    drill: bool = True,
) -> NonFinite:
    """Runs a model once more and says what is to blame for a value or a gradient that
    isn't finite: which call, in which pass, at which step, in which examples, and which
    operation in it.

    To blame is a call whose output isn't finite although its arguments and its own
    parameters are (of calls within each other, the innermost); in the backward pass,
    one that makes of a finite cotangent one that isn't. So a cause is told from what
    was merely given what isn't finite.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        def loss(model, xs):
            return jnp.mean(jax.vmap(model)(xs))

        linear = eqx.nn.Linear(2, 3, key=jax.random.key(0))
        functions = map(eqx.nn.Lambda, (jax.nn.relu, jnp.log))
        model = eqx.nn.Sequential([linear, *functions])
        found = px.debug.find_nonfinite(model, jnp.ones((4, 2)), method=loss)
        found.first.key, found.first.op  # ('layers.2', 'log')
        str(found)  # what `print` shows
        ```

    **Arguments:**

    - `model`, `*args`: as for the call; `method` says what is called, as for
        [`peex.ForwardHook`][]: the loss of a training step, as a rule. Of a pair
        `(loss, aux)`, the loss is looked at. What isn't a scalar is summed.
    - `where`: which modules are looked at, as for [`peex.ForwardHook`][].
    - `grad`: whether the gradient with respect to the model is looked at too.
    - `ignore`: a pattern over keys, or several: what isn't blamed. As `"**.mask"`, a
        module whose output is meant to be infinite; a parameter by its path, an
        argument as `"args[1]"`.
    - `drill`: whether a second call looks for the operation in what is to blame.

    **Returns:**

    A [`peex.debug.NonFinite`][]. Print it. Sites that can't be brought out are in its
    `lost`.

    **Raises:**

    As [`peex.report`][] for a `where` that matches nothing, and what the model raises
    under `jax.jit`. `found.raise_if_found()` raises [`peex.NonFiniteError`][].
    """
    check_method(model, method)
    fn = as_function(method)
    seen_first = report(model, *args, where=where, method=fn)
    keys = _keys(seen_first)
    question = Question(fn, keys, keys if grad else (), grad, _by_keyword(seen_first))
    recorded, lost = record(question, model, args)
    missing = seen_first.missing.values()
    lost = {m.key: m.why for m in missing if m.kind in ("lost", "rule")} | lost

    ignored = [ignore] if isinstance(ignore, str) else list(ignore or ())
    is_ignored = lambda key: any(logged_matches(p, key) for p in ignored)
    value = KINDS[int(kinds(np.asarray(recorded.value)))]
    gradients = bad_leaves(model, recorded.gradients)
    calls = calls_of(seen_first, recorded)
    given = [b for b in given_badly(model, args, recorded) if not is_ignored(b.key)]
    bad_parameters = bad_leaves(model, recorded.model)
    bad_parameters = {p: k for p, k in bad_parameters.items() if not is_ignored(p)}
    forward = forward_causes(calls, bad_parameters)
    backward = backward_causes(calls, bad_parameters, gradients, value != "finite")
    producers: list[Blame] = []
    masked: list[Blame] = []
    causes: list[tuple[Cause, Blame]] = []
    for cause in (*forward, *backward):
        if is_ignored(cause.seen.key):
            continue
        went_on = cause.went_on
        if not gradients if cause.direction == "backward" else value == "finite":
            went_on = np.zeros_like(cause.mask)
            if cause.direction == "forward" and gradients:
                went_on = in_gradient(cause, backward)
        for mask, into in ((went_on, producers), (cause.mask & ~went_on, masked)):
            found = list(blames_of(dataclasses.replace(cause, mask=mask), calls))
            into += [blame for _, blame in found]
            causes += found
    reached, nowhere = sorted_given(given, calls, bool(producers))
    if value == "finite" and not gradients:
        reached, nowhere = [], given
    producers = [*reached, *producers]
    masked = [*nowhere, *masked]
    if drill and producers:
        wanted = [(c, b) for c, b in causes if b in producers]
        known = drilled(fn, model, args, wanted)
        producers = [known.get(b, b) for b in producers]
    if not producers and (value != "finite" or gradients):
        outside = Blame(
            key=_name(method),
            direction="forward" if value != "finite" else "backward",
            kind=value if value != "finite" else max(gradients.values()),
            source="outside",
        )
        producers = [drilled_outside(fn, model, args, outside) if drill else outside]
    return NonFinite(value, gradients, tuple(producers), tuple(masked), lost)


def _name(method: Method) -> str:
    if isinstance(method, str):
        return method
    return getattr(method, "__name__", type(method).__name__)


def _keys(seen: Report) -> tuple[str, ...]:
    """The sites, at their arguments and their outputs."""
    calls = (call for call in seen.entries.values() if not call.is_inside)
    sites = dict.fromkeys(call.site for call in calls)
    return tuple(key for site in sites for key in (site, f"{site}:in"))


def _by_keyword(seen: Report) -> tuple[str, ...]:
    """The sites that are given floating-point arrays by keyword."""
    calls = [call for call in seen.entries.values() if not call.is_inside]
    floats = lambda x: jnp.issubdtype(x.dtype, jnp.inexact)
    return tuple(
        dict.fromkeys(
            call.site
            for call in calls
            if call.inputs and any(map(floats, jtu.tree_leaves(call.inputs[1])))
        )
    )
