"""Two arrays side by side: in which order the axes of one are those of the other, and
how far they are apart.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np


# What two values may differ by, next to the largest: of a whole run, by dtype.
_TOLERANCES = {"float64": 1e-9, "complex128": 1e-9, "float32": 1e-4, "complex64": 1e-4}
_TOLERANCES |= {"float16": 1e-2, "bfloat16": 5e-2}
# From which error on two values have nothing in common.
_IN_COMMON = 1e-2
# So many orders of axes are tried.
_MOST = 720

Layout = tuple[int, ...]


def tolerance(*dtypes: str) -> float:
    """For values of these dtypes: that of the coarsest."""
    return max((_TOLERANCES.get(name, 0.0) for name in dtypes), default=0.0) or 1e-4


def error(expected: np.ndarray, got: np.ndarray, scale: float | None = None) -> float:
    """`max(|x - y|) / max(|x|, |y|)`, over all elements. Where one isn't finite, the
    other is to be the same.
    """
    x, y = _wide(expected), _wide(got)
    if x.shape != y.shape:
        return math.inf
    if not x.size or np.array_equal(x, y):
        return 0.0
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    fine = np.isfinite(x) & np.isfinite(y)
    if not np.all(fine | same):
        return math.inf
    x, y = np.where(fine, x, 0), np.where(fine, y, 0)
    largest = max(np.max(np.abs(x)), np.max(np.abs(y)), scale or 0.0)
    return float(np.max(np.abs(x - y)) / largest) if largest else 0.0


def _wide(x: np.ndarray) -> np.ndarray:
    return np.asarray(x).astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def sizes(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape without the axes of one element, which are there or not as one likes."""
    return tuple(n for n in shape if n != 1)


def alike(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Whether an order of axes makes one shape of the other."""
    return sorted(sizes(shape)) == sorted(sizes(other))


def _orders(shape: tuple[int, ...], other: tuple[int, ...]) -> Iterator[Layout]:
    """The orders of axes that make one shape of the other, that which keeps them first
    (if it does).
    """
    if not other:
        yield ()
        return
    for i, n in enumerate(shape):
        if n == other[0]:
            rest = shape[:i] + shape[i + 1 :]
            for order in _orders(rest, other[1:]):
                yield (i, *(j + (j >= i) for j in order))


def moved(x: np.ndarray, layout: Layout, shape: Sequence[int]) -> np.ndarray:
    """An array in the layout of another, of this shape."""
    return np.transpose(x.reshape(sizes(x.shape)), layout).reshape(shape)


class Layouts:
    """The layouts of one comparison. Where two values have nothing in common, since
    something went wrong before, the order of axes is that of values of the same sizes
    that had; or it is kept.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], Layout] = {}

    def best(self, x: np.ndarray, y: np.ndarray) -> tuple[Layout, float] | None:
        """The order of axes with the least error, and that. `None` if there is none."""
        if not alike(x.shape, y.shape):
            return None
        pair = sizes(x.shape), sizes(y.shape)
        orders = itertools.islice(_orders(*pair), _MOST)
        known = self._known.get(pair)
        usual: tuple[Layout, float] | None = None
        found: tuple[Layout, float] | None = None
        for order in sorted(orders, key=lambda order: order != known):
            one = order, error(moved(x, order, y.shape), y)
            usual = usual or one
            found = one if found is None or one[1] < found[1] else found
            if found[1] < 1e-6:
                break
        if found is None or found[1] > _IN_COMMON:
            return usual
        self._known.setdefault(pair, found[0])
        return found
