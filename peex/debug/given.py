"""Parameters and arguments that aren't finite."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.tree_util as jtu
import numpy as np

from .._report.parameters import Parameters
from .blamed import Blame
from .calls import Seen
from .magnitude import KINDS, kinds
from .recorded import Recorded


def bad_leaves(tree: Any, magnitudes: Any) -> dict[str, str]:
    """The paths of those arrays of a model that aren't finite, each with its kind."""
    return {path: kind for path, kind, _ in _bad(tree, magnitudes)}


def _bad(model: Any, magnitudes: Any) -> list[tuple[str, str, Any]]:
    known = Parameters(model).by_id
    leaves = jtu.tree_leaves_with_path(eqx.filter(model, eqx.is_inexact_array))
    found = []
    for (path, x), size in zip(leaves, jtu.tree_leaves(magnitudes), strict=False):
        kind = int(kinds(np.asarray(size)))
        if kind:
            uses = known[id(x)].uses if id(x) in known else (jtu.keystr(path),)
            found += [(use, KINDS[kind], x) for use in uses]
    return found


def given_badly(model: Any, args: Sequence[Any], recorded: Recorded) -> list[Blame]:
    """The parameters and arguments that aren't finite."""
    blames = [
        _of_array(path, kind, x, "parameter")
        for path, kind, x in _bad(model, recorded.model)
    ]
    leaves = jtu.tree_leaves_with_path(eqx.filter(tuple(args), eqx.is_inexact_array))
    for (path, x), size in zip(leaves, jtu.tree_leaves(recorded.args), strict=True):
        kind = int(kinds(np.asarray(size)))
        if kind:
            key = f"args{jtu.keystr(path)}"
            blames.append(_of_array(key, KINDS[kind], x, "argument"))
    return blames


def _of_array(key: str, kind: str, x: Any, source: str) -> Blame:
    bad = np.argwhere(~np.isfinite(np.asarray(x).astype(np.complex128)))
    index = tuple(bad[0].tolist())
    return Blame(key=key, direction="forward", kind=kind, source=source, index=index)


def sorted_given(
    given: Sequence[Blame],
    calls: Sequence[Seen],
    others: bool,
) -> tuple[list[Blame], list[Blame]]:
    """Which of the parameters and arguments may have reached something, and which went
    nowhere: a parameter, if all calls of the modules that hold it returned what is
    finite; an argument, if all calls of the model did, and there is something else to
    blame.
    """
    reached, nowhere = [], []
    for blame in given:
        if blame.source == "parameter":
            holders = [seen for seen in calls if blame.key in seen.own_parameters]
        else:
            holders = [seen for seen in calls if others and seen.parent is None]
        outputs = [seen.output for seen in holders if seen.output is not None]
        inert = bool(outputs) and not any(x.bad.any() for x in outputs)
        (nowhere if inert else reached).append(blame)
    return reached, nowhere
