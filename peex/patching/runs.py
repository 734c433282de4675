"""The two runs of an experiment, clean and corrupted: what they log, and that they can
be compared.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

from .._errors import LogShapeError, SiteNotFiredError
from .._log import Log
from .._sites.patterns import nearest
from .._text import shown_arrays
from .._wrappers.forward import ForwardHook


@dataclasses.dataclass(frozen=True)
class Run:
    """One run: what the metric is of its output, and what its sites logged. Of arrays,
    or of their shapes.
    """

    metric: PyTree
    log: Log


@dataclasses.dataclass(frozen=True)
class Runs:
    """Both runs, by their arguments, which aren't run unless they are asked for.

    - `hooked`: a wrapper that logs values at the chosen sites.
    - `metric`: maps an output to a pytree of arrays.
    - `clean`, `corrupted`: the arguments.
    """

    hooked: ForwardHook
    metric: Callable[[Any], Any]
    clean: tuple[Any, ...]
    corrupted: tuple[Any, ...]

    def shapes(self) -> tuple[Run, Run]:
        """Both, traced only.

        **Raises:** if the sites of one don't have the keys and shapes of the other's.
        """
        # What is jitted is traced once for this and for running it.
        both = lambda *args: [run_logged(self.hooked, self.metric, one) for one in args]
        made = eqx.filter_eval_shape(both, self.clean, self.corrupted)
        clean, corrupted = (Run(*run) for run in made)
        _check_alike(clean.log, corrupted.log)
        return clean, corrupted

    def run(self) -> tuple[Run, Run]:
        """Runs both.

        **Raises:** if a site that runs under a condition did so in one of them alone.
        """
        clean = Run(*run_logged(self.hooked, self.metric, self.clean))
        corrupted = Run(*run_logged(self.hooked, self.metric, self.corrupted))
        check_counts(clean.log, corrupted.log)
        return clean, corrupted


def as_arguments(args: Any) -> tuple[Any, ...]:
    """The arguments of a run: a tuple of them, or one alone."""
    return args if type(args) is tuple else (args,)


# What it is given is an argument: the next call with the same shapes is compiled.
@eqx.filter_jit
def run_logged(
    hooked: ForwardHook, metric: Callable[[Any], Any], args: tuple[Any, ...]
) -> tuple[PyTree, Log]:
    out, log = hooked(*args)
    return measured(metric, out), log


def measured(metric: Callable[[Any], Any], out: Any) -> PyTree:
    """The metric of an output, as arrays."""
    value = metric(out)
    leaves = jtu.tree_leaves(value)
    types = jax.Array, np.ndarray, np.generic, bool, int, float, complex
    wrong = [x for x in leaves if not isinstance(x, types)]
    if wrong or not leaves:
        raise TypeError(
            f"The metric returned {wrong[0] if wrong else value!r}, which isn't a "
            "pytree of arrays. It is given the model's output, as in "
            "`metric=lambda logits: logits[-1, 42]`."
        )
    return jtu.tree_map(jnp.asarray, value)


def _check_alike(clean: Log, corrupted: Log) -> None:
    for key in [*clean, *corrupted]:
        runs = {"clean": clean, "corrupted": corrupted}
        without = [name for name, log in runs.items() if key not in log]
        if without:
            (other,) = (name for name in runs if name not in without)
            both = nearest(key, [k for k in clean if k in corrupted])
            raise SiteNotFiredError(
                f"The site {key!r} runs in the {other} run only, so nothing of the "
                f"{without[0]} run can be put in its place. Choose sites that run in "
                f"both with `where`: {both}."
            )
        shown = [shown_arrays(log[key]) for log in runs.values()]
        if shown[0] != shown[1]:
            raise LogShapeError(
                f"The site {key!r} logs {shown[0]} in the clean run and {shown[1]} in "
                "the corrupted one. Give both runs inputs of the same shapes and "
                "dtypes: pad prompts, or choose ones with as many tokens."
            )


def check_counts(clean: Log, corrupted: Log) -> None:
    """**Raises:** if a site that runs under a condition did so in one run alone."""
    for key, count in clean.counts.items():
        other = corrupted.counts[key]
        if isinstance(count, Tracer) or isinstance(other, Tracer):
            continue
        ran, ran_there = np.asarray(count) > 0, np.asarray(other) > 0
        if np.array_equal(ran, ran_there):
            continue
        raise SiteNotFiredError(
            f"The site {key!r} runs under a condition, {int(np.sum(count))} times in "
            f"the clean run and {int(np.sum(other))} times in the corrupted one, or "
            "not at the same steps: what didn't run can't be put in its place. Choose "
            "other sites with `where`, or inputs that take the same branches."
        )
