"""Loss, gradient and logs in one call, without `init`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.export

from .._hooks.log_fns import IdentityLog
from .._log import Log
from .backward import BackwardHook
from .forward import ForwardHook
from .types import Hook, LogFn, Where


class Logs(NamedTuple):
    """The logs of [`peex.value_and_grad`][]; `None` for what wasn't asked for."""

    backward: Log | None
    forward: Log | None


jax.export.register_namedtuple_serialization(Logs, serialized_name="peex.Logs")


def value_and_grad(
    loss: Callable[..., Any],
    *,
    backward: LogFn = IdentityLog(),
    forward: LogFn = None,
    hook_fn: Hook = None,
    where: Where = None,
    pre_hook: bool = False,
    has_aux: bool = False,
) -> Callable[..., tuple[tuple[Any, Logs], Any]]:
    """Like `equinox.filter_value_and_grad`, with logs, and without `init`.

    Since the whole loss is inside, a `vmap` over examples in it gives cotangents and
    activations per example.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        def loss(model, xs, ys):
            return jnp.mean((jax.vmap(model)(xs) - ys) ** 2)

        mlp = eqx.nn.MLP(2, 1, 8, depth=2, key=jax.random.key(0))
        xs, ys = jnp.ones((4, 2)), jnp.ones((4, 1))
        step = eqx.filter_jit(px.value_and_grad(loss, forward=px.NormLog()))
        (value, logs), grads = step(mlp, xs, ys)
        logs.backward["layers.0"].shape  # (4, 8)
        logs.forward["layers.0"].shape  # (4,)
        ```

    **Arguments:**

    - `loss`: any function `loss(model, *args, **kwargs)` that returns a scalar.
    - `backward`, `forward`: the `log_fn` of cotangents and of activations; `None` for
        no such log. Without `where`, a dict from patterns to these chooses the sites of
        its log by itself: `forward={"l:in": px.IdentityLog()}` beside
        `backward={"l": px.IdentityLog()}`. What the loss maps over is in both, so
        gradients per example follow: of a Linear, the outer products of the two.
    - `hook_fn`: acts on the cotangents. A dict beside a dict `backward` chooses too.
    - `where`, `pre_hook`: as for [`peex.ForwardHook`][].
    - `has_aux`: whether `loss` returns a pair `(value, aux)`.

    **Returns:**

    A function of `(model, *args, **kwargs)` that returns `(value, logs), grads`: what
    the loss returned (with `has_aux`, the pair), the [`peex.Logs`][], and the gradient
    with respect to the model.

    **Raises:**

    `TypeError` if `has_aux` and the loss returns no pair; and as
    [`peex.BackwardHook`][].
    """

    def run(model: Any, /, *args: Any, **kwargs: Any) -> tuple[tuple[Any, Logs], Any]:
        inner: Any = model
        method: Any = loss
        if forward is not None:
            inner = ForwardHook(
                model,
                None,
                forward,
                where=_own_sites(where, forward),
                pre_hook=pre_hook,
                method=loss,
            )
            method = "__call__"
        hooked = BackwardHook(
            inner,
            hook_fn,
            backward,
            where=_own_sites(where, backward, hook_fn),
            pre_hook=pre_hook,
            method=method,
        )
        if backward is not None:
            # Not as a method, of which Equinox makes a module with a `self`.
            hooked = BackwardHook.init(hooked, *args, **kwargs)

        def call(hooked: BackwardHook, args: Any, kwargs: Any) -> tuple[Any, Any]:
            out = hooked(*args, **kwargs)
            out, log = out if forward is not None else (out, None)
            if not has_aux:
                return out, (out, log)
            if not isinstance(out, tuple | list) or len(out) != 2:
                raise TypeError(
                    "`px.value_and_grad(loss, has_aux=True)` expects a loss that "
                    f"returns a pair `(value, aux)`; got a {type(out).__name__}. "
                    "Return both, or leave `has_aux` out."
                )
            return out[0], (out, log)

        (_, (out, log)), grads = eqx.filter_value_and_grad(call, has_aux=True)(
            hooked, args, kwargs
        )
        grad = grads.model if forward is None else grads.model.model
        return (out, Logs(None if backward is None else grads.log, log)), grad

    return run


def _own_sites(where: Where, log_fn: LogFn, hook_fn: Hook = None) -> Where:
    """Without `where`, what a dict of logs chooses, and a dict of hooks beside it."""
    if where is not None or not isinstance(log_fn, dict):
        return where
    return [*log_fn, *(hook_fn if isinstance(hook_fn, dict) else ())] or None
