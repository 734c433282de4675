"""Which parameters of two models are equal, in whatever layout they are."""

import collections
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class _Fingerprint(NamedTuple):
    """What doesn't depend on the order of the elements, in float64."""

    size: int
    sum: float
    squares: float
    epsilon: float  # of the dtype


def _fingerprint(x: np.ndarray) -> _Fingerprint:
    dtype = x.dtype
    wide = x.astype(np.complex128 if dtype.kind == "c" else np.float64)
    # A bfloat16 keeps 8 bits, a float16 11.
    coarse = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
    epsilon = coarse.get(dtype.name, 1e-9 if dtype.itemsize > 4 else 2.0**-24)
    total = complex(np.sum(wide))
    return _Fingerprint(
        x.size, total.real + total.imag, float(np.sum(np.abs(wide) ** 2)), epsilon
    )


def _may_be_equal(a: _Fingerprint, b: _Fingerprint) -> bool:
    if a.size != b.size:
        return False
    near = 8 * max(a.epsilon, b.epsilon)
    largest = max(a.squares, b.squares)
    # Rounding moves a sum by no more than it moves all elements together.
    return (
        abs(a.squares - b.squares) <= 2 * near * largest
        and abs(a.sum - b.sum) <= near * math.sqrt(a.size * largest) + 1e-300
    )


def _are_equal(x: np.ndarray, y: np.ndarray, near: float) -> bool:
    if x.shape == y.shape and np.array_equal(x, y):
        return True  # without sorting, which takes long
    dtype = np.complex128 if "c" in (x.dtype.kind, y.dtype.kind) else np.float64
    sorted_ = (np.sort(z.astype(dtype), axis=None) for z in (x, y))
    a, b = sorted_
    if x.dtype == y.dtype:
        return bool(np.array_equal(a, b))
    return bool(np.max(np.abs(a - b)) <= near * np.max(np.abs(a)))


class SameArrays:
    """Which arrays of one side are equal to which of the other: by fingerprints, and
    then, since two may share one, by their values.
    """

    def __init__(self, a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]):
        prints = [{n: _fingerprint(x) for n, x in side.items()} for side in (a, b)]
        by_size: dict[int, list[str]] = collections.defaultdict(list)
        for name, mine in prints[1].items():
            by_size[mine.size].append(name)
        self.others: dict[str, tuple[str, ...]] = {}
        for name, mine in prints[0].items():
            self.others[name] = tuple(
                other
                for other in by_size[mine.size]
                if mine.size
                and _may_be_equal(mine, prints[1][other])
                and _are_equal(
                    a[name], b[other], 8 * max(mine.epsilon, prints[1][other].epsilon)
                )
            )

    def unique(self) -> dict[str, str]:
        """Those that are equal to one another alone."""
        times = collections.Counter(o for mine in self.others.values() for o in mine)
        ones = {name: o[0] for name, o in self.others.items() if len(o) == 1}
        return {name: other for name, other in ones.items() if times[other] == 1}
