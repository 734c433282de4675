"""Which statistics of a site are wanted, and what is recorded of a value for them."""

from collections.abc import Callable
from typing import Any, NamedTuple, TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array, Bool, Float, PyTree

from .._hooks.log_fns import AbstractLog, HistogramLog
from . import numbers


if TYPE_CHECKING:
    Statistic = str | HistogramLog
else:
    Statistic = Any  # checked by peex itself, whose error says what to write instead


DEFAULT = ("mean", "rms", "std", "max", "zeros", "nonfinite", "headroom", "footroom")
_OF_DTYPE = ("flushed", "saturated")
NAMES = (*DEFAULT, "highest", *_OF_DTYPE, "entropy", "dead", "out_over_in")
# What is recorded for each; that of `rms` and `footroom` alone is less than `moments`.
_PARTS = {
    "mean": "moments",
    "std": "moments",
    "rms": "squares",
    "footroom": "squares",
    "out_over_in": "squares",
    "headroom": "max",
}


class Wanted(NamedTuple):
    """What is made of numbers that were recorded.

    - `names`: of the statistics.
    - `dtype`: to whose limits headroom is.
    - `edges`: of the histogram; `None` for none.
    """

    names: tuple[str, ...]
    dtype: Any
    edges: tuple[float, ...] | None


class Recorded(eqx.Module):
    """What was recorded of one array, all in floating point, since it may travel as a
    cotangent; zeros where nothing was.

    - `numbers`: as the functions of `numbers` make them, in one array, since each array
        costs; `named` are their names.
    - `units`, `histogram`: which units were alive, and the counts, if wanted.
    - `wanted`: what is made of all this.
    """

    numbers: Float[Array, "... n"]
    units: Float[Array, "... units"] | None
    histogram: Float[Array, "... bins"] | None
    named: tuple[str, ...] = eqx.field(static=True)
    wanted: Wanted = eqx.field(static=True)

    @property
    def by_name(self) -> dict[str, Float[Array, "..."]]:
        return {name: self.numbers[..., i] for i, name in enumerate(self.named)}

    @property
    def axes(self) -> tuple[int, ...]:
        """The sizes of the axes that it gained."""
        return tuple(self.numbers.shape[:-1])


