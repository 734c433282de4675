"""Statistics of a training, kept inside of its compiled step."""

from collections.abc import Callable, Mapping
from typing import Any, TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jaxtyping import Bool

from .._engine.values import eval_shape
from .._errors import LogShapeError
from .._wrappers.types import FilterSpec, LogFn, Where
from .sites import sites_of
from .state import check_alike, MonitorState, part_of, recorded_in
from .stats import Recorded, Stats
from .step import step_of
from .summary import Summary, summary_of
from .updates import by_path, layers_of, recorded_updates


if TYPE_CHECKING:
    Flag = bool | Bool[Any, ""]
else:
    Flag = Any  # checked by peex itself, whose error says what to write instead


_DEFAULT = Stats()


class Monitor(eqx.Module):
    """A training step that keeps statistics of activations and of cotangents, merged
    over steps, examples and devices; of layers that are stacked, of each one. What it
    keeps, and what it costs, doesn't grow with the number of steps.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        def loss(model, xs):
            return jnp.mean(jax.vmap(model)(xs) ** 2)

        monitor = px.monitoring.Monitor(
            loss,
            forward=px.monitoring.Stats(),
            backward=px.monitoring.Stats("rms", "max"),
        )

        @eqx.filter_jit
        def step(model, state, xs, on):
            (value, state), grads = monitor(model, state, xs, on=on)
            updates = jax.tree.map(lambda g: -0.1 * g, grads)
            return eqx.apply_updates(model, updates), state, value

        model = eqx.nn.MLP(2, 1, 8, depth=2, key=jax.random.key(0))
        xs = jnp.ones((4, 2))
        state = monitor.init(model, xs)
        for i in range(20):
            model, state, value = step(model, state, xs, jnp.array(i % 2 == 0))
        summary, state = monitor.read(state)
        summary.steps, summary["layers.0/rms"]  # 10, and a number
        ```
    """

    loss: Callable[..., Any]
    forward: Any
    backward: Any
    where: Any
    has_aux: bool = eqx.field(static=True)
    trainable: Any
    updates: bool = eqx.field(static=True)

    def __init__(
        self,
        loss: Callable[..., Any],
        *,
        forward: LogFn = _DEFAULT,
        backward: LogFn = None,
        where: Where = None,
        has_aux: bool = False,
        trainable: FilterSpec = eqx.is_inexact_array,
        updates: bool = False,
    ):
        """**Arguments:**

        - `loss`, `where`, `has_aux`, `trainable`: as for [`peex.value_and_grad`][].
        - `forward`, `backward`: which statistics are kept of activations and of
            cotangents: a [`peex.monitoring.Stats`][], a dict from patterns to these, or
            `None` for none.
        - `updates`: whether those of parameters are kept too, which `with_updates` is
            given.

        **Raises:** `TypeError` for other logs, `ValueError` for statistics that
        cotangents don't have.
        """
        for name, given in (("forward", forward), ("backward", backward)):
            _check_stats(name, given)
        if forward is None and backward is None and not updates:
            raise TypeError(
                "This monitor keeps nothing: both `forward` and `backward` are None. "
                "Write `px.monitoring.Monitor(loss, forward=px.monitoring.Stats())`."
            )
        self.loss = loss
        self.forward, self.backward = forward, backward
        self.where = where
        self.has_aux = has_aux
        self.trainable = trainable
        self.updates = updates

    def init(self, model: Any, /, *args: Any, **kwargs: Any) -> MonitorState:
        """A state that has seen nothing. The loss is traced, and nothing is computed.

        **Arguments:**

        Those of a step: arrays, or `jax.ShapeDtypeStruct`s.
        """
        sites = sites_of(self, model, args, kwargs)
        trace = lambda *given: step_of(self, True, sites.inputs, *given)[0][1:]
        found = recorded_in(*eval_shape(trace, model, args, kwargs))
        part = part_of(found, {slot: sites.stacked[slot.name] for slot in found})
        parameters = part_of({}, {})
        if self.updates:
            trained, _ = eqx.partition(model, self.trainable)
            layers = layers_of(by_path(trained), sites.sizes)
            record = lambda model, updates: recorded_updates(model, updates, layers)
            changes = eval_shape(record, trained, trained)
            kept = {slot: (True,) * layers.get(slot.name, 0) for slot in changes}
            parameters = part_of(changes, kept)
        return MonitorState(jnp.zeros((), jnp.uint32), part, parameters, sites.inputs)

    def __call__(
        self,
        model: Any,
        state: MonitorState,
        /,
        *args: Any,
        on: Flag = True,
        **kwargs: Any,
    ) -> tuple[tuple[Any, MonitorState], Any]:
        """Loss and gradient of one step, as those of [`peex.value_and_grad`][].

        **Arguments:**

        - `model`, `*args`, `**kwargs`: those of the loss.
        - `state`: of `init`, or of the step before. It may be donated.
        - `on`: whether this step is looked at. An array of shape `()` may be traced,
            and flipped without compiling anew; where it is false, no value is read.

        **Returns:**

        `(value, state), grads`: what the loss returned (with `has_aux`, the pair), the
        state with this step in it, and the gradient.

        **Raises:**

        [`peex.LogShapeError`][] for a state that was made for another call, `TypeError`
        for another `on`; and as [`peex.value_and_grad`][].
        """
        on = checked_flag(on)
        step, grads = step_of(self, on, state.inputs, model, args, kwargs)
        found = recorded_in(step.logs, step.arguments)
        check_alike(found, state.sites)

        def add(state: MonitorState, each: list[Recorded]) -> MonitorState:
            steps = state.steps + jnp.uint32(1)
            sites = state.sites.with_step(each)
            return MonitorState(steps, sites, state.parameters, state.inputs)

        each = [found[slot] for slot in state.sites.slots]
        return (step.value, _where_on(on, add, state, each)), grads

    def with_updates(
        self, state: MonitorState, model: Any, updates: Any, *, on: Flag = True
    ) -> MonitorState:
        """The state with what the optimiser has made of a gradient, too: `rms(update) /
        rms(parameter)` of each parameter, over the steps of the window.

        !!! Example

            ```python
            import equinox as eqx
            import jax
            import jax.numpy as jnp
            import peex as px

            def loss(model, xs):
                return jnp.mean(jax.vmap(model)(xs) ** 2)

            monitor = px.monitoring.Monitor(loss, updates=True)
            model, xs = eqx.nn.Linear(2, 1, key=jax.random.key(0)), jnp.ones((4, 2))
            state = monitor.init(model, xs)
            (value, state), grads = monitor(model, state, xs)
            updates = jax.tree.map(lambda g: -0.1 * g, grads)
            state = monitor.with_updates(state, model, updates)
            summary, state = monitor.read(state)
            summary["weight/update_over_weight"]  # a number
            ```

        **Arguments:**

        - `state`, `on`: of the step.
        - `model`: before the update.
        - `updates`: what is added to its parameters, `None` for those that aren't
            trained.

        **Raises:**

        [`peex.LogShapeError`][] without `updates=True`, or where other parameters are
        updated; `ValueError` for updates that aren't like the model.
        """
        on = checked_flag(on)
        layers = {
            slot.name: len(group.kept)
            for group in state.parameters.groups
            for slot in group.slots
        }
        record = lambda model, updates: recorded_updates(model, updates, layers)
        if not self.updates:
            raise LogShapeError(
                "The state of this monitor has no room for updates. Write "
                "`px.monitoring.Monitor(loss, updates=True)`."
            )
        check_alike(eval_shape(record, model, updates), state.parameters)

        def add(state: MonitorState, given: Any) -> MonitorState:
            found = record(*given)
            each = [found[slot] for slot in state.parameters.slots]
            parameters = state.parameters.with_step(each)
            return MonitorState(state.steps, state.sites, parameters, state.inputs)

        arrays = [eqx.filter(x, eqx.is_inexact_array) for x in (model, updates)]
        return _where_on(on, add, state, arrays)

    def merge(self, a: MonitorState, b: MonitorState) -> MonitorState:
        """What two states have seen, as of processes that don't share their arrays."""
        return a.merged(b)

    def read(self, state: MonitorState) -> tuple[Summary, MonitorState]:
        """What was seen since the last time, as numbers. It waits for the step, and
        moves the state to the host at once.

        **Returns:**

        A [`peex.monitoring.Summary`][], and a state that has seen nothing, with which a
        new window starts.
        """
        known = jtu.tree_map(np.asarray, jax.device_get(state))
        return summary_of(known), state.emptied()


