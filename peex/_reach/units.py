"""To which unit of the state each number of a parameter belongs.

It is found by three derivatives at random values. Where the numbers `g` of a gradient
are `sum_k u_k J[k, p]`, and `J[k, p]` isn't zero for one unit `k` alone, then of two
gradients with other `u` the quotient is that of the two `u_k`, and says which it is.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._errors import PeexError
from .._report.parameters import is_array_or_shape
from .arguments import as_shapes
from .step import pull, Step


_DRAWS = 4


@dataclasses.dataclass(frozen=True)
class Units:
    """- `shape`: of the state.
    - `index`: of each number of the parameter (along axes of size one: of all there)
        the number of its unit.
    """

    shape: tuple[int, ...]
    index_shape: tuple[int, ...]
    index: tuple[int, ...]

    def of(self, state: Any) -> Any:
        """The units in the shape of the parameter."""
        index = np.array(self.index, dtype=np.int32).reshape(self.index_shape)
        return jnp.reshape(state, -1)[index]


def find_units(
    step: Step,
    keys: Sequence[str],
    states: Sequence[str],
    model: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Units, ...]:
    """The units of each parameter.

    **Raises:** `PeexError` if one belongs to several.
    """
    shapes = as_shapes((model, args, kwargs))
    # Concrete numbers, also inside of a `jit`.
    with jax.ensure_compile_time_eval():
        draws = _draws(step, shapes)
    units = []
    for i, key in enumerate(keys):
        found: dict[tuple[int, ...], Any] = {}
        for j, state in enumerate(states):
            shape = step.shapes[j][0]
            index = _index([draw[j][i] for draw in draws], shape)
            if index is None:
                continue
            known = found.setdefault(shape, index)
            both = (known >= 0) & (index >= 0)
            if (known[both] != index[both]).any() or (index == _SEVERAL).any():
                _refuse(key, state, keys)
            found[shape] = np.asarray(np.maximum(known, index))
        if len(found) != 1:
            _refuse(key, ", ".join(states), keys)
        ((shape, index),) = found.items()
        compact = _compact(index)
        if compact is None:
            _refuse(key, ", ".join(states), keys)
        assert compact is not None
        flat = tuple(int(n) for n in compact.reshape(-1))
        units.append(Units(shape, compact.shape, flat))
    return tuple(units)


def _refuse(key: str, state: str, keys: Sequence[str]) -> None:
    others = [k for k in keys if k != key]
    raise PeexError(
        f"{key!r} doesn't belong to one unit: a number of it reaches several units of "
        f"the state ({state}) in one step, or none. With `diagonal=True` each trace is "
        "that of one unit. Leave it out by `where=`, as in "
        f"`where={others or ['cell.weight_hh']!r}`, or keep all of `dh'/dh` "
        "(`diagonal=False`)."
    )


# Unlike a number of a unit: several units, or none that is known.
_SEVERAL, _UNKNOWN = -2, -1


def _random(tree: Any, seed: int) -> Any:
    rng = np.random.default_rng(seed)

    def one(x: Any) -> Any:
        if not is_array_or_shape(x):
            return x
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            keys = jax.random.split(jax.random.key(seed), x.shape)
            return keys if x.shape else jax.random.key(seed)
        if jnp.issubdtype(x.dtype, jnp.inexact):
            return jnp.asarray(rng.normal(size=x.shape), x.dtype)
        return jnp.zeros(x.shape, x.dtype)

    return jtu.tree_map(one, tree)


# For each state and parameter three gradients.
Gradients = Sequence[Sequence[Sequence[np.ndarray]]]


def _draws(step: Step, shapes: Any) -> list[Gradients]:
    """The gradients at several random values."""

    def gradients(dynamic: Any) -> Any:
        model, args, kwargs = eqx.combine(dynamic, static)
        parameters, states, run = step.split(model, args, kwargs)
        new, _, vjp = pull(run, parameters, states)
        zeros = [jnp.zeros_like(x) for x in new]
        found = []
        for j, x in enumerate(new):
            weights = [np.ones(x.size), np.arange(x.size) + 1.0, _weights(x.size)]
            each = [jnp.asarray(w.reshape(x.shape), x.dtype) for w in weights]
            at = [[*zeros[:j], u, *zeros[j + 1 :]] for u in each]
            found.append(list(zip(*(vjp(u)[0] for u in at), strict=True)))
        return found

    dynamic, static = eqx.partition(_random(shapes, 0), eqx.is_array)
    compiled = jax.jit(gradients)
    drawn = [dynamic, *(_random(dynamic, i) for i in range(1, _DRAWS))]
    to_numpy = lambda x: np.asarray(x.astype(jnp.float32), np.float64)
    return [jax.tree.map(to_numpy, compiled(x)) for x in drawn]


def _weights(size: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(1, 2, size)


def _index(draws: Sequence[Sequence[np.ndarray]], shape: tuple[int, ...]) -> Any:
    """The number of the unit of each number of a parameter, by its gradients at several
    values; `None` if they are zero.
    """
    size = int(np.prod(shape))
    weights = _weights(size)
    index = np.full(draws[0][0].shape, _UNKNOWN)
    for ones, numbers, others in draws:
        finite = np.isfinite(ones) & np.isfinite(numbers) & np.isfinite(others)
        if not finite.any():
            continue
        largest = max(np.abs(x[finite]).max(initial=0) for x in (ones, numbers, others))
        sizes = np.abs(ones) + np.abs(numbers) + np.abs(others)
        there = finite & (sizes > 1e-5 * largest)
        with np.errstate(all="ignore"):
            quotient = np.where(there, numbers / ones - 1, 0)
            near = np.clip(np.nan_to_num(quotient, posinf=-1.0), -1, size).round()
            unit = near.astype(int)
            valid = (unit >= 0) & (unit < size)
            expected = weights[np.where(valid, unit, 0)] * ones
        right = (
            valid
            & (np.abs(quotient - unit) < 0.1)
            & (np.abs(others - expected) <= 1e-2 * np.abs(ones))
        )
        mine = np.where(right, unit, _SEVERAL)
        differs = (index >= 0) & (index != mine)
        new = np.where(differs, _SEVERAL, mine)
        index = np.asarray(np.where(there & (index != _SEVERAL), new, index))
    return None if (index == _UNKNOWN).all() else index


def _compact(index: np.ndarray) -> np.ndarray | None:
    """The same along as few axes as possible, so that what no derivative has shown is
    known by what is beside it; `None` if it isn't.
    """
    axes = range(index.ndim)
    for number in range(index.ndim + 1):
        for kept in itertools.combinations(axes, number):
            others = tuple(a for a in axes if a not in kept)
            high = np.asarray(index.max(axis=others, keepdims=True))
            same = (index == high) | (index == _UNKNOWN)
            if same.all() and (high >= 0).all():
                return high
    return None