class Stats(AbstractLog):
    """Which statistics a [`peex.monitoring.Monitor`][] keeps of a site, of all elements
    of its values that are finite, over all steps, examples and devices.

    - `"mean"`, `"std"`, `"rms"`: `sum(x) / n`, `sqrt(sum((x - mean)^2) / n)`,
        `sqrt(sum(x^2) / n)`.
    - `"max"`, `"highest"`: `max(abs(x))`, `max(x)`.
    - `"zeros"`: the share of elements that are zero.
    - `"nonfinite"`: how many are infinite or NaN.
    - `"headroom"`: `log2(largest number / max)`, in bits: how far the largest element
        is from overflowing its dtype.
    - `"footroom"`: `log2(rms / smallest normal number)`, in bits: how far a typical
        element is from being flushed to zero.
    - `"flushed"`, `"saturated"`: the share that `dtype` would flush (not zero, but
        smaller than its smallest normal number) or saturate (beyond its largest one).
    - `"entropy"`: of probabilities along the last axis, `-sum(p log(p))` in nats, the
        mean over rows.
    - `"dead"`: the share of units (an index into the last axis) that were zero all the
        time.
    - `"out_over_in"`: the rms of a module's output over that of its arguments.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        def loss(model, xs):
            return jnp.mean(jax.vmap(model)(xs) ** 2)

        mlp = eqx.nn.MLP(2, 1, 8, depth=2, key=jax.random.key(0))
        px.monitoring.Monitor(
            loss,
            forward=px.monitoring.Stats("rms", "dead", px.HistogramLog([-1, 0, 1])),
            backward=px.monitoring.Stats("rms", "max", dtype="float16"),
        )
        ```

    As the log of a wrapper it records, of each array, the numbers from which these are
    had.
    """

    names: tuple[str, ...] = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)
    unit_axis: int = eqx.field(static=True)
    edges: tuple[float, ...] | None = eqx.field(static=True)

    def __init__(self, *statistics: Statistic, dtype: Any = None, unit_axis: int = -1):
        """**Arguments:**

        - `statistics`: names out of the table, and a [`peex.HistogramLog`][] if the
            counts between its edges are wanted. By default: `"mean"`, `"rms"`, `"std"`,
            `"max"`, `"zeros"`, `"nonfinite"`, `"headroom"` and `"footroom"`.
        - `dtype`: a floating point dtype that the values aren't in, as `"float16"`.
            With it, `"flushed"` and `"saturated"` are kept too, and `"headroom"` and
            `"footroom"` are to its limits rather than those of the values' own dtype.
        - `unit_axis`: which axis of a value is that of units, for `"dead"`: the first
            one (0) of a convolution.

        **Raises:** `ValueError` for a name that isn't there.
        """
        names = [x for x in statistics if isinstance(x, str)]
        others = [x for x in statistics if not isinstance(x, str)]
        if len(others) > 1 or not all(isinstance(x, HistogramLog) for x in others):
            shown = ", ".join(type(x).__name__ for x in others)
            raise ValueError(
                "`px.monitoring.Stats` takes names of statistics and one "
                f"`px.HistogramLog`, as in `Stats('rms', 'max')`; got {shown}."
            )
        for name in names:
            if name not in NAMES:
                raise ValueError(
                    f"`px.monitoring.Stats` was given {name!r}, which isn't the name "
                    f"of a statistic. There are: {', '.join(NAMES)}."
                )
        if not statistics:
            names = list(DEFAULT)
        self.dtype = None if dtype is None else _float_dtype(dtype)
        if dtype is not None:
            names += [x for x in _OF_DTYPE if x not in names]
        elif any(name in _OF_DTYPE for name in names):
            raise ValueError(
                "`'flushed'` and `'saturated'` are what another dtype would do: say "
                "which, as in `px.monitoring.Stats('rms', dtype='float16')`."
            )
        self.names = tuple(dict.fromkeys(names))
        self.unit_axis = unit_axis
        self.edges = tuple(map(float, others[0].edges)) if others else None

    def __call__(self, value: PyTree[Any]) -> PyTree[Any]:
        return jtu.tree_map(self._one, lax.stop_gradient(value))

    def _one(self, x: Any) -> Recorded | None:
        if not hasattr(x, "dtype") or jnp.issubdtype(x.dtype, jax.dtypes.extended):
            return None
        if jnp.size(x) == 0:
            shapes = jax.eval_shape(self._one, jax.ShapeDtypeStruct((1,), x.dtype))
            return jtu.tree_map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        dtype, x = jnp.dtype(x.dtype), numbers.as_numbers(x)
        parts = {_PARTS.get(name, name) for name in self.names}
        made: dict[str, Array] = {}
        if "zeros" in parts:
            made["zeros"], bad = numbers.zeros_and_nonfinite(x)
        else:
            bad = numbers.nonfinite(x)
        if "nonfinite" in parts:
            made["nonfinite"] = bad
        rows = {}
        if "moments" in parts:
            rows["values"] = numbers.moments(x, bad)
        elif "squares" in parts:
            rows["values"] = numbers.squares(x, bad)
        if "entropy" in parts:
            rows["entropy"] = numbers.entropy(x if x.ndim else x[None])
        for of, found in rows.items():
            made |= {f"{of}.{name}": y for name, y in found.items()}
        for name, number in self._formulas().items():
            if name in parts:
                made[name] = number(x)
        made["size"] = jnp.asarray(x.size, x.dtype)
        counts = None if self.edges is None else HistogramLog(self.edges)(x)
        return Recorded(
            jnp.stack(list(made.values())),
            numbers.alive(x, self.unit_axis) if "dead" in parts else None,
            None if counts is None else counts.astype(x.dtype),
            tuple(made),
            Wanted(self.names, self.dtype or dtype, self.edges),
        )

    def _formulas(self) -> dict[str, Callable[[Any], Array]]:
        return {
            "max": numbers.largest,
            "highest": numbers.highest,
            "flushed": lambda x: numbers.flushed(x, self.dtype),
            "saturated": lambda x: numbers.saturated(x, self.dtype),
        }


class Switched(AbstractLog):
    """Records what another log does, or zeros where `on` is false, where nothing is
    read.
    """

    log_fn: AbstractLog
    on: bool | Bool[Array, ""]

    def __call__(self, value: PyTree[Any]) -> PyTree[Any]:
        shapes = jax.eval_shape(self.log_fn, value)
        nothing = lambda _: jtu.tree_map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        if isinstance(self.on, bool):
            return self.log_fn(value) if self.on else nothing(value)
        # It is one for all examples and steps, so that this stays a branch.
        return lax.cond(self.on, self.log_fn, nothing, value)


def _float_dtype(dtype: Any) -> Any:
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        found = None
    if found is None or not jnp.issubdtype(found, jnp.floating):
        raise ValueError(
            "The `dtype` of `px.monitoring.Stats` is a floating point dtype, as "
            f"'float16' or `jnp.float8_e4m3fn`; got {dtype!r}."
        )
    return found
