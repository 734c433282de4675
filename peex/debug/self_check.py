"""Checking on a model that hooks do what they should."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._hooks.at import At
from .._hooks.from_log import PatchHook
from .._hooks.hooks import AddHook
from .._hooks.log_fns import IdentityLog
from .._log import Log
from .._report.report import report
from .._wrappers.forward import ForwardHook
from .._wrappers.plan import check_method
from .._wrappers.run import as_function
from .._wrappers.types import Method
from .._wrappers.value_and_grad import value_and_grad
from .recorded import scalar_of, value_of
from .self_checked import Check, SelfCheck


# What may be rounded differently, next to the largest value.
_ROUNDING = 1e-4
# Of how many sites the cotangent is checked: each is compiled.
_MOST_SITES = 3
_STEP = 1e-5


def selfcheck(
    model: Any, *args: Any, method: Method | None = None, grad: bool = True
) -> SelfCheck:
    """Checks on a model of yours that hooks do what they should: that the hooked model
    is the unhooked one, that what is logged can be put back, that cotangents are
    derivatives, that the report says what a log holds, and that nothing is compiled
    twice.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        mlp = eqx.nn.MLP(2, 1, 8, depth=1, key=jax.random.key(0))
        checked = px.debug.selfcheck(mlp, jnp.ones(2))
        checked.raise_if_failed()
        str(checked)  # a table, as `print` shows it
        ```

    **Arguments:**

    - `model`, `*args`: as for the call. It must return the same each time.
    - `method`: what is called, as for [`peex.ForwardHook`][]. What isn't a scalar is
        summed before it is differentiated.
    - `grad`: whether gradients and cotangents are checked too. The cotangents of a few
        sites, at their first step, next to central differences in float64 along a
        random direction.

    **Returns:**

    A [`peex.debug.SelfCheck`][]. Its `raise_if_failed()` raises
    [`peex.PeexError`][].

    **Raises:**

    What the model raises, and [`peex.ForwardHook`][] with it.
    """
    method = "__call__" if method is None else method
    check_method(model, method)
    fn = as_function(method)
    traced: list[None] = []

    def counted(model: Any, *args: Any) -> Any:
        traced.append(None)
        return fn(model, *args)

    run = eqx.filter_jit(_call)
    hooked = ForwardHook(model, None, IdentityLog(), method=counted)
    plain = eqx.filter_jit(fn)(model, *args)
    out, log = run(hooked, *args)
    first = len(traced)
    run(ForwardHook(model, None, IdentityLog(), method=counted), *args)
    checks = [_same("value", plain, out, "hooked and unhooked, compiled")]
    again = len(traced) - first
    checks.append(
        Check("second call", again, again == 0, "how often it was traced again")
    )
    eager = ForwardHook(model, None, IdentityLog(), method=fn)(*args)
    checks.append(_same("jit", (plain, dict(log)), (eager[0], dict(eager[1])), "eager"))
    patched, _ = run(ForwardHook(model, PatchHook(log), None, method=fn), *args)
    checks.append(_same("patch", out, patched, "with the model's own log"))
    checks.append(_as_reported(model, args, fn, log))
    if grad:
        scalar = lambda model, *args: scalar_of(value_of(fn(model, *args)))
        expected = eqx.filter_jit(eqx.filter_value_and_grad(scalar))(model, *args)
        both = eqx.filter_jit(value_and_grad(scalar))(model, *args)
        (value, _), grads = both
        note = "hooked and unhooked, compiled"
        checks.append(_same("gradient", expected, (value, grads), note))
        checks += _cotangents(model, args, scalar)
    return SelfCheck(tuple(checks))


def _call(hooked: Any, *args: Any) -> Any:
    return hooked(*args)


def _same(name: str, expected: Any, got: Any, note: str) -> Check:
    figure = _difference(expected, got)
    exact = "bit for bit" if figure == 0 else "rounded differently"
    passed = figure <= _ROUNDING
    return Check(name, figure, passed, f"{note}{f', {exact}' if passed else ''}")


def _difference(expected: Any, got: Any) -> float:
    """The largest difference of two pytrees, next to the largest value; infinite if
    they aren't of one structure.
    """
    arrays = [jtu.tree_leaves(eqx.filter(x, eqx.is_array)) for x in (expected, got)]
    if [np.shape(x) for x in arrays[0]] != [np.shape(x) for x in arrays[1]]:
        return np.inf
    worst = 0.0
    for x, y in zip(*arrays, strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.extended):
            continue
        x, y = (np.asarray(z).astype(np.complex128) for z in (x, y))
        if x.size and not np.array_equal(x, y, equal_nan=True):
            scale = max(float(np.max(np.abs(x))), 1e-30)
            worst = max(worst, float(np.max(np.abs(x - y))) / scale)
    return np.inf if np.isnan(worst) else worst


def _as_reported(
    model: Any, args: Sequence[Any], fn: Callable[..., Any], log: Log
) -> Check:
    shown = report(model, *args, method=fn)
    shape = lambda x: (tuple(x.shape), str(x.dtype))
    shapes = lambda tree: [shape(x) for x in jtu.tree_leaves(tree)]
    said = {key: shapes(call.log) for key, call in shown.entries.items()}
    held = {key: shapes(log[key]) for key in log}
    differ = [k for k in said.keys() | held.keys() if said.get(k) != held.get(k)]
    if not differ and list(said) != list(held):
        differ = ["the order"]
    note = f"what a log holds: {', '.join(sorted(differ)[:3])}" if differ else "the log"
    return Check("report", len(differ), not differ, note)


def _cotangents(
    model: Any, args: tuple[Any, ...], scalar: Callable[..., Any]
) -> list[Check]:
    """The derivative at one step of a site: that at all steps together would be the
    direct one, without what a step does to the next.
    """
    with jax.enable_x64(True):
        model, args = jtu.tree_map(_wide, (model, args))
        (_, logs), _ = eqx.filter_jit(value_and_grad(scalar))(model, *args)
        log = logs.backward
        keys = [key for key in log if isinstance(log[key], jax.Array)]
        keys = [key for key in keys if log[key].dtype == jnp.float64]
        chosen = sorted({0, len(keys) // 2, len(keys) - 1}) if keys else []
        return [
            _by_differences(model, args, scalar, log, keys[i])
            for i in chosen[:_MOST_SITES]
        ]


def _wide(x: Any) -> Any:
    narrow = eqx.is_array(x) and jnp.issubdtype(x.dtype, jnp.floating)
    return jnp.asarray(np.asarray(x).astype(np.float64)) if narrow else x


def _by_differences(
    model: Any, args: tuple[Any, ...], scalar: Callable[..., Any], log: Log, key: str
) -> Check:
    axes, cotangent = log.axes[key], np.asarray(log[key])
    at = tuple(0 if axis.kind == "step" else slice(None) for axis in axes)
    value_shape = cotangent.shape[len(axes) :]
    direction = np.random.default_rng(0).normal(size=value_shape)
    mask = np.zeros(cotangent.shape, bool)
    mask[at] = True

    @eqx.filter_jit
    def moved(model: Any, args: tuple[Any, ...], offset: Any) -> Any:
        hook = At(AddHook(offset), jnp.asarray(mask))
        return ForwardHook(model, hook, None, where=key, method=scalar)(*args)[0]

    ahead, behind = (
        float(moved(model, args, jnp.asarray(sign * _STEP * direction)))
        for sign in (1, -1)
    )
    expected = (ahead - behind) / (2 * _STEP)
    got = float(np.sum(cotangent[at] * direction))
    scale = max(abs(expected), abs(got), 1e-12)
    figure = abs(expected - got) / scale
    note = "next to central differences in float64"
    return Check(f"cotangent of {key}", figure, figure <= 1e-3, note)
