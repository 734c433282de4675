"""The backward wrapper: cotangents, logged and changed."""

from collections.abc import Iterable, Sequence
from typing import Any, Generic

import equinox as eqx
import jax
import jax.tree_util as jtu

from .. import _compat
from .._engine.codec import buffers_of, pack, shown, shown_as
from .._engine.messages import Ask, BufferAsk
from .._engine.numbering import Numbering
from .._engine.site import Site
from .._engine.values import eval_shape, zeros
from .._errors import LogShapeError, NotInitialisedError
from .._hooks.accumulators import accumulator_of, adds
from .._hooks.call_hooks import AbstractCallHook
from .._hooks.hooks import IdentityHook
from .._hooks.log_fns import IdentityLog
from .._log import described, empty, held, Log, unheld
from .._sites.walk import AbstractWrapper, with_fields
from .alike_logs import Alike
from .hook_collector import HookCollector
from .hooked_again import warn_if_hooked_again
from .plan import by_name, Plan, plan
from .run import run
from .types import Hook, LogFn, Method, Model, Where


class BackwardCollector(HookCollector):
    """Answers with the buffers of the log too. Without a log, makes zeros of the shapes
    that are asked for; `made` are the buffers that this call has asked for, by key.
    """

    sums = True
    state = (*HookCollector.state, "_asked", "_number_log", "alike", "made")

    def __init__(self, hook_fn: Any, log_fn: Any, log: Log | None):
        super().__init__(hook_fn, log_fn)
        self.log = log
        self.made: dict[str, tuple[BufferAsk, Sequence[Any]]] = {}
        self._asked: list[Site] = []
        self._number_log = Numbering()
        self.alike = Alike()

    @property
    def heard(self) -> list[Site]:
        return [*super().heard, *self._asked]

    def supply(self, info: Ask) -> Sequence[Any]:
        if not isinstance(info, BufferAsk):
            return super().supply(info)
        self.received.add(info.site.key)
        self._asked.append(info.site)
        if info.site.log is None:
            return []
        key = self._number_log(info.site)
        if key is None:
            return [zeros(s) for s in info.shapes]
        key = self.alike.first(key, info, info.shapes)
        if key not in self.made:
            # One that is the same on all devices gets the sum over these.
            buffers = _compat.as_varying(self._make(key, info), info.varying)
            self.made[key] = info, buffers
        return _compat.as_varying(self.made[key][1], info.varying)

    def _make(self, key: str, info: BufferAsk) -> Sequence[Any]:
        """The buffers of an entry of the log."""
        if self.log is not None:
            return self._buffers(key, info)
        return [zeros(s) for s in info.shapes]

    def log_of(self, buffers: Iterable[Any]) -> Log:
        """The log that this call has asked for, of these buffers."""
        rest = iter(buffers)
        entries, axes = {}, {}
        for key, (info, asked) in self.made.items():
            entry = pack(info.treedef, info.dtypes, [next(rest) for _ in asked])
            entries[key] = held(info.site, entry, sums=True)
            axes[key] = info.axes
        return Log(entries, axes=described(axes))

    def _buffers(self, key: str, info: BufferAsk) -> list[Any]:
        assert self.log is not None
        again = (
            "Call `.init(...)` again with arguments like those of this call: "
            "`hooked = hooked.init(x)`."
        )
        if key not in self.log:
            raise LogShapeError(
                f"The site {key!r} runs in this call, but the log of this BackwardHook "
                f"was initialised for a call in which it didn't. {again}"
            )
        entry = unheld(self.log.raw(key))
        expected = shown(entry)
        got = shown_as(info.treedef, info.dtypes, [s.shape for s in info.shapes])
        if expected != got:
            raise LogShapeError(
                f"The log of the site {key!r} was initialised for {expected}; this "
                f"call would log {got}. {again}"
            )
        return buffers_of(entry)


