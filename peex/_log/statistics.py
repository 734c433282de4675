"""What the arrays of a log are like, in a few numbers."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._engine.codec import Encoded
from .._errors import LogValueError


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Of the finite elements of some arrays, in float64; of complex ones, of their
    absolute values.

    - `count`: how many there are.
    - `mean`, `std` (of the population), `low`, `high`.
    - `bad`: how many others there are, NaNs and infinities.
    """

    count: int = 0
    mean: float = 0.0
    square: float = 0.0  # the sum of the squared distances from the mean
    low: float = np.inf
    high: float = -np.inf
    bad: int = 0

    @property
    def std(self) -> float:
        return float(np.sqrt(self.square / self.count))

    def with_more(self, piece: np.ndarray) -> "Statistics":
        """Those of both, as in Chan et al., "Updating Formulae and a Pairwise Algorithm
        for Computing Sample Variances", 1979.
        """
        good = piece[np.isfinite(piece)]
        bad = self.bad + piece.size - good.size
        if good.size == 0:
            return dataclasses.replace(self, bad=bad)
        mean = float(np.mean(good))
        apart, total = mean - self.mean, self.count + good.size
        square = float(np.sum((good - mean) ** 2))
        return Statistics(
            total,
            self.mean + apart * good.size / total,
            self.square + square + apart**2 * self.count * good.size / total,
            min(self.low, float(np.min(good))),
            max(self.high, float(np.max(good))),
            bad,
        )


# How many elements are looked at at once: a log may fill the memory.
_PIECE = 2**20


def statistics(arrays: Iterable[np.ndarray]) -> Statistics:
    """By NumPy: whatever trace is current, these are known now."""
    found = Statistics()
    with np.errstate(all="ignore"):
        for array in arrays:
            for piece in _pieces(array):
                found = found.with_more(piece)
    return found


def _pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    flat = array.reshape(-1)
    for i in range(0, flat.size, _PIECE):
        piece = flat[i : i + _PIECE]
        piece = np.abs(piece) if np.iscomplexobj(piece) else piece
        yield piece.astype(np.float64)


def known(leaf: Any) -> np.ndarray | None:
    """The numbers of a leaf of a log, integers of a backward log decoded; `None` where
    they can't be looked at: of a traced array, one that was donated, or one of which
    another process holds a part; or where they are none, as random keys.
    """
    if isinstance(leaf, Encoded):
        if known(leaf.parts) is None:
            return None
        try:
            return known(leaf.decode())
        except LogValueError:
            return None
    if isinstance(leaf, jax.Array) and (
        isinstance(leaf, Tracer) or leaf.is_deleted() or not leaf.is_fully_addressable
    ):
        return None
    dtype = getattr(leaf, "dtype", None)
    if dtype is None or isinstance(leaf, jax.ShapeDtypeStruct):
        return None
    if not (jnp.issubdtype(dtype, np.number) or dtype == bool):
        return None
    return np.asarray(leaf)
