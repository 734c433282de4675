"""Loss, gradient and logs in one call, without `init`."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, overload, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.export
import jax.tree_util as jtu
from jaxtyping import ArrayLike

from .. import _compat
from .._engine.site import freeze, Frozen
from .._hooks.log_fns import IdentityLog
from .._log import empty, Log
from .._sites.walk import with_fields
from .backward import BackwardHook
from .forward import ForwardHook
from .run import run as run_hooked
from .traced_once import PlaceholderCollector, value_and_grad as traced_once
from .types import FilterSpec, Hook, LogFn, Where


_P = ParamSpec("_P")
_Value = TypeVar("_Value", bound=ArrayLike)
_Aux = TypeVar("_Aux")


class Logs(NamedTuple):
    """The logs of [`peex.value_and_grad`][]; empty where none was asked for."""

    backward: Log
    forward: Log

    def __str__(self) -> str:
        shown = (f"{name}:\n{log}" for name, log in self._there())
        return "\n\n".join(shown) or repr(self)

    def _repr_html_(self) -> str:
        shown = (f"<p>{name}</p>{log._repr_html_()}" for name, log in self._there())
        return "".join(shown)

    def _there(self) -> list[tuple[str, Log]]:
        return [(name, log) for name, log in self._asdict().items() if log]


jax.export.register_namedtuple_serialization(Logs, serialized_name="peex.Logs")


class _Step(NamedTuple):
    """The arguments of `value_and_grad`, and what it does with them."""

    loss: Callable[..., Any]
    backward: Any
    forward: Any
    hook_fn: Any
    where: Any
    pre_hook: bool
    has_aux: bool
    trainable: Any

    def __call__(
        self, model: Any, /, *args: Any, **kwargs: Any
    ) -> tuple[tuple[Any, Logs], Any]:
        loss, *parts, pre_hook, has_aux, trainable = self
        backward, forward, hook_fn, where = map(_as_given, parts)
        trained, frozen = _split(model, trainable)
        trained, others = eqx.partition(trained, eqx.is_inexact_array)
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
        outside = _compat.current_trace()

        def call(trained: Any) -> tuple[Any, Any, PlaceholderCollector]:
            whole = eqx.combine(trained, others, frozen)
            if forward is not None:
                whole = with_fields(inner, model=whole)
            make = lambda: PlaceholderCollector(hook_fn, backward, outside)
            out, collector = run_hooked(hooked.plan, whole, make, True, args, kwargs)
            out, log = out if forward is not None else (out, Log())
            if not has_aux:
                return out, (out, log), collector
            if not isinstance(out, tuple | list) or len(out) != 2:
                raise TypeError(
                    "`px.value_and_grad(loss, has_aux=True)` expects a loss that "
                    f"returns a pair `(value, aux)`; got a {type(out).__name__}. "
                    "Return both, or leave `has_aux` out."
                )
            return out[0], (out, log), collector

        if hooked.plan.logs:
            (out, log), grads, backward_log = traced_once(call, trained)
        else:
            direct = eqx.filter_value_and_grad(lambda x: call(x)[:2], has_aux=True)
            (_, (out, log)), grads = direct(trained)
            backward_log = Log()
        return (out, Logs(backward_log, log)), grads


class _Items(NamedTuple):
    """A dict in its own order, in which its patterns are tried; a pytree of dicts has
    that of their keys.
    """

    keys: tuple[str, ...]
    values: tuple[Any, ...]


def _in_order(x: Any) -> Any:
    return _Items(tuple(x), tuple(x.values())) if isinstance(x, Mapping) else x


def _as_given(x: Any) -> Any:
    return dict(zip(x.keys, x.values, strict=True)) if isinstance(x, _Items) else x


def _split(model: Any, trainable: Any) -> tuple[Any, Any]:
    """The two halves of a model: what is trained, and what isn't."""
    try:
        return eqx.partition(model, trainable)
    except ValueError as error:
        is_plain = isinstance(trainable, str | int | float)
        got = repr(trainable) if is_plain else f"a {type(trainable).__name__}"
        raise TypeError(
            "`trainable` says which arrays of the model get a gradient, as the filter "
            "of `equinox.partition` does: a function from a leaf to a bool, a bool, or "
            f"a pytree of these like the model or a prefix of it; got {got}. For one "
            "layer alone, write `trainable=eqx.tree_at(lambda m: m.head, "
            "jax.tree.map(lambda _: False, model), True)`."
        ) from error