class BackwardHook(AbstractWrapper, Generic[Model]):
    """Wraps a model so that its gradient brings back the cotangents that its parts
    receive, or so that these are changed on their way.

    Called, it returns the model's output alone. The log comes as the gradient with
    respect to the wrapper's own `log`, which is why its shapes must be known: call
    `init` first. [`peex.value_and_grad`][] does all this in one call.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        mlp = eqx.nn.MLP(2, 1, 8, depth=2, key=jax.random.key(0))
        x = jnp.ones(2)
        hooked = px.BackwardHook(mlp).init(x)

        @eqx.filter_jit
        @eqx.filter_value_and_grad
        def loss_and_grads(hooked, x):
            return jnp.mean(hooked(x) ** 2)

        loss, grads = loss_and_grads(hooked, x)
        grads.model  # the gradient of the model
        grads.log["layers.0"].shape  # (8,): the cotangent of that layer's output
        ```

    What JAX sums, is summed: under a `jax.vmap` around the wrapper, with the wrapper
    closed over, the log holds the sum over the batch. For cotangents per example, put
    the `vmap` inside: `BackwardHook(eqx.filter_vmap(model))`, or a `method`.
    """

    model: Model
    hook_fn: Any
    log_fn: Any
    log: Log | None
    plan: Plan = eqx.field(static=True, repr=False)

    def __init__(
        self,
        model: Model,
        hook_fn: Hook = IdentityHook(),
        log_fn: LogFn = IdentityLog(),
        *,
        where: Where = None,
        pre_hook: bool = False,
        with_kwargs: bool = False,
        method: Method = "__call__",
        log: Log | None = None,
    ):
        """**Arguments:**

        As for [`peex.ForwardHook`][], apart from these:

        - `hook_fn`: acts on the cotangent of a module's output (or, for a pre hook, on
            those of its positional arguments).
        - `log_fn`: sees the cotangent that `hook_fn` returned. What it returns may be
            integers or booleans too.
        - `log`: the log to start from; usually made by `init`.

        What has no cotangent in a value (integers, random keys, functions) is `None`.
        """
        _refuse_call_hooks(hook_fn)
        _refuse_unsummed(log_fn)
        # First: it refuses what no module could hold.
        self.plan = plan(model, hook_fn, log_fn, where, pre_hook, with_kwargs, method)
        self.model = model
        self.hook_fn = hook_fn
        self.log_fn = log_fn
        self.log = log
        warn_if_hooked_again(self)

    def init(self, /, *args: Any, **kwargs: Any) -> "BackwardHook[Model]":
        """Finds the shapes of the log, by tracing a call (nothing is computed).

        **Arguments:**

        Arguments like those of the call: arrays, or `jax.ShapeDtypeStruct`s. As under
        `jax.jit`, the model sees dicts in the order of their keys, which must be such
        as can be sorted.

        **Returns:**

        A copy of the wrapper, with a log of zeros.
        """

        shapes = _log_shapes(self, "init", args, kwargs)
        return with_fields(self, log=jtu.tree_map(zeros, shapes))

    def empty(self, /, *args: Any, **kwargs: Any) -> Log:
        """As [`peex.ForwardHook.empty`][], of the log that the gradient brings."""
        return empty(_log_shapes(self, "empty", args, kwargs))

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the model on these arguments.

        **Returns:**

        The model's output.

        **Raises:**

        [`peex.NotInitialisedError`][] without a log; [`peex.LogShapeError`][] if the
        log was initialised for another call; and as [`peex.ForwardHook`][].
        """
        if self.log is None and self.plan.logs:
            raise NotInitialisedError(
                f"This BackwardHook, the one around {_described(self.model)}, logs, "
                "so it must know the shapes of its log before it is called: write "
                "`hooked = px.BackwardHook(model).init(x)` with arguments like those "
                "of the call (arrays or `jax.ShapeDtypeStruct`s). If you don't want a "
                "log, write `log_fn=None`."
            )
        out, collector = _run(self, self.log or Log(), args, kwargs)
        # Without jit, a branch that isn't taken doesn't even run.
        if self.log is not None and not getattr(jax.config, "jax_disable_jit"):  # noqa: B009
            missing = [k for k in self.log if k not in collector.made]
            if missing:
                raise LogShapeError(
                    f"The log of this BackwardHook was initialised for a call in which "
                    f"the site {missing[0]!r} runs, but in this call it didn't. Call "
                    "`.init(...)` again with arguments like those of this call."
                )
        return out


def _refuse_call_hooks(hook_fn: Any) -> None:
    for name, one in by_name("hook_fn", hook_fn):
        if isinstance(one, AbstractCallHook):
            raise TypeError(
                f"`{name}` of a BackwardHook is {type(one).__name__}, which stands "
                "around a call, where there are no cotangents. Put it into a "
                "`px.ForwardHook` inside: `px.BackwardHook(px.ForwardHook(model, "
                "hook))`."
            )


def _refuse_unsummed(log_fn: Any) -> None:
    for name, one in by_name("log_fn", log_fn):
        accumulator = accumulator_of(one)
        if accumulator is not None and not adds(accumulator):
            kind = type(accumulator).__name__
            raise TypeError(
                f"`{name}` of a BackwardHook is an accumulator, {kind}, whose results "
                "can't be had by adding up, as all that is logged in a backward pass "
                "is: it is made of cotangents. Log what is merged, and merge it "
                "outside: `px.accumulate(log, px.Max())` of a log that was made with "
                "`log_fn=px.MaxAbsLog()`. `px.Sum` and `px.Moments` can be had; one of "
                "your own with `to_sums` and `from_sums`."
            )


def note_on_tracing(error: BaseException, what: str) -> None:
    error.add_note(
        f"{what}, as `jax.jit` does, to find the shapes of the log: the model's Python "
        "can't look at the values of arrays there. Write `jax.lax.cond` or `jnp.where` "
        "for a branch on them."
    )


def _described(model: Any) -> str:
    around = ""
    while isinstance(model, AbstractWrapper):
        around += f"a {type(model).__name__} around "
        model = model.model
    return f"{around}a {type(model).__name__}"


def _log_shapes(hooked: BackwardHook, method: str, args: Any, kwargs: Any) -> Log:
    """The log of a call, as shapes."""

    def log(hooked: BackwardHook, args: Any, kwargs: Any) -> Log:
        _, collector = _run(hooked, None, args, kwargs)
        made = collector.made.values()
        return collector.log_of(x for _, buffers in made for x in buffers)

    try:
        return eval_shape(log, hooked, args, kwargs)
    except _compat.VALUE_ERRORS as error:
        note_on_tracing(error, f"`px.BackwardHook.{method}` traces the call")
        raise


# No method: Equinox makes a module of each that is looked up, which takes long.
def _run(
    hooked: BackwardHook, log: Log | None, args: Any, kwargs: Any
) -> tuple[Any, BackwardCollector]:
    make = lambda: BackwardCollector(hooked.hook_fn, hooked.log_fn, log)
    return run(hooked.plan, hooked.model, make, True, args, kwargs)
