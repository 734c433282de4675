"""Logs of accumulators, merged over calls."""

from typing import Any, TYPE_CHECKING, TypeVar

import jax.tree_util as jtu

from .._errors import LogShapeError, LogValueError
from .log import Log
from .merged import Merged
from .together import check_keys, shown


if TYPE_CHECKING:
    _Logs = TypeVar("_Logs", bound=Log | tuple[Log, ...])
else:
    _Logs = Any  # checked by peex itself, whose error says what to write instead


def merge(log_a: _Logs, log_b: _Logs) -> _Logs:
    """Merges the logs of two calls, of accumulators: over batches, and as the carry of
    a `scan`, which starts with [`peex.ForwardHook.empty`][].

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        linear = eqx.nn.Linear(2, 2, key=jax.random.key(0))
        hooked = px.ForwardHook(eqx.filter_vmap(linear), None, px.Moments())
        batches = jnp.ones((3, 8, 2))

        def step(total, batch):
            _, log = hooked(batch)
            return px.merge(total, log), None

        total, _ = jax.lax.scan(step, hooked.empty(batches[0]), batches)
        total["."].count  # 24
        ```

    **Arguments:**

    - `log_a`, `log_b`: logs of the same keys, accumulators and shapes; or two of what
        [`peex.value_and_grad`][] returns, a [`peex.Logs`][] each.

    **Returns:**

    One of both. It can be merged again.

    **Raises:**

    [`peex.LogShapeError`][] for logs that differ in keys, structures or shapes,
    [`peex.LogValueError`][] for entries that aren't of an accumulator, `TypeError` for
    what is no log.
    """
    a: Any = log_a
    b: Any = log_b
    if isinstance(a, tuple) and isinstance(b, tuple):
        pairs = [merge(*pair) for pair in zip(a, b, strict=True)]
        kind: Any = type(a)
        return kind(*pairs) if hasattr(a, "_fields") else kind(pairs)
    return _merged_logs(a, b)


def _merged_logs(a: Any, b: Any) -> Any:
    for log in (a, b):
        if not isinstance(log, Log):
            raise TypeError(
                f"`px.merge` was given a {type(log).__name__}. Give it two logs that "
                "were returned by calls: `px.merge(log_a, log_b)`; two arrays, or two "
                "entries, are merged by the accumulator: `px.Moments().merge(a, b)`."
            )
    check_keys(a, [b], "merge")
    return Log({key: _merged(key, a, b) for key in a}, axes=a.axes)


def _merged(key: str, log_a: Log, log_b: Log) -> Merged:
    a, b = merged_at(key, log_a), merged_at(key, log_b)
    structures = [jtu.tree_structure(x.value) for x in (a, b)]
    shapes = [shown(x.value) for x in (a, b)]
    if a.monoid != b.monoid or structures[0] != structures[1] or shapes[0] != shapes[1]:
        kinds = [type(x.monoid.thaw(x.monoid.shapes)).__name__ for x in (a, b)]
        raise LogShapeError(
            f"The logs can't be merged at {key!r}: one is of {kinds[0]}, {shapes[0]}, "
            f"the other of {kinds[1]}, {shapes[1]}. Make both with the same `log_fn`, "
            "on examples of the same shapes."
        )
    return a.merge(b, len(log_a.axes.get(key, ())))


def merged_at(key: str, log: Log) -> Merged:
    """The entry of an accumulator.

    **Raises:** `LogValueError` if it isn't one.
    """
    entry = log.raw(key)
    if not isinstance(entry, Merged):
        raise LogValueError(
            f"The log at {key!r} isn't of an accumulator, which says how two are "
            "merged. Log with one, as in `log_fn=px.Moments()` or "
            "`log_fn=px.Sum(px.NormLog())`, or make one of it: "
            "`px.accumulate(log, px.Moments())`."
        )
    return entry


def empty(log: Log) -> Log:
    """What changes nothing that this log is merged with (its arrays may be shapes)."""
    made = {k: merged_at(k, log).empty(len(log.axes.get(k, ()))) for k in log}
    return Log(made, axes=log.axes)