def _where_on(on: Any, add: Any, state: MonitorState, given: Any) -> MonitorState:
    if isinstance(on, bool):
        return add(state, given) if on else state
    return lax.cond(on, add, lambda state, _: state, state, given)


def _check_stats(name: str, given: Any) -> None:
    each = given.values() if isinstance(given, Mapping) else [given]
    for one in each:
        if not (one is None or isinstance(one, Stats)):
            raise TypeError(
                f"`{name}` of a Monitor is a `px.monitoring.Stats`, a dict from "
                f"patterns to these, or None; got {one!r}. Write `{name}="
                "px.monitoring.Stats('rms', 'max')`; a histogram goes into it, as in "
                "`px.monitoring.Stats('rms', px.HistogramLog([-1, 0, 1]))`."
            )
        if name == "backward" and one is not None and "out_over_in" in one.names:
            raise ValueError(
                "`'out_over_in'` compares the output of a module with its arguments, "
                "in the forward pass. Give it to `forward`."
            )


def checked_flag(on: Any) -> Any:
    """**Raises:** `TypeError` for what isn't a bool, or an array of one."""
    is_array = isinstance(on, jax.Array | np.ndarray | np.generic)
    if isinstance(on, bool):
        return on
    if not is_array or on.shape != () or on.dtype != bool:
        raise TypeError(
            "The `on` of a monitored step is a bool, or an array of one, as "
            f"`monitor(model, state, xs, on=i % 100 == 0)` has it; got {on!r}."
        )
    return jnp.asarray(on)
