"""What a log can be made into: plain Python, a table of numbers, a file, a picture."""

import abc
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

from . import containers, frame, pictures, written
from .axes import Axis


class Convertible(Mapping[str, Any]):
    """A mapping from keys to pytrees of arrays, with their counts and axes."""

    counts: dict[str, Any]
    axes: dict[str, tuple[Axis, ...]]

    @abc.abstractmethod
    def __init__(self, entries: Any = None, counts: Any = None, axes: Any = None): ...

    @abc.abstractmethod
    def _summaries(self) -> dict[str, Any]:
        """The entries; of an accumulator, what it says is shown of it."""

    def to_dict(self) -> dict[str, Any]:
        """All of it as dicts, lists, strings and numbers, as for JSON.

        !!! Example

            ```python
            import jax.numpy as jnp
            import peex as px

            log = px.Log({"a": jnp.ones(2)})
            log.to_dict()["entries"]  # {'a': [1.0, 1.0]}
            ```

        **Returns:**

        `"entries"`: by key what was logged, arrays as lists, named tuples and modules
        as dicts of their fields. Complex arrays are a dict of `"real"` and `"imag"`,
        random keys their data. `"counts"` likewise. `"axes"`: by key a list of dicts
        with `"kind"`, `"size"` and `"loop"`. (For arrays, a log is a mapping itself:
        `dict(log)`, and of NumPy's `dict(jax.device_get(log))`.)

        **Raises:**

        [`peex.LogValueError`][] where the numbers aren't known, as in a jitted
        function.
        """
        plain = lambda held: {k: containers.as_plain(v, k) for k, v in held.items()}
        return {
            "entries": plain(self),
            "counts": plain(self.counts),
            "axes": {
                key: [dataclasses.asdict(axis) for axis in self.axes[key]]
                for key in self.axes
            },
        }

    def to_dataframe(self, rows: str | Sequence[str] = "step") -> Any:
        """What the numbers of each array are like, as a `pandas.DataFrame`.

        !!! Example

            ```python
            import jax.numpy as jnp
            import peex as px

            log = px.Log({"a": jnp.arange(4.0)})
            log.to_dataframe()["mean"].tolist()  # [1.5]
            ```

        **Arguments:**

        - `rows`: along which axes there is a row each, by their kind: `"step"`,
            `"batch"`, `"device"`, or several of these. The statistics are over all the
            other axes. `()` is one row for each array.

        **Returns:**

        A row for each array, and for each step in it, with the columns `key`; `part`,
        where it is in the entry (if any is inside of a pytree); the place along the
        axes in `rows`: `step` (of nested loops `step`, `step#1`, the outermost first),
        missing where a site hasn't got it; the `shape` and `dtype` that the row is of;
        `mean`, `std` (of the population), `min` and `max` of the finite elements (of
        complex ones, of their absolute values), in float64; `nonfinite`, how many
        others there are; and `ran`, how often the site ran there, of those for which
        that depends on the run. Of one number, `mean` is that.

        **Raises:**

        `ImportError` without pandas, which the extra `experiments` installs.
        `ValueError` for other `rows`. [`peex.LogValueError`][] where the numbers aren't
        known, as in a jitted function.
        """
        return frame.to_dataframe(self._summaries(), self.counts, self.axes, rows)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the log into a file, in the format of
        [safetensors](https://huggingface.co/docs/safetensors), which any library that
        knows that can read: each array is a tensor with the name of its key, or, inside
        of a pytree, with its place there, as `"layers.0/mean"`.

        !!! Example

            ```python
            import pathlib
            import tempfile

            import jax.numpy as jnp
            import peex as px

            path = pathlib.Path(tempfile.mkdtemp()) / "log.safetensors"
            log = px.Log({"a": jnp.ones(2)})
            log.save(path)
            px.Log.load(path) == log  # True
            ```

        **Arguments:**

        - `path`: of the file, usually `*.safetensors`. What is there is overwritten.

        **Raises:**

        `ImportError` without safetensors, which the extra of that name installs.
        [`peex.LogValueError`][] where the numbers aren't known, as in a jitted
        function; and for entries that a file can't hold: other pytrees than dicts,
        lists, tuples, named tuples and modules.
        """
        written.write(path, self, self.counts, self.axes)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a log that `save` has written: the same keys in the same order, the
        same pytrees of arrays, `counts` and `axes`.

        A file of safetensors that something else has written is a log, too: its
        tensors, by name.

        Nothing of a file is run: the class of a named tuple or a module has to be
        imported already.

        **Arguments:**

        - `path`: of the file.

        **Returns:**

        A [`peex.Log`][] of arrays of JAX's; of NumPy's where they are of 64 bits and
        JAX is set to 32.

        **Raises:**

        `ImportError` without safetensors, which the extra of that name installs.
        [`peex.LogValueError`][] for a class that isn't there, and for a file of a later
        version.
        """
        return cls(*written.read(path))

    def plot(self, key: str, ax: Any = None) -> list[Any]:
        """Draws one entry with matplotlib. An array with one axis is a line, one with
        two a picture, in which steps go to the right; in one of both signs zero is
        white, and what isn't finite is grey.

        **Arguments:**

        - `key`: of the entry; `"cell#1"` is the second call of `cell`.
        - `ax`: the axes of matplotlib to draw on; new ones if it isn't given.

        **Returns:**

        A list of `matplotlib.axes.Axes`, one for each array of the entry (numbers
        beside arrays aren't drawn).

        **Raises:**

        [`peex.LogShapeError`][] for arrays with other numbers of axes; it says how to
        choose, as in `log.map(lambda x: x[:, 0]).plot("cell")`. `ImportError` without
        matplotlib, which the extra `experiments` installs. [`peex.LogValueError`][]
        where the numbers aren't known.
        """
        self[key]  # raises for a key that isn't there, and says which are near
        return pictures.plot(key, self._summaries()[key], self.axes.get(key, ()), ax)
