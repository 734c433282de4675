"""What a hooked call hands back: a mapping from keys to what `log_fn` returned."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.export
import jax.tree_util as jtu
from jaxtyping import Array, Int

from ._engine.codec import Encoded
from ._engine.loops import Loop
from ._engine.messages import Axes
from ._sites.patterns import nearest


@dataclasses.dataclass(frozen=True)
class Axis:
    """A leading axis of a log. Unpacked, `kind, size = axis`.

    - `kind`: `"device"`, `"step"` or `"batch"`.
    - `size`: how long it is.
    - `loop`: of a step axis, where its loop is in the model's source: file and line of
        the function that it runs, as `"model.py:12"`. A further loop there is
        `"model.py:12#1"`: two axes have one name if, and only if, they are of one loop.
        `None` for other axes.
    """

    kind: str
    size: Any
    loop: str | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.kind, self.size))


def described(gained: Mapping[Any, Axes]) -> dict[Any, tuple[Axis, ...]]:
    """The axes of what is logged in one call, in order, as users see them."""
    names: dict[tuple[Loop, ...], str] = {}
    seen: dict[str, int] = {}

    def name(loops: tuple[Loop, ...]) -> str:
        if loops not in names:
            where = loops[-1].where
            n = seen[where] = seen.get(where, -1) + 1
            names[loops] = where if n == 0 else f"{where}#{n}"
        return names[loops]

    def size(n: Any) -> Any:
        return int(n) if isinstance(n, int) else n  # a symbolic one of `jax.export`

    def one(axes: Axes) -> tuple[Axis, ...]:
        devices = (Axis("device", size(n)) for n in axes.devices)
        steps = (
            Axis("step", size(n), name(axes.loops[: i + 1]))
            for i, n in enumerate(axes.steps)
        )
        batch = (Axis("batch", size(n)) for n in axes.batch)
        return (*devices, *steps, *batch)

    return {
        key: one(axes) if axes.steps or axes.batch or axes.devices else ()
        for key, axes in gained.items()
    }


class _Unseen:
    """Rides in the structure of a log without being part of what that is: logs of equal
    keys can be mapped together, and are alike to a jitted function.
    """

    def __init__(self, axes: dict[str, tuple[Axis, ...]]):
        self.axes = axes

    def __eq__(self, other: object) -> bool:
        return type(other) is _Unseen

    def __repr__(self) -> str:
        return "<axes>"

    def __hash__(self) -> int:
        return 0


@jtu.register_pytree_with_keys_class
class Log(Mapping[str, Any]):
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

    Two are equal if the same sites logged the same values, in the same order.

    **Arguments:**

    - `entries`, `counts`, `axes`: mappings from keys to what is logged there, to how
        often the site ran, and to the axes that it gained. A log of one's own can be
        the source of a [`peex.PatchHook`][].

    **Attributes:**

    - `counts`: how often a site ran (int32, with the step and batch axes of its log),
        for those sites for which that depends on the run: in a branch, in a while loop.
    - `axes`: for each key the leading axes that its arrays gained in the call, each
        with its `kind`, `size` and `loop`. `log.axes["cell"][0].loop` is where the loop
        of a step axis is in the model's source, as `"model.py:12"` (a further loop
        there, `"model.py:12#1"`): those of one loop have one name. It is static. A
        transformation around the wrapper adds its axes in front of these.
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
        is_encoded = lambda x: isinstance(x, Encoded)
        return jtu.tree_map(
            lambda x: x.decode() if is_encoded(x) else x, entry, is_leaf=is_encoded
        )

    def raw(self, key: str) -> Any:
        """The entry as it is held: integers of a backward log encoded."""
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

    def __repr__(self) -> str:
        counts = f", counts={self.counts}" if self.counts else ""
        return f"Log({dict(self)}{counts})"

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
        return tuple(self._entries), tuple(self.counts), _Unseen(self.axes)

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


def _to_bytes(aux: Any) -> bytes:
    *keys, unseen = aux
    axes = unseen.axes
    plain = {key: [dataclasses.astuple(x) for x in mine] for key, mine in axes.items()}
    return json.dumps((*keys, plain), default=str).encode()


def _from_bytes(data: bytes) -> Any:
    keys, count_keys, axes = json.loads(data)
    as_axes = {key: tuple(Axis(*axis) for axis in mine) for key, mine in axes.items()}
    return tuple(keys), tuple(count_keys), _Unseen(as_axes)


jax.export.register_pytree_node_serialization(
    Log,
    serialized_name="peex.Log",
    serialize_auxdata=_to_bytes,
    deserialize_auxdata=_from_bytes,
)
