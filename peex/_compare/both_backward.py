"""The backward pass of both sides of a comparison, of one and the same sum."""

import numpy as np

from .._errors import PeexError
from .._text import shown_arrays
from .layouts import moved
from .rows import Compared
from .side_equinox import EquinoxSide
from .side_log import LogSide
from .sides import AbstractSide, Arrays, Backward


def both_backward(
    ours: EquinoxSide, theirs: AbstractSide, compared: Compared
) -> tuple[Backward, Backward]:
    """Of the sum of what both return, each element times a normal number; of a scalar,
    of itself.

    **Raises:** `PeexError` if they don't return the same, or the other has no backward
    pass.
    """
    random = np.random.default_rng(0)
    weights = [_weight(x, random) for x in ours.outputs]
    if isinstance(theirs, LogSide):
        _check_log(ours, theirs)
        return ours.backward(weights), theirs.logged
    pairs, _ = compared.belonging(ours.outputs, theirs.outputs)
    laid_out: list[np.ndarray | None] = [None] * len(theirs.outputs)
    used: set[int] = set()
    for j, (i, layout) in pairs.items():
        w, y = weights[i], theirs.outputs[j]
        if w is not None and y is not None and y.dtype.kind not in "biu":
            laid_out[j] = moved(w, layout, y.shape)
            used.add(i)
    if not used:
        raise PeexError(
            "`grad=True` differentiates what both return, but the model returns "
            f"{_shown(ours.outputs)}, and the other {_shown(theirs.outputs)}, which "
            "have no floating-point array in common. Choose a `method` that returns "
            "what the other does."
        )
    weights = [w if i in used else None for i, w in enumerate(weights)]
    return ours.backward(weights), theirs.backward(laid_out)


def _weight(x: np.ndarray | None, random: np.random.Generator) -> np.ndarray | None:
    if x is None or x.dtype.kind in "biu":
        return None
    numbers = random.normal(size=x.shape) if x.size > 1 else np.ones(x.shape)
    return numbers.astype(np.float32)


def _check_log(ours: EquinoxSide, theirs: LogSide) -> None:
    if not theirs.logged.cotangents:
        raise PeexError(
            "`grad=True` needs the backward pass of the other, and a log of the "
            "forward pass has none. Give `px.Logs(backward=..., forward=...)`, as "
            "`px.value_and_grad` returns them, with the same loss as `method`."
        )
    if [x.shape for x in ours.outputs if x is not None] != [()]:
        raise PeexError(
            "`grad=True` compares with the logs of a loss, but the model returns "
            f"{_shown(ours.outputs)}. Give the loss that was logged as `method`, as in "
            "`method=lambda model, x: jnp.mean(model(x) ** 2)`."
        )


def _shown(arrays: Arrays) -> str:
    return shown_arrays([x for x in arrays if x is not None])
