"""What a hooked call hands back: the log, a mapping from keys to what `log_fn` made.

The way from the engine's records to a log is here too: numbering the calls of a site
(which can only be done once all levels are merged, since JAX reuses traced programs),
and the encoding of integer logs in the backward pass, where only floating point
cotangents exist.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Int

from . import _compat
from ._engine.site import Site
from ._errors import LogValueError


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

    - `entries`, `counts`: mappings from keys to what is logged there, and to how often
        the site ran. A log of one's own can be the source of a [`peex.PatchHook`][].

    **Attributes:**

    - `counts`: how often a site ran (int32, with the step and batch axes of its log),
        for those sites for which that depends on the run: in a branch, in a while loop.
    """

    def __init__(
        self,
        entries: Mapping[str, Any] | None = None,
        counts: Mapping[str, Int[Array, "..."]] | None = None,
    ):
        self._entries = dict(entries or {})
        self.counts: dict[str, Any] = dict(counts or {})

    def __getitem__(self, key: str) -> Any:
        try:
            entry = self._entries[key]
        except KeyError:
            from ._sites.patterns import nearest

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
        return (*children, counts), (tuple(self._entries), tuple(self.counts))

    def tree_flatten(self) -> tuple[Any, Any]:
        counts = list(self.counts.values())
        aux = tuple(self._entries), tuple(self.counts)
        return (*self._entries.values(), counts), aux

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Sequence[Any]) -> "Log":
        keys, count_keys = aux
        *values, counts = children
        self = object.__new__(cls)
        self._entries = dict(zip(keys, values, strict=True))
        # JAX puts placeholders in place of children, as in the prefix of an in_axes.
        is_list = isinstance(counts, list | tuple)
        self.counts = dict(zip(count_keys, counts, strict=True)) if is_list else counts
        return self


def _to_bytes(aux: Any) -> bytes:
    return json.dumps(aux).encode()


def _from_bytes(data: bytes) -> Any:
    keys, count_keys = json.loads(data)
    return tuple(keys), tuple(count_keys)


jax.export.register_pytree_node_serialization(
    Log,
    serialized_name="peex.Log",
    serialize_auxdata=_to_bytes,
    deserialize_auxdata=_from_bytes,
)


class Numbering:
    """Names the calls of sites: `cell`, `cell#1`, `cell#2`, ... in order. Of a named
    value inside of a module, these are the calls of the module: `cell#1/tanh`.
    """

    def __init__(self) -> None:
        self._seen: dict[Any, int] = {}

    def copy(self) -> "Numbering":
        new = Numbering()
        new._seen = dict(self._seen)
        return new

    def next(self, site: Site) -> int:
        """How many calls of the site there were before this one."""
        name = site.key, site.call
        n = self._seen[name] = self._seen.get(name, -1) + 1
        return n

    def __call__(self, site: Site) -> str | None:
        """The key of the next call; `None` if the site isn't of that."""
        n = self.next(site)
        return site.numbered(n) if site.is_of(n) else None


