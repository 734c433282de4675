"""Watching a training step: which site was the first to hold what isn't finite."""

from typing import Any, TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int, PyTree

from .._errors import LogValueError
from .._hooks.log_fns import AbstractLog
from .._log import Log
from .._log.placed import in_order, Placed
from .._wrappers.value_and_grad import Logs
from .blamed import as_examples, Blame
from .magnitude import is_bad


if TYPE_CHECKING:
    Flag = bool | Bool[Any, ""]
else:
    Flag = Any  # checked by peex itself, whose error says what to write instead


class FiniteLog(AbstractLog):
    """Records of each value whether something in it isn't finite, a bool. As `forward`
    and `backward` of [`peex.value_and_grad`][] it watches a training step, and
    [`peex.debug.first_nonfinite`][] says where it went wrong first.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        def loss(model, xs):
            return jnp.mean(jax.vmap(model)(xs) ** 2)

        @eqx.filter_jit
        def step(model, xs, on):
            watch = px.debug.FiniteLog(on)
            step = px.value_and_grad(loss, forward=watch, backward=watch)
            (value, logs), grads = step(model, xs)
            return value, grads, logs, px.debug.first_nonfinite(logs)

        mlp = eqx.nn.MLP(2, 1, 8, depth=2, key=jax.random.key(0))
        xs = jnp.ones((4, 2)).at[3, 0].set(jnp.inf)
        value, grads, logs, bad = step(mlp, xs, jnp.array(True))
        px.debug.blame(logs, bad).key  # 'layers.0'
        ```
    """

    on: bool | Bool[Array, ""]

    def __init__(self, on: Flag = True):
        """**Arguments:**

        - `on`: whether to look; where it is false, so is what is recorded, and no value
            is read. An array of shape `()` may be traced, and flipped without compiling
            anew.

        **Raises:** `TypeError` for anything else.
        """
        is_array = isinstance(on, jax.Array | np.ndarray | np.generic)
        if not (isinstance(on, bool) or (is_array and on.shape == ())) or (
            is_array and on.dtype != bool
        ):
            raise TypeError(
                "The `on` of a FiniteLog is a bool, or an array of one, as "
                f"`px.debug.FiniteLog(step % 100 == 0)`; got {on!r}."
            )
        self.on = on if isinstance(on, bool) else jnp.asarray(on)

    def __call__(self, value: PyTree[Any]) -> Bool[Array, ""]:
        if isinstance(self.on, bool):
            return is_bad(value) if self.on else jnp.zeros((), bool)
        # It is one for all examples and steps, so that this stays a branch.
        return lax.cond(self.on, is_bad, lambda _: jnp.zeros((), bool), value)


def first_nonfinite(logs: Logs | Log) -> Int[Array, ""]:
    """Where in the logs of a [`peex.debug.FiniteLog`][] something first isn't finite,
    in the order in which it was computed: the forward pass, then the backward pass from
    its end; by step in a loop. Works under `jit`.

    **Arguments:**

    - `logs`: what [`peex.value_and_grad`][] returned, or the log of a forward pass.

    **Returns:**

    int32, a number that [`peex.debug.blame`][] makes a name of; -1 if all is finite. It
    says nothing of what no site sees: look at the loss and at the gradients too.

    **Raises:**

    [`peex.LogValueError`][] for what another log has recorded.
    """
    never = np.iinfo(np.int32).max
    first = jnp.int32(never)
    for placed in _placed(logs):
        ranks = jnp.where(_checked(placed), placed.ranks(), jnp.int32(never))
        first = jnp.minimum(first, jnp.min(ranks, initial=never))
    return jnp.where(first == never, jnp.int32(-1), first)


def blame(logs: Logs | Log, bad: int | Int[Any, ""]) -> Blame | None:
    """What [`peex.debug.first_nonfinite`][] found: which site, in which pass, at which
    step, in which examples.

    **Arguments:**

    - `logs`: the same logs.
    - `bad`: what it returned for them (a number, not traced).

    **Returns:**

    A [`peex.debug.Blame`][] with `key`, `direction`, `step` and `examples`, or `None`
    for -1. What a cause is and what a victim, and which operation it was,
    [`peex.debug.find_nonfinite`][] finds out on the same batch.

    **Raises:**

    `ValueError` for a number that isn't of these logs, and as `first_nonfinite`.
    """
    bad = int(bad)
    if bad == -1:
        return None
    for placed in _placed(logs):
        if not placed.offset <= bad < placed.end:
            continue
        bad_here = np.asarray(_checked(placed))
        found = np.argwhere(np.asarray(placed.ranks()) == bad)
        if len(found) == 0 or not bad_here[tuple(found[0])]:
            continue
        at = tuple(found[0].tolist())
        step = placed.step_of(at)
        there = [i for i in np.argwhere(bad_here).tolist() if step == placed.step_of(i)]
        examples = dict.fromkeys(placed.example_of(i) for i in there)
        return Blame(
            key=placed.key,
            direction=placed.direction,
            kind="inf or nan",
            step=step,
            examples=as_examples(examples),
        )
    raise ValueError(
        f"{bad} isn't where something in these logs isn't finite. Give "
        "`px.debug.blame` the number that `px.debug.first_nonfinite` returned for the "
        "same logs: `px.debug.blame(logs, px.debug.first_nonfinite(logs))`."
    )


def _placed(logs: Logs | Log) -> list[Placed]:
    if isinstance(logs, Log):
        logs = Logs(Log(), logs)
    return in_order(logs.forward, logs.backward)


def _checked(placed: Placed) -> Any:
    entry = placed.entry
    if getattr(entry, "dtype", None) != bool:
        got = entry.dtype if hasattr(entry, "dtype") else type(entry).__name__
        raise LogValueError(
            f"The log at {placed.key!r} isn't one of a `px.debug.FiniteLog`, which "
            f"records bools; got {got}. Write `watch = px.debug.FiniteLog(on)` and "
            "`px.value_and_grad(loss, forward=watch, backward=watch)`."
        )
    return entry
