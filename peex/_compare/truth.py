"""What rounding alone does to a model: the same in a wider dtype."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .compared import Row
from .layouts import tolerance
from .pairing import Pair
from .rows import Compared, Limits
from .side_equinox import cast, EquinoxSide
from .sides import Visit


# Two runs that round alike are about twice as far apart as each is from the truth.
_ROUNDINGS = 3
# What a value is rounded to when it is stored: so many units in the last place.
_LAST_PLACES = 2


def limits_of(pair: Pair, rtol: float | None) -> Limits:
    """Tolerances by dtype. One call alone rounds less than a whole run."""
    if rtol is not None:
        return Limits(rtol, rtol)
    arrays = (*pair.model.outputs, *pair.other.outputs)
    whole = tolerance(*(x.dtype.name for x in arrays if x is not None))
    return Limits(whole, whole / 10)


class Truth:
    """A model in a wider dtype, next to itself.

    - `rounding`: of each call the error of the model, of the whole run and of the call
        alone.
    """

    def __init__(
        self,
        model: Any,
        args: tuple[Any, ...],
        fn: Callable[..., Any],
        ours: EquinoxSide,
        dtype: Any,
        local: bool,
        rtol: float | None,
    ):
        self._rtol = rtol
        self.dtype = np.dtype(jnp.dtype(dtype))
        if self.dtype.name not in ("float32", "float64"):
            raise ValueError(
                f"`truth` is the dtype that the model is run in to see how it rounds, "
                f"'float32' or 'float64'; got {dtype!r}."
            )
        wide = self.dtype.itemsize > 4
        with jax.enable_x64(True) if wide else contextlib.nullcontext():
            wide_model, wide_args = cast((model, args), self.dtype)
            side = EquinoxSide(wide_model, wide_args, fn)
            named = {(v.key, v.number, v.steps): v for v in side.visits}
            pairs = [
                Pair(visit, named[place], "key")
                for visit in ours.visits
                if (place := (visit.key, visit.number, visit.steps)) in named
            ]
            nothing = lambda pair: Limits(0.0, 0.0)
            compared = Compared(pairs, None, side, nothing, local)
        self.rounding: Mapping[Visit, Limits] = {
            pair.model: Limits(row.error, row.local_error or 0.0)
            for pair, row in zip(pairs, compared.rows, strict=True)
        }

    def said_of(self, rows: Sequence[Row], pairs: Sequence[Pair]) -> list[Row]:
        """The rows with the rounding of each."""
        rounding = lambda pair: self.rounding.get(pair.model, Limits(0.0, 0.0)).whole
        return [
            dataclasses.replace(row, rounding=rounding(pair))
            for row, pair in zip(rows, pairs, strict=True)
        ]

    def limits(self, pair: Pair) -> Limits:
        """An error counts where it exceeds the rounding of the model."""
        least, rtol = tolerance(self.dtype.name), self._rtol
        floors = Limits(least, least / 10) if rtol is None else Limits(rtol, rtol)
        dtypes = [x.dtype for x in pair.model.outputs if x is not None]
        floats = [d for d in dtypes if jnp.issubdtype(d, jnp.inexact)]
        stored = max(
            (_LAST_PLACES * float(jnp.finfo(d).eps) for d in floats), default=0.0
        )
        rounded = self.rounding.get(pair.model, Limits(0.0, 0.0))
        return Limits(
            *(
                max(floor, stored, _ROUNDINGS * mine)
                for floor, mine in zip(floors, rounded, strict=True)
            )
        )