class Encoded(eqx.Module):
    """Integers or booleans, held in floating point so that they can be a cotangent.

    `parts` has one more axis, behind the others: parts of 8 bits, low first, the last
    with the sign, and behind them a one. Sums and multiples of these are sums and
    multiples of the integers; the last number says how many were summed, and so whether
    the sums of the parts, which floating point must hold exactly, are right.
    """

    parts: Array
    dtype: Any = eqx.field(static=True)

    def decode(self) -> Array:
        """The integers, after sums and multiples rounded towards zero.

        **Raises:** `LogValueError` if more were summed than can be right.
        """
        if not isinstance(self.parts, jax.Array):
            return self.parts  # a placeholder of JAX's
        concrete = not isinstance(self.parts, Tracer)
        if concrete and self.parts.is_fully_addressable:
            # By NumPy: whatever trace is current, this is known now.
            most = int(2 ** (jnp.finfo(self.parts.dtype).nmant + 1 - _BITS))
            summed = float(np.max(np.asarray(self.parts)[..., -1], initial=0))
            if summed > most:
                raise LogValueError(
                    f"An integer log of a backward hook was summed over {summed:.0f} "
                    f"examples; up to {most} it is exact. Map inside of the wrapper, "
                    "as `eqx.filter_vmap(model)` or `px.value_and_grad` do: then it is "
                    "logged for each example. Or log floating point numbers."
                )
        wide = jnp.int64 if jnp.dtype(self.dtype).itemsize == 8 else jnp.int32
        # From the highest part down, what is left of each goes to the next.
        *low, high = jnp.moveaxis(self.parts[..., :-1], -1, 0)
        whole = jnp.trunc(high)
        total, rest = whole.astype(wide), high - whole
        for part in reversed(low):
            part = part + rest * float(2**_BITS)
            whole = jnp.floor(part)
            total, rest = (total << _BITS) + whole.astype(wide), part - whole
        total = total + ((rest > 0) & (total < 0)).astype(wide)
        return total.astype(self.dtype)


_BITS = 8


def _is_encoded(dtype: Any) -> bool:
    return not jnp.issubdtype(dtype, jnp.inexact)


def encode(logs: Sequence[Array]) -> list[Array]:
    """Log leaves as cotangents."""

    def one(x: Array) -> Array:
        if not _is_encoded(x.dtype):
            return x
        size = jnp.dtype(x.dtype).itemsize
        wide = x.astype(jnp.int64 if size == 8 else jnp.int32)
        parts = [wide >> (_BITS * i) for i in range(size)]
        signed = jnp.issubdtype(x.dtype, jnp.signedinteger)
        low, high = (parts[:-1], parts[-1:]) if signed else (parts, [])
        low = [part & (2**_BITS - 1) for part in low]
        return jnp.stack([*low, *high, jnp.ones_like(wide)], -1).astype(
            jnp.float64 if size == 8 else jnp.float32
        )

    return [one(x) for x in logs]


def encoded_shapes(logs: Sequence[Any]) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Shapes and dtypes of `encode(logs)`."""
    if any(_is_encoded(x.dtype) for x in logs):
        logs = jax.eval_shape(encode, logs)
    return tuple(map(_compat.plain_shape, logs))


def pack(treedef: Any, dtypes: Sequence[Any], buffers: Sequence[Any]) -> Any:
    """The entry of a backward log: buffers in the structure that `log_fn` returned,
    those of integers marked as encoded.
    """
    leaves = [
        Encoded(b, d) if _is_encoded(d) else b
        for b, d in zip(buffers, dtypes, strict=True)
    ]
    return jtu.tree_unflatten(treedef, leaves)


def shown(entry: Any) -> str:
    """What an entry of a backward log holds, for an error message."""
    is_encoded = lambda x: isinstance(x, Encoded)
    leaves, treedef = jtu.tree_flatten(entry, is_leaf=is_encoded)
    shapes = [jnp.shape(x.parts if is_encoded(x) else x) for x in leaves]
    return shown_as(treedef, [x.dtype for x in leaves], shapes)


def shown_as(treedef: Any, dtypes: Sequence[Any], shapes: Sequence[Any]) -> str:
    """The same, of the structure and dtypes that `log_fn` returned, and the shapes of
    the buffers. The structure is shown where it isn't just one array.
    """
    arrays = [
        f"{jnp.dtype(d)}{list(s[:-1] if _is_encoded(d) else s)}"
        for d, s in zip(dtypes, shapes, strict=True)
    ]
    if len(arrays) == 1 and jtu.treedef_is_leaf(treedef):
        return arrays[0]
    return f"{', '.join(arrays) or 'nothing'} in {treedef}"


def buffers_of(entry: Any) -> list[Any]:
    """The buffers of an entry of a backward log, the inverse of `pack`."""
    return jtu.tree_leaves(entry)
