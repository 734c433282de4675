"""What an experiment with two runs hands back: a metric for each place in the model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, PyTree

from .._errors import PeexError, SiteNotFoundError
from .._log.keys import in_order_of_numbers
from .._sites.patterns import logged_matches, nearest
from .._table import Shown, Table
from .frame import metric_name, to_dataframe
from .plot import plot
from .summary import shown_axes, summary


class Top(NamedTuple):
    """One place in a model: the site's key, where along its named axes, and the metric
    there.
    """

    site: str
    at: dict[str, int]
    value: float


class Effects(eqx.Module, Shown):
    """What a metric becomes when something of one run is put into another, for each
    place in the model. A pytree; reads as a mapping from site keys to the metric, whose
    arrays have the swept axes of the site in front: `[*swept, *metric.shape]`.

    [`peex.patching.sweep`][] returns it.

    !!! Example

        ```python
        import jax.numpy as jnp
        import peex as px

        effects = px.patching.Effects(
            {"layers": jnp.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.5]])},
            {"layers": ("layer", "pos")},
            clean=jnp.array(3.0),
            corrupted=jnp.array(1.0),
        )
        effects["layers"].shape  # (2, 3)
        effects.normalised()["layers"][0]  # [0., 0.5, 1.]
        effects.normalised().top(1)  # [Top('layers', {'layer': 0, 'pos': 2}, 1.0)]
        ```

    **Attributes:**

    - `clean`, `corrupted`: the metric of the two runs, `[*metric.shape]`.
    - `axes`: for each site the names of its swept axes, in order.
    - `base`: which of the two runs something was put into: against that one is what a
        place changes.
    """

    clean: PyTree
    corrupted: PyTree
    base: Literal["clean", "corrupted"] = eqx.field(static=True)
    _keys: tuple[str, ...] = eqx.field(static=True)
    _axes: tuple[tuple[str, ...], ...] = eqx.field(static=True)
    _values: tuple[PyTree, ...]

    def __init__(
        self,
        values: Mapping[str, PyTree],
        axes: Mapping[str, Sequence[str]],
        clean: PyTree,
        corrupted: PyTree,
        base: Literal["clean", "corrupted"] = "corrupted",
    ):
        """**Arguments:**

        - `values`: from site keys to the metric there: each array has the swept axes of
            the site in front of the shape that it has in `clean`. What is known to
            first order only is the metric that is estimated.
        - `axes`: from the same keys to the names of the swept axes.
        - `clean`, `corrupted`, `base`: as the attributes.
        """
        self.clean = clean
        self.corrupted = corrupted
        self.base = base
        self._keys = tuple(values)
        self._axes = tuple(tuple(axes[key]) for key in values)
        self._values = tuple(values.values())

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        return dict(zip(self._keys, self._axes, strict=True))

    def __getitem__(self, key: str) -> PyTree:
        if key not in self._keys:
            raise KeyError(
                f"{key!r} isn't a site of these effects. Nearest: "
                f"{nearest(key, self._keys)}"
            )
        return self._values[self._keys.index(key)]

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def keys(self) -> tuple[str, ...]:
        """The keys of the sites, in execution order."""
        return self._keys

    def values(self) -> tuple[PyTree, ...]:
        """What there is for each site."""
        return self._values

    def items(self) -> tuple[tuple[str, PyTree], ...]:
        """The pairs of both."""
        return tuple(zip(self._keys, self._values, strict=True))

    def map(self, fn: Callable[[PyTree], PyTree]) -> "Effects":
        """Makes another metric of this one: chooses one of several, or makes one number
        of many.

        **Arguments:**

        - `fn`: maps the metric to another. The swept axes may be in front of its
            arrays, so it must count axes from the last, as in
            `effects.map(lambda metric: metric["loss"].mean(-1))`.

        **Raises:**

        [`peex.PeexError`][] if it doesn't leave the swept axes where they are.
        """
        values = {key: fn(value) for key, value in self.items()}
        for (key, before), axes in zip(self.items(), self._axes, strict=True):
            n = len(axes)
            swept = {np.shape(x)[:n] for x in jtu.tree_leaves(before)}
            for x in jtu.tree_leaves(values[key]):
                if np.shape(x)[:n] not in swept:
                    raise PeexError(
                        f"The function that `Effects.map` was given makes {np.shape(x)}"
                        f" of the metric at {key!r}: the swept axes {axes} of sizes "
                        f"{swept.pop()} have to stay in front. Count axes from the "
                        "last, as in `effects.map(lambda metric: metric.mean(-1))`."
                    )
        clean, corrupted = fn(self.clean), fn(self.corrupted)
        return Effects(values, self.axes, clean, corrupted, self.base)

    def changes(self) -> "Effects":
        """What each place changes of the metric: that of the run into which something
        is put (`base`) is subtracted from all.

        **Returns:**

        `Effects` in which the metric of the base is 0. Integers and booleans are
        floating-point numbers there.
        """
        base = self.clean if self.base == "clean" else self.corrupted
        return self._affine(base, None)

    def normalised(self) -> "Effects":
        """`(metric - corrupted) / (clean - corrupted)`: 0 is as in the corrupted run, 1
        as in the clean one ([Zhang and Nanda, 2023](https://arxiv.org/abs/2309.16042)).

        **Returns:**

        `Effects` in which `corrupted` is 0 and `clean` 1. Integers and booleans are
        floating-point numbers there.

        **Raises:**

        [`peex.PeexError`][] if the metric is the same in both runs (for one of several
        examples, too). It isn't known under a JAX transformation, where the result is
        then not finite.
        """
        runs = jtu.tree_leaves_with_path(self.clean), jtu.tree_leaves(self.corrupted)
        for (path, clean), corrupted in zip(*runs, strict=True):
            if isinstance(clean, Tracer) or isinstance(corrupted, Tracer):
                continue
            equal = np.argwhere(np.asarray(clean) == np.asarray(corrupted))
            if len(equal):
                name = metric_name(path)
                at = f" at {tuple(equal[0].tolist())}" if np.ndim(clean) else ""
                value = np.asarray(clean)[tuple(equal[0])]
                raise PeexError(
                    f"The {name!r}{at} is {value} in the clean and in the corrupted "
                    "run, so effects can't be normalised to lie between these. Choose "
                    "inputs that differ in it, or read the effects as they are: "
                    "`effects.changes()`."
                )
        scale = jtu.tree_map(_minus, self.clean, self.corrupted)
        return self._affine(self.corrupted, scale)

    def _affine(self, origin: PyTree, scale: PyTree | None) -> "Effects":
        """All metrics, less `origin`, over `scale`."""

        def one(value: PyTree) -> PyTree:
            moved = jtu.tree_map(_minus, value, origin)
            if scale is None:
                return moved
            return jtu.tree_map(lambda x, s: x / _under(s, x), moved, scale)

        values = {key: one(value) for key, value in self.items()}
        clean, corrupted = one(self.clean), one(self.corrupted)
        return Effects(values, self.axes, clean, corrupted, self.base)

    def stack(self, pattern: str) -> PyTree[Array]:
        """The sites that a pattern matches, as `"layers.*"`, along a new axis in front:
        what layers in a list have, in the layout of layers under a scan.

        **Returns:**

        A pytree of arrays `[sites, *swept, *metric.shape]`, in the order of the numbers
        in the keys, as [`peex.Log.stack`][] has it.

        **Raises:**

        [`peex.SiteNotFoundError`][] if the pattern matches nothing,
        [`peex.PeexError`][] if sites don't have the same axes.
        """
        keys = in_order_of_numbers(k for k in self if logged_matches(pattern, k))
        if not keys:
            raise SiteNotFoundError(
                f"The pattern {pattern!r} matches none of the sites of these effects. "
                f"Nearest: {nearest(pattern, self)}."
            )
        first = keys[0]
        shapes = {k: [np.shape(x) for x in jtu.tree_leaves(self[k])] for k in keys}
        for key in keys:
            if (self.axes[key], shapes[key]) != (self.axes[first], shapes[first]):
                raise PeexError(
                    f"{first!r} and {key!r} can't be stacked: the axes of one are "
                    f"{shown_axes(self, first)}, of the other "
                    f"{shown_axes(self, key)}. Choose sites that are alike, as in "
                    f"`effects.stack({first!r})`."
                )
        return jtu.tree_map(lambda *xs: jnp.stack(xs), *(self[key] for key in keys))

    def top(self, k: int = 10) -> list[Top]:
        """The places that change a scalar metric most, whatever the sign: those where
        it is farthest from that of `base`.

        **Returns:**

        At most `k` of `(site, at, value)`, the largest change first: `at` says by name
        where on the swept axes, `value` what is there, which is
        `effects[site][tuple(at.values())]`.

        **Raises:**

        [`peex.PeexError`][] if the metric isn't one number.
        """
        arrays, base = self._scalar("top")
        changes = [np.abs(x - base).ravel() for x in arrays.values()]
        order = np.argsort(-np.concatenate([*changes, np.zeros(0)]), kind="stable")
        ends = np.cumsum([len(x) for x in changes])
        found = []
        for i in order[:k].tolist():
            n = int(np.searchsorted(ends, i, side="right"))
            key = self._keys[n]
            index = np.unravel_index(i - ends[n] + len(changes[n]), arrays[key].shape)
            at = dict(zip(self._axes[n], map(int, index), strict=True))
            found.append(Top(key, at, float(arrays[key][index])))
        return found

    def to_dataframe(self) -> Any:
        """A `pandas.DataFrame` with a row for each place: `site`, a column for each
        named axis (missing where a site hasn't got it), and the metric, `"metric"` or
        by its names in a pytree; an array `"x"` is in columns `"x[0]"`, `"x[1]"`.

        **Raises:**

        `ImportError` without pandas, which the extra `experiments` installs.
        """
        return to_dataframe(dict(self.items()), self.axes)

    def plot(self, labels: Mapping[str, Sequence[Any]] | None = None) -> list[Any]:
        """Draws a scalar metric with matplotlib: for each site with two swept axes a
        picture of the first by the second, and one for all that have the same single
        axis, sites by positions. All have one scale, in whose middle (white) is `base`.

        **Arguments:**

        - `labels`: by the name of a swept axis, what is written along it, as in
            `effects.normalised().plot(labels={"pos": tokens})`.

        **Returns:**

        A list of `matplotlib.axes.Axes`, one for each picture.

        **Raises:**

        [`peex.PeexError`][] if the metric isn't one number, a site has more than two
        swept axes, or labels don't fit. `ImportError` without matplotlib, which the
        extra `experiments` installs.
        """
        arrays, base = self._scalar("plot")
        return plot(arrays, self.axes, base, labels or {})

    def _scalar(self, method: str) -> tuple[dict[str, np.ndarray], float]:
        """The metric as NumPy arrays, and that of the base, if it is one number."""
        leaves = jtu.tree_leaves_with_path(self.clean)
        if len(leaves) != 1 or np.ndim(leaves[0][1]):
            names = [f"{metric_name(p)!r} of shape {np.shape(x)}" for p, x in leaves]
            example = "".join(map(str, leaves[0][0])) if leaves else ""
            example += ".mean(-1)" if leaves and np.ndim(leaves[0][1]) else ""
            raise PeexError(
                f"`Effects.{method}` is for a metric that is one number, but this one "
                f"has {', '.join(names)}. Make one number of it first, as in "
                f"`effects.map(lambda metric: metric{example}).{method}()`."
            )
        as_floats = lambda x: np.asarray(jtu.tree_leaves(x)[0]).astype(float)
        base = self.clean if self.base == "clean" else self.corrupted
        return {k: as_floats(v) for k, v in self.items()}, float(as_floats(base))

    def __repr__(self) -> str:
        sites = ", ".join(f"{key} {shown_axes(self, key)}" for key in self._keys[:3])
        more = f", and {len(self) - 3} more" if len(self) > 3 else ""
        return f"<Effects: {sites}{more}>"

    def _table(self) -> Table:
        return summary(self)


def _minus(x: Any, y: Any) -> Array:
    x, y = _inexact(x), _inexact(y)
    return x - _under(y, x)


def _under(x: Array, y: Array) -> Array:
    """`x` with as many axes as `y`, of its dtype."""
    return x.reshape((1,) * (y.ndim - x.ndim) + x.shape).astype(y.dtype)


def _inexact(x: Any) -> Array:
    x = jnp.asarray(x)
    is_inexact = jnp.issubdtype(x.dtype, jnp.inexact)
    return x if is_inexact else x.astype(jnp.result_type(float))
