"""Whether two runs can be compared: both in inference, and on the same inputs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import numpy as np

from .._errors import NotCloseError, PeexError
from .._sites.keys import Key
from .._sites.walk import children
from .layouts import Layouts
from .side_torch import is_torch_module


def check_inference(model: Any, which: str) -> None:
    """**Raises:** if a layer is in training mode, or drops out."""
    if is_torch_module(model):
        _check_torch(model, which)
        return
    for key, node in _modules((), model):
        drops = getattr(node, "p", 1) != 0
        if getattr(node, "inference", None) is False and drops:
            raise PeexError(
                f"The {which} isn't in inference mode: {'.'.join(key) or '.'!r} "
                f"({type(node).__name__}) has `inference=False`, so two runs differ by "
                f"chance, or by the batch. Compare `eqx.nn.inference_mode({which})`."
            )


def _check_torch(model: Any, which: str) -> None:
    training = [(name, m) for name, m in model.named_modules() if m.training]
    if not training:
        return
    # The one that matters, if there is one that is known to.
    matters = lambda m: any(n in type(m).__name__ for n in ("Dropout", "BatchNorm"))
    name, module = next((x for x in training if matters(x[1])), training[0])
    raise PeexError(
        f"The {which} is in training mode, in which layers drop out and normalise by "
        f"the batch: {name or '.'!r} ({type(module).__name__}) has `training=True`. "
        f"Compare `{which}.eval()`."
    )


def _modules(key: Key, node: Any) -> Iterator[tuple[Key, Any]]:
    if isinstance(node, eqx.Module):
        yield key, node
    for k, child in children(key, node):
        yield from _modules(k, child)


def check_inputs(
    mine: Mapping[int, np.ndarray], theirs: Sequence[np.ndarray], rtol: float
) -> None:
    """Compares those that are of one kind and fit each other. What only one side is
    given, nobody can compare.

    **Raises:** `NotCloseError` if they differ.
    """
    layouts = Layouts()
    far = {
        (i, j): best[1]
        for i, x in mine.items()
        for j, y in enumerate(theirs)
        if _kind(x) == _kind(y) and (best := layouts.best(x, y)) is not None
    }
    for i, j in sorted(far, key=lambda ij: far[ij]):
        if far.get((i, j), np.inf) <= rtol:
            far = {ij: e for ij, e in far.items() if ij[0] != i and ij[1] != j}
    for i in sorted({i for i, _ in far}):
        least = min(e for ij, e in far.items() if ij[0] == i)
        raise NotCloseError(
            f"The inputs differ: args[{i}], {mine[i].dtype}{list(mine[i].shape)}, is "
            f"{least:.2g} of the largest value away from what the other was given, so "
            "that all that follows differs too. Give both the same: `to_other` makes "
            "the arguments of the other from those of the model. If they are meant to "
            f"differ, `match={{'args[{i}]': None}}`."
        )


def _kind(x: np.ndarray) -> str:
    return {"u": "i", "V": "f"}.get(x.dtype.kind, x.dtype.kind)
