"""Hooks whose data is another run's log, cut as it was put together."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, PyTree

from .._engine.messages import Datum
from .._engine.site import Site
from .._errors import LogShapeError
from .._log import Log
from .callables import refuse_class
from .step_hooks import AbstractLocal, AbstractStepHook, SiteCall


if TYPE_CHECKING:
    AsLog = Log | Mapping[str, Any]
    Function = Callable[[Any, Any], Any]
else:
    # Checked by peex itself, whose errors say what to write instead.
    AsLog = Function = Any


class _Patch(AbstractLocal):
    def wants(self, value: Sequence[jax.ShapeDtypeStruct], site: Site) -> PyTree[Datum]:
        return [Datum(x) for x in value]

    def __call__(self, value: PyTree[Array], data: Any, site: Site) -> PyTree[Any]:
        return jtu.tree_structure(value).unflatten(data)


class PatchHook(AbstractStepHook):
    """Replaces each value by the same site's value in another run: activation patching
    ([Vig et al., 2020](https://arxiv.org/abs/2004.12265); [Meng et al.,
    2022](https://arxiv.org/abs/2202.05262)).

    The log is cut per call, step and example as it was put together. Its values are
    dynamic: patching with another run's compiles nothing anew. For some places only,
    `px.At(px.PatchHook(log), mask)`.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        mlp = eqx.nn.MLP(2, 1, 8, depth=2, key=jax.random.key(0))
        clean, corrupted = jnp.ones(2), jnp.zeros(2)
        _, log = px.ForwardHook(mlp, where="layers.0")(clean)
        patched = px.ForwardHook(mlp, px.PatchHook(log), None, where="layers.0")
        out, _ = patched(corrupted)  # equals mlp(clean)
        ```
    """

    source_log: Log

    def __init__(self, source_log: AsLog):
        """**Arguments:**

        - `source_log`: a log of values themselves (`px.IdentityLog`), or a mapping like
            one, with the sites that this hook acts on. Of another float dtype, it is
            cast to that of the value.

        **Raises:**

        When it is called, [`peex.LogShapeError`][] if the log doesn't fit.
        """
        self.source_log = as_log("PatchHook", "px.PatchHook(log)", source_log)

    @property
    def local_half(self) -> AbstractLocal:
        return _Patch()

    def data_of_call(self, call: SiteCall, wanted: Any) -> list[Array]:
        key = call.key
        if key not in self.source_log:
            raise LogShapeError(
                f"The site {key!r} is to be patched, but isn't in the source log, "
                f"which has {list(self.source_log)}. Choose the sites that it has: "
                "`px.ForwardHook(model, px.PatchHook(log), where=list(log))`."
            )
        leaves = [jnp.asarray(x) for x in jtu.tree_leaves(self.source_log[key])]
        fits = len(leaves) == len(call.logged) and all(
            x.shape == tuple(s.shape) and _casts(x.dtype, s.dtype)
            for x, s in zip(leaves, call.logged, strict=True)
        )
        if not fits:
            expected = [f"{s.dtype}{list(s.shape)}" for s in call.logged]
            got = [f"{x.dtype}{list(x.shape)}" for x in leaves]
            raise LogShapeError(
                f"The patch of the site {key!r} doesn't fit: the value is "
                f"{', '.join(expected)}, the source log has {', '.join(got)}. Patch "
                "with the log of a run on inputs of the same shapes, of the values "
                "themselves (`log_fn=px.IdentityLog()`)."
            )
        pairs = zip(leaves, wanted, strict=True)
        return [
            (x if x.dtype == s.dtype else x.astype(s.dtype)).reshape(s.shape)
            for x, s in pairs
        ]


def _casts(dtype: Any, to: Any) -> bool:
    """Whether a value of one dtype may stand for one of another."""
    floats = all(jnp.issubdtype(d, jnp.floating) for d in (dtype, to))
    return dtype == to or floats


def as_log(what: str, example: str, log: Any) -> Log:
    """A log, or a mapping like one, as a log.

    **Raises:** `TypeError` for anything else.
    """
    if not isinstance(log, Mapping):
        raise TypeError(
            f"{what} was given a {type(log).__name__}, which isn't a log. Write "
            f"`{example}`, of the log that a `px.ForwardHook` returned, or of a dict "
            "from keys to arrays."
        )
    return log if isinstance(log, Log) else Log(log)


# Of an entry of a log: its key, structure, the shapes of its arrays, and how many axes
# of these are those of the call (`None`: all but as many as the value has).
_Entry = tuple[str, Any, tuple[jax.ShapeDtypeStruct, ...], int | None]


class _WithData(AbstractLocal):
    fn: Any
    entries: tuple[_Entry, ...] = eqx.field(static=True)

    def wants(self, value: Sequence[jax.ShapeDtypeStruct], site: Site) -> PyTree[Datum]:
        mine = {entry[0]: entry for entry in self.entries}
        key = site.numbered(site.call or 0)
        if key not in mine:
            raise LogShapeError(
                f"The site {key!r} is to be given data, but isn't in the log of its "
                f"WithData, which has {list(mine)}. Choose the sites that it has: "
                "`px.ForwardHook(model, px.WithData(fn, log), where=list(log))`."
            )
        _, structure, shapes, num_axes = mine[key]
        rank = max((len(x.shape) for x in value), default=0)

        def datum(x: jax.ShapeDtypeStruct) -> Datum:
            first = max(0, len(x.shape) - rank) if num_axes is None else num_axes
            return Datum(jax.ShapeDtypeStruct(x.shape[first:], x.dtype))

        return structure.unflatten([datum(x) for x in shapes])

    def __call__(self, value: PyTree[Array], data: Any, site: Site) -> PyTree[Any]:
        return self.fn(value, data)


class WithData(AbstractStepHook):
    """Gives a function data for each call, step and example: `value -> fn(value,
    datum)`; for steering by position, noise that is known, sources of interchange.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        linear = eqx.nn.Linear(2, 2, key=jax.random.key(0))
        run = lambda m, x: jax.lax.scan(lambda x, _: (m(x), None), x, length=5)[0]
        _, other = px.ForwardHook(linear, method=run)(jnp.ones(2))
        halfway = px.WithData(lambda value, datum: (value + datum) / 2, other)
        out, log = px.ForwardHook(linear, halfway, method=run)(jnp.zeros(2))
        ```
    """

    fn: Any
    data: Log

    def __init__(self, fn: Function, log: AsLog):
        """**Arguments:**

        - `fn`: is called with a value and its datum, a pytree as `log` has it, and
            returns a value like the one it was given. Arrays in it are leaves of the
            wrapper.
        - `log`: a log of whatever is to be given, or a mapping from keys to pytrees of
            arrays. Of a log that a call returned (or that was made of one by
            [`peex.Log.map`][]), the axes are known: device, step and batch axes are
            cut, what is left is the datum. Of any other, an array that has more axes
            than the value is cut along the first of these; each is as long as that of
            the call or of size 1.

        **Raises:**

        `TypeError` for what can't be called or isn't a log; when it is called,
        [`peex.LogShapeError`][] if the log doesn't fit.
        """
        refuse_class("The function of a WithData", fn)
        if not callable(fn):
            raise TypeError(
                f"WithData was given {fn!r}, which can't be called. Write "
                "`px.WithData(lambda value, datum: value + datum, log)`."
            )
        self.fn = fn
        self.data = as_log("WithData", "px.WithData(fn, log)", log)

    @property
    def local_half(self) -> AbstractLocal:
        return _WithData(self.fn, tuple(self._entry(key) for key in self.data))

    def _entry(self, key: str) -> _Entry:
        leaves, structure = jtu.tree_flatten(self.data[key])
        shapes = tuple(
            jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)) for x in leaves
        )
        axes = self.data.axes.get(key)
        return key, structure, shapes, None if axes is None else len(axes)

    def data_of_call(self, call: SiteCall, wanted: Any) -> Any:
        if call.key not in self.data:
            raise LogShapeError(
                f"The call {call.key!r} is to be given data, but isn't in the log of "
                f"its WithData, which has {list(self.data)}. Give it an entry for each "
                "call, or choose one, as in `where='cell#1'`."
            )
        leaves, structure = jtu.tree_flatten(self.data[call.key])
        shapes = jtu.tree_leaves(wanted)
        try:
            if structure != jtu.tree_structure(wanted):
                raise ValueError
            data = [
                jnp.broadcast_to(_expanded(x, s, call), s.shape).astype(s.dtype)
                for x, s in zip(leaves, shapes, strict=True)
            ]
        except ValueError:
            got = ", ".join(f"{jnp.result_type(x)}{list(jnp.shape(x))}" for x in leaves)
            first = list(call.axes.shape)
            expected = ", ".join(f"{s.dtype}{list(s.shape)}" for s in shapes)
            raise LogShapeError(
                f"The data for the site {call.key!r}, {got}, doesn't fit this call, "
                f"whose device, step and batch axes are {first}: expected {expected}. "
                "Give one with these axes, each as long or of size 1."
            ) from None
        return structure.unflatten(data)


def _expanded(x: Any, wanted: jax.ShapeDtypeStruct, call: SiteCall) -> Array:
    """Data without the axes of the call gets those, of size 1."""
    x = jnp.asarray(x)
    missing = len(wanted.shape) - x.ndim
    datum = len(wanted.shape) - len(call.axes.shape)
    if missing and x.ndim > datum:
        raise ValueError(x.shape)
    return x.reshape((1,) * missing + x.shape)
