"""What a hooked call hands back: a mapping from keys to what `log_fn` returned."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.export
import jax.tree_util as jtu
from jaxtyping import Array, Int

from .._sites.patterns import nearest
from .._table import html, plain, Table
from .axes import Axis
from .conversions import Convertible
from .keys import chosen, in_order_of_numbers, Patterns
from .merged import decoded, Merged
from .scalars import scalars
from .shown import document, table
from .structure import from_bytes, to_bytes, Unseen
from .together import check_keys, difference, Entries, mapped, stacked


@jtu.register_pytree_with_keys_class
class Log(Convertible):
    """An ordered mapping from site keys to what `log_fn` returned there, in the order
    in which the sites ran. A pytree: its leaves are the logged arrays.

    The further calls of a site in one forward are `"cell#1"`, `"cell#2"`, ...

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import peex as px

        mlp = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))
        _, log = px.ForwardHook(mlp)(jax.numpy.ones(2))
        list(log)  # ['layers.0', 'layers.1']
        log["layers.0"].shape  # (4,)
        ```

    Printed, it is a table: of each array its shape, mean, standard deviation, least and
    greatest element (of the finite ones), and how many aren't finite. In one of more
    than 30 entries, those that differ in numbers alone, as `layers.0` and `layers.1`,
    and are of one shape, are one row. `repr` shows the shapes alone.

    Two are equal if the same sites logged the same values, in the same order.

    **Arguments:**

    - `entries`, `counts`, `axes`: mappings from keys to what is logged there, to how
        often the site ran, and to the axes that it gained. A log of one's own can be
        the source of a [`peex.PatchHook`][].

    **Attributes:**

    - `counts`: how often a site ran (int32, with the step and batch axes of its log),
        for those sites for which that depends on the run: in a branch, in a while loop.
    - `axes`: for each key the leading axes that its arrays gained in the call, each
        with its `kind`, `size`, `loop` and `reverse`. `log.axes["cell"][0].loop` is
        where the loop of a step axis is in the model's source, as `"model.py:12"` (a
        further loop there, `"model.py:12#1"`): those of one loop have one name. It is
        static. A transformation around the wrapper adds its axes in front of these.
    """

    def __init__(
        self,
        entries: Mapping[str, Any] | None = None,
        counts: Mapping[str, Int[Array, "..."]] | None = None,
        axes: Mapping[str, tuple[Axis, ...]] | None = None,
    ):
        self._entries = dict(entries or {})
        self.counts: dict[str, Any] = dict(counts or {})
        self.axes: dict[str, tuple[Axis, ...]] = dict(axes or {})

    def __getitem__(self, key: str) -> Any:
        try:
            entry = self._entries[key]
        except KeyError:
            raise KeyError(
                f"{key!r} is not in the log. Nearest: {nearest(key, self._entries)}"
            ) from None
        return entry.value if isinstance(entry, Merged) else decoded(entry)

    def raw(self, key: str) -> Any:
        """The entry as it is held: integers of a backward log encoded, and what an
        accumulator has merged with what merges it further.
        """
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> Any:
        """Whether the same sites logged the same, in the same order: a bool, or an
        array of one where values are traced.
        """
        if not isinstance(other, Mapping):
            return NotImplemented
        if not isinstance(other, Log):
            other = Log(other)
        entries = list(self.items()), list(other.items())
        return eqx.tree_equal((entries[0], self.counts), (entries[1], other.counts))

    __hash__ = None

    def __ne__(self, other: object) -> Any:
        equal = self.__eq__(other)
        if equal is NotImplemented or isinstance(equal, bool):
            return equal if equal is NotImplemented else not equal
        return ~equal

    def map(self, f: Callable[..., Any], *others: Entries) -> "Log":
        """What a function makes of each array, as `jax.tree.map` does it.

        !!! Example

            ```python
            import equinox as eqx
            import jax
            import jax.numpy as jnp
            import peex as px

            mlp = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))
            _, log = px.ForwardHook(mlp)(jnp.ones(2))
            log.map(jnp.mean)["layers.0"].shape  # ()
            log.map(jnp.add, log)["layers.0"].shape  # (4,)
            ```

        **Arguments:**

        - `f`: a function of one array, and of those at the same place in each of
            `others`, to an array or a pytree of arrays.
        - `others`: further logs (or dicts) with the same keys, in any order.

        **Returns:**

        A log with the keys, in their order, and the `counts` of this one. Of its `axes`
        those that are still in front, as far as the sizes tell: all where `f` keeps the
        shape, none where it makes a number of each array.

        **Raises:**

        [`peex.LogShapeError`][] for logs that have other keys, or entries of another
        structure.
        """
        check_keys(self, others, "map")
        entries, axes = {}, {}
        for key in self:
            here = [log[key] for log in (self, *others)]
            entries[key], mine = mapped(f, key, here, self.axes.get(key, ()))
            axes |= {key: mine} if key in self.axes else {}
        return Log(entries, self.counts, axes)

    def __sub__(self, other: object) -> "Log":
        """The difference of each array to that of another log of the same keys and
        shapes; `True` counts as 1. Of two dtypes, in one that both fit in.

        **Raises:** [`peex.LogShapeError`][] where keys, structures or shapes differ.
        """
        if not isinstance(other, Mapping):
            return NotImplemented
        check_keys(self, [other], "map")
        entries = {key: difference(key, [self[key], other[key]]) for key in self}
        return Log(entries, self.counts, self.axes)

    def select(self, patterns: Patterns) -> "Log":
        """The entries whose keys a pattern matches, or one of several.

        **Arguments:**

        - `patterns`: as for `where`: `"layers.*.attn"`, `"**.norm"`; `"cell"` for all
            calls of `cell`, and `"cell#1"` for the second; `"attn/*"` for values inside
            of a module, `"layers.*:in"` for arguments. (A class or a function can't
            be one, since a log doesn't know the model.)

        **Returns:**

        A log of these, in the order of this one, with their `counts` and `axes`.

        **Raises:**

        [`peex.SiteNotFoundError`][] where a pattern matches nothing; it lists the
        nearest keys.
        """
        keys = chosen(patterns, self, "select")
        return Log(
            {key: self._entries[key] for key in keys},
            {key: self.counts[key] for key in keys if key in self.counts},
            {key: self.axes[key] for key in keys if key in self.axes},
        )

    def stack(self, patterns: Patterns) -> Any:
        """The entries whose keys match, as one, along a new leading axis: of all
        layers, or of all calls of one layer.

        !!! Example

            ```python
            import equinox as eqx
            import jax
            import jax.numpy as jnp
            import peex as px

            mlp = eqx.nn.MLP(4, 4, 4, 2, key=jax.random.key(0))
            _, log = px.ForwardHook(mlp)(jnp.ones(4))
            log.stack("layers.*").shape  # (3, 4): layers, size
            ```

        **Arguments:**

        - `patterns`: as for `select`.

        **Returns:**

        What an entry is, with one more axis in front. The numbers in the keys give its
        order, `layers.2` before `layers.10`; what differs in more than numbers is in
        the order of the log.

        **Raises:**

        [`peex.SiteNotFoundError`][] where a pattern matches nothing,
        [`peex.LogShapeError`][] for entries of different structures, shapes or dtypes.
        """
        keys = in_order_of_numbers(chosen(patterns, self, "stack"))
        return stacked({key: self[key] for key in keys}, patterns)

    def scalars(self, prefix: str = "") -> dict[str, Any]:
        """The numbers of a log by name, as what draws curves of a training takes them:
        `wandb.log(logs.backward.scalars("grad/"))`.

        !!! Example

            ```python
            import equinox as eqx
            import jax
            import jax.numpy as jnp
            import peex as px

            mlp = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))
            _, log = px.ForwardHook(mlp, log_fn=px.MeanStdLog())(jnp.ones(2))
            list(log.scalars("act/"))[:2]  # ['act/layers.0/mean', 'act/layers.0/std']
            ```

        **Arguments:**

        - `prefix`: what is put in front of each name.

        **Returns:**

        A dict from names to Python numbers, or to arrays of shape `()` where they are
        traced. A name is the key; with `"[3]"` behind it for each step where there is a
        number for each step (of a scanned stack, for each layer); and behind that, of a
        number inside of a pytree, its path there, as in `"layers[3]/mean"`.

        **Raises:**

        [`peex.LogShapeError`][] for other arrays: record numbers
        (`log_fn=px.NormLog()`), or reduce them first (`log.map(jnp.mean)`).
        `ValueError` if two numbers have one name.
        """
        return scalars(self._summaries(), self.axes, prefix)

    def _summaries(self) -> dict[str, Any]:
        one = lambda entry: (
            entry.summary if isinstance(entry, Merged) else decoded(entry)
        )
        return {key: one(entry) for key, entry in self._entries.items()}

    def _ipython_key_completions_(self) -> list[str]:
        """What IPython offers behind `log["`."""
        return list(self)

    def __repr__(self) -> str:
        return eqx.tree_pformat(self)

    def __pdoc__(self, **kwargs: Any) -> Any:
        return document(self._shown(), self.counts, kwargs)

    def __str__(self) -> str:
        return plain(self._table())

    def _repr_html_(self) -> str:
        return html(self._table())

    def _table(self) -> Table:
        # In place of the counts JAX may have put something else.
        counts = self.counts if isinstance(self.counts, dict) else {}
        return table(self._shown(), counts)

    def _shown(self) -> dict[str, Any]:
        one = lambda entry: entry.shown if isinstance(entry, Merged) else entry
        return {key: one(entry) for key, entry in self._entries.items()}

    def __treescope_repr__(self, path: Any, subtree_renderer: Any) -> Any:
        # Only treescope itself calls this.
        from treescope import repr_lib  # pyright: ignore[reportMissingImports]

        if self.counts:
            shown = {"entries": dict(self), "counts": self.counts}
            return repr_lib.render_object_constructor(
                type(self), shown, path, subtree_renderer
            )
        return repr_lib.render_dictionary_wrapper(
            type(self), dict(self), path, subtree_renderer
        )

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        children = [(jtu.DictKey(k), v) for k, v in self._entries.items()]
        counts = (jtu.GetAttrKey("counts"), list(self.counts.values()))
        return (*children, counts), self._aux

    def tree_flatten(self) -> tuple[Any, Any]:
        counts = list(self.counts.values())
        return (*self._entries.values(), counts), self._aux

    @property
    def _aux(self) -> tuple[Any, ...]:
        return tuple(self._entries), tuple(self.counts), Unseen(self.axes)

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Sequence[Any]) -> "Log":
        keys, count_keys, unseen = aux
        *values, counts = children
        self = object.__new__(cls)
        self._entries = dict(zip(keys, values, strict=True))
        self.axes = dict(unseen.axes)
        # JAX puts placeholders in place of children, as in the prefix of an in_axes.
        is_list = isinstance(counts, list | tuple)
        self.counts = dict(zip(count_keys, counts, strict=True)) if is_list else counts
        return self


jax.export.register_pytree_node_serialization(
    Log,
    serialized_name="peex.Log",
    serialize_auxdata=to_bytes,
    deserialize_auxdata=from_bytes,
)
