"""The calls of a model as a tree in which some can be replaced: `px.trace`."""

from collections.abc import Mapping
from typing import Any, overload

import equinox as eqx

from .._errors import SiteNotFoundError
from .._hooks.call_hooks import AbstractCallHook, ReplaceCall
from .._hooks.hooks import AbstractHook
from .._hooks.step_hooks import AbstractStepHook
from .._show.shown import AbstractShown
from .._sites.patterns import nearest
from .._wrappers.forward import ForwardHook
from .._wrappers.run import call_method
from .._wrappers.types import Method
from .calls import Call
from .isolate import isolate, Isolated
from .report import report
from .result import Report


class CallTree(eqx.Module, AbstractShown):
    """A model with the calls that it makes, made by [`peex.trace`][]. Called, it runs
    the model, with some of the calls replaced.

    A pytree: the arrays of the model and of what was put in the place of calls are its
    leaves, and can be trained.

    - `model`: the model, which isn't changed.
    - `changes`: what was put in the place of calls, by their keys.
    - `report`: what the calls are, a [`peex.Report`][]. Printed, the tree is that of
        the report; `tree[key]` is a call of it.
    """

    model: Any
    changes: dict[str, Any]
    report: Report = eqx.field(static=True, repr=False)
    method: Method = eqx.field(static=True)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the model, with the calls that were replaced.

        **Raises:**

        [`peex.SiteNotFiredError`][] if these arguments don't lead to a call that was
        replaced (as another branch in Python doesn't); [`peex.HookShapeError`][] if
        what is in its place returns something else.
        """
        return self._run(self.model, *args, **kwargs)

    def _run(self, model: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not self.changes:
            return call_method(model, self.method, args, kwargs)
        calls = {key: self.report[key] for key in self.changes}
        hooks = {f"{c.site}#{c.number}": self.changes[key] for key, c in calls.items()}
        where = list(dict.fromkeys(call.site for call in calls.values()))
        hooked = ForwardHook(model, hooks, None, where=where, method=self.method)
        out, _ = hooked(*args, **kwargs)
        return out

    @overload
    def replace(self, key: str, fn: Any, /) -> "CallTree": ...
    @overload
    def replace(self, changes: Mapping[str, Any], /) -> "CallTree": ...
    def replace(self, key: str | Mapping[str, Any], fn: Any = None, /) -> "CallTree":
        """A tree with something else in the place of a call.

        **Arguments:**

        - `key`: of the call: `"b.shared"` is the first, `"b.shared#1"` the second.
        - `fn`: a function or module, called with the arguments of the call, which isn't
            made; or a hook, which acts on what it returns, or is around it.

        Or a dict from keys to these.

        **Raises:**

        [`peex.SiteNotFoundError`][] for a key that is no call, `TypeError` for a value
        inside of one, or for what can't be called.
        """
        new = {key: fn} if isinstance(key, str) else dict(key)
        changes = dict(self.changes)
        for name, one in new.items():
            changes[name] = _as_hook(self._call(name), one)
        return CallTree(self.model, changes, self.report, self.method)

    def isolate(self, key: str, /, *args: Any, **kwargs: Any) -> Isolated:
        """Runs the model, with what is in the place of calls, for one call of it: what
        that is given, and returns, with what isn't an array.

        !!! Example

            ```python
            import equinox as eqx
            import jax
            import jax.numpy as jnp
            import peex as px

            mlp = eqx.nn.MLP(2, 1, 8, depth=2, key=jax.random.key(0))
            xs = jnp.ones((5, 2))
            tree = px.trace(mlp, xs, method=lambda mlp, xs: jax.vmap(mlp)(xs))
            call = tree.isolate("layers.1", xs)
            call.args[0].shape  # (5, 8); call.axes says that it is a batch
            jnp.array_equal(call(), call.output)  # True: the layer alone
            ```

        **Arguments:**

        - `key`: of the call: `"b.shared"` is the first, `"b.shared#1"` the second.
        - `*args`, `**kwargs`: of the model, as arrays. An `eqx.nn.State` among them can
            be used once more.

        **Returns:**

        A [`peex.Isolated`][]. Of a call in a `while` loop, it is the last iteration.

        **Raises:**

        As the tree itself, when it is called. [`peex.SiteNotFoundError`][] for a key
        that is no call, [`peex.SiteNotFiredError`][] for a call that these arguments
        don't lead to, `TypeError` for one that was replaced. [`peex.PeexError`][] for a
        call that branches make with arguments that are unlike.
        """
        call = self._call(key)
        if key in self.changes:
            raise TypeError(
                f"The call {key!r} isn't made: in this tree something else is in its "
                f"place. Write `px.trace(model, *args).isolate({key!r}, *args)`."
            )
        where, method = f"{call.site}#{call.number}", self.method
        if self.changes:
            if call.site == "." and method != "__call__" and isinstance(method, str):
                where = f".:{method}#{call.number}"
            method = self._run
        return isolate(key, where, self.model, method, args, kwargs)

    def _call(self, key: str) -> Call:
        if key not in self.report:
            calls = [call.key for call in self.report.tree]
            raise SiteNotFoundError(
                f"{key!r} is no call of this tree. Nearest: {nearest(key, calls)}."
            )
        call = self.report[key]
        if call.is_inside:
            raise TypeError(
                f"{key!r} is a value inside of a call, which a tree can't replace or "
                "isolate. "
                "Write `px.ForwardHook(model, px.ReplaceHook(value), where="
                f"{call.site!r})`."
            )
        return call

    def __getitem__(self, key: str) -> Call:
        return self.report[key]

    def _text(self, fold: bool | None, width: int) -> str:
        return self.report.tree._text(fold, width)

    def _html(self, fold: bool | None) -> str:
        return self.report.tree._html(fold)


def _as_hook(call: Call, fn: Any) -> Any:
    if isinstance(fn, AbstractHook | AbstractStepHook | AbstractCallHook):
        return fn
    if not callable(fn):
        raise TypeError(
            f"The call {call.key!r} was to be replaced by {fn!r}, which can't be "
            f"called. Write `tree.replace({call.key!r}, lambda x: x)`."
        )
    return ReplaceCall(fn)


def trace(
    model: Any,
    *args: Any,
    method: Method = "__call__",
    **kwargs: Any,
) -> CallTree:
    """Finds the calls that a model makes, so that they can be looked at, and replaced
    one by one. Nothing is computed.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        class Twice(eqx.Module):
            shared: eqx.nn.Linear

            def __call__(self, x):
                return self.shared(jnp.tanh(self.shared(x)))

        model = Twice(eqx.nn.Linear(4, 4, key=jax.random.key(0)))
        x = jnp.ones(4)
        tree = px.trace(model, x)
        str(tree)  # the calls, one within the other
        out = tree.replace("shared#1", lambda x: -x)(x)
        # -tanh(shared(x))
        ```

    **Arguments:**

    - `model`, `*args`, `**kwargs`, `method`: as for [`peex.report`][]; arrays may be
        mere shapes. (Called, the tree needs arrays.)

    **Returns:**

    A [`peex.CallTree`][].

    **Raises:**

    As [`peex.report`][].
    """
    found = report(model, *args, method=method, **kwargs)
    return CallTree(model, {}, found, method)
