"""Hooks that stand around the call of a module, rather than at its output."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx

from .callables import refuse_class


class AbstractCallHook(eqx.Module):
    """Base class of hooks that decide whether a call is made, and with what."""

    @abc.abstractmethod
    def __call__(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What stands in the place of `call(*args, **kwargs)`."""


class AroundCall(AbstractCallHook):
    """Stands around the call of a module: `fn(call, *args, **kwargs)` is what it
    returns. `call(...)` runs the original, once, twice or never, with whatever
    arguments.

    What it runs is logged as always; an original that isn't run leaves nothing of what
    is inside in a log. The log of the site itself is of what `fn` returns.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        mlp = eqx.nn.MLP(2, 1, 8, depth=2, key=jax.random.key(0))
        residual = px.AroundCall(lambda call, x: x + call(x))
        out, _ = px.ForwardHook(mlp, residual, where="layers.1")(jnp.ones(2))
        ```
    """

    fn: Any

    def __init__(self, fn: Any):
        """**Arguments:**

        - `fn`: is called with the call and its arguments, and returns an output like
            that of the call: of the same structure, shapes and dtypes. Of a stateful
            layer that is the pair `(output, state)`. Its arrays are leaves of the
            wrapper.

        It may stand wherever `hook_fn` may for a module, also for one of its calls, as
        in `{"cell#1": px.AroundCall(fn)}`, but not at a value inside of one, nor in a
        [`peex.BackwardHook`][], whose hooks act on cotangents.

        **Raises:**

        `TypeError` for what can't be called. When it is called,
        [`peex.HookShapeError`][] for an output unlike that of the call.
        """
        self.fn = _checked(type(self).__name__, fn, "lambda call, x: x + call(x)")

    def __call__(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.fn(call, *args, **kwargs)


class ReplaceCall(AbstractCallHook):
    """Puts a function or a module in the place of the call of a module, which isn't
    run: `fn(*args, **kwargs)`. The short form of [`peex.AroundCall`][] for this.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        mlp = eqx.nn.MLP(2, 1, 8, depth=2, key=jax.random.key(0))
        other = eqx.nn.Linear(8, 8, key=jax.random.key(1))
        hooked = px.ForwardHook(mlp, px.ReplaceCall(other), None, where="layers.1")
        grads = eqx.filter_grad(lambda hooked: hooked(jnp.ones(2))[0][0])(hooked)
        grads.hook_fn.fn.weight.shape  # (8, 8): the one in its place is trained
        ```
    """

    fn: Any

    def __init__(self, fn: Any):
        """**Arguments:**

        - `fn`: is called with the arguments of the call; otherwise as for
            [`peex.AroundCall`][].

        **Raises:**

        As [`peex.AroundCall`][].
        """
        self.fn = _checked(type(self).__name__, fn, "other_layer")

    def __call__(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)


def _checked(name: str, fn: Any, example: str) -> Any:
    refuse_class(f"The function of {name}", fn)
    if not callable(fn):
        raise TypeError(
            f"{name} was given {fn!r}, which can't be called. Write "
            f"`px.{name}({example})`."
        )
    return fn