@jtu.register_pytree_node_class
class _ValueAndGrad:
    """What `value_and_grad` returns. A pytree, equal to another that is made of equal
    arguments, so that JAX knows it again; but no module, which would be a site where it
    is a field of a model.
    """

    def __init__(self, step: Frozen, arrays: Any):
        self._step = step
        self._arrays = arrays
        self.__name__ = step.name  # of the loss

    def __call__(self, model: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._step.thaw(self._arrays)(model, *args, **kwargs)

    def empty(self, model: Any, /, *args: Any, **kwargs: Any) -> Logs:
        """What the logs of a call are merged with as the first: see `px.merge`."""
        (_, logs), _ = eqx.filter_eval_shape(self, model, *args, **kwargs)
        return Logs(*map(empty, logs))

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self if instance is None else eqx.Partial(self, instance)

    @property
    def __wrapped__(self) -> Any:
        step: Any = self._step.thaw(self._arrays)
        return step.loss

    def tree_flatten(self) -> tuple[Any, Any]:
        return (self._arrays,), self._step

    @classmethod
    def tree_unflatten(cls, step: Any, children: Any) -> "_ValueAndGrad":
        return cls(step, *children)

    def __eq__(self, other: object) -> bool:
        if type(other) is not _ValueAndGrad or self._step != other._step:
            return False
        return all(a is b for a, b in zip(self._arrays, other._arrays, strict=True))

    def __hash__(self) -> int:
        return hash(self._step)


@overload
def value_and_grad(
    loss: Callable[_P, _Value],
    *,
    backward: LogFn = ...,
    forward: LogFn = ...,
    hook_fn: Hook = ...,
    where: Where = ...,
    pre_hook: bool = ...,
    has_aux: Literal[False] = ...,
    trainable: FilterSpec = ...,
) -> Callable[_P, tuple[tuple[_Value, Logs], Any]]: ...


@overload
def value_and_grad(
    loss: Callable[_P, tuple[_Value, _Aux]],
    *,
    backward: LogFn = ...,
    forward: LogFn = ...,
    hook_fn: Hook = ...,
    where: Where = ...,
    pre_hook: bool = ...,
    has_aux: Literal[True],
    trainable: FilterSpec = ...,
) -> Callable[_P, tuple[tuple[tuple[_Value, _Aux], Logs], Any]]: ...


def value_and_grad(
    loss: Callable[..., Any],
    *,
    backward: LogFn = IdentityLog(),
    forward: LogFn = None,
    hook_fn: Hook = None,
    where: Where = None,
    pre_hook: bool = False,
    has_aux: bool = False,
    trainable: FilterSpec = eqx.is_inexact_array,
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
    - `trainable`: which arrays of the model get a gradient, as the `filter_spec` of
        `equinox.partition`: a pytree of booleans, or a prefix of one, or a function
        from a leaf to a boolean. The loss gets the whole model, and the logs are
        complete, whatever is frozen.

    **Returns:**

    A function of `(model, *args, **kwargs)` that returns `(value, logs), grads`: what
    the loss returned (with `has_aux`, the pair), the [`peex.Logs`][], and the gradient
    with respect to the model: of its structure, `None` for what isn't trainable or has
    no gradient. Made twice of the same arguments, it is traced once under
    `equinox.filter_jit`; arrays of hooks and logs are inputs of the compiled program.

    **Raises:**

    `TypeError` if `has_aux` and the loss returns no pair, and if `trainable` is no
    filter of the model; and as [`peex.BackwardHook`][].
    """

    backward, forward, hook_fn, where = map(
        _in_order, (backward, forward, hook_fn, where)
    )
    step = _Step(loss, backward, forward, hook_fn, where, pre_hook, has_aux, trainable)
    return _ValueAndGrad(*freeze(getattr(loss, "__name__", type(loss).__name__), step))


def _own_sites(where: Where, log_fn: LogFn, hook_fn: Hook = None) -> Where:
    """Without `where`, what a dict of logs chooses, and a dict of hooks beside it."""
    if where is not None or not isinstance(log_fn, dict):
        return where
    return [*log_fn, *(hook_fn if isinstance(hook_fn, dict) else ())] or None
