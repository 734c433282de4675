"""The forward wrapper: activations, logged and changed."""

from collections.abc import Sequence
from typing import Any, Generic

import equinox as eqx
import jax
import jax.numpy as jnp

from .._engine.collector import Collector
from .._engine.merging import merge
from .._engine.messages import Tap
from .._engine.numbering import Numbering
from .._engine.values import eval_shape
from .._hooks.hooks import IdentityHook
from .._hooks.log_fns import IdentityLog
from .._log import described, empty, held, Log
from .._sites.walk import AbstractWrapper
from .alike_logs import Alike
from .budget import check_size
from .hook_collector import HookCollector
from .hooked_again import warn_if_hooked_again
from .plan import Plan, plan
from .run import run
from .types import Hook, LogFn, Method, Model, Where


class ForwardHook(AbstractWrapper, Generic[Model]):
    """Wraps a model so that it hands back what its parts computed, or changes it.

    The model, which is the wrapper's `model`, isn't edited and isn't changed. The
    wrapper is a pytree, and can be used under every JAX transformation, as the model
    can; it inserts no custom derivative, so forward mode and higher derivatives go on
    working.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        mlp = eqx.nn.MLP(2, 1, 8, depth=2, key=jax.random.key(0))
        x = jnp.ones(2)

        output, log = px.ForwardHook(mlp)(x)
        log["layers.0"].shape  # (8,)

        # Change a value instead: what if the second layer were silent?
        silent = px.ForwardHook(mlp, px.ZeroHook(), None, where="layers.1")
        output, _ = silent(x)
        ```
    """

    model: Model
    hook_fn: Any
    log_fn: Any
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
        while_buffer: int | None = None,
        max_bytes: int | None = None,
    ):
        """**Arguments:**

        - `model`: any Equinox module, or a pytree of modules (with `method`).
        - `hook_fn`: maps a value to a value of the same tree structure, shapes and
            dtypes: an [`peex.AbstractHook`][], any callable, `None`, or a dict from
            patterns to these (the first that matches a site's key acts there). Arrays
            inside are leaves of the wrapper, so they can be trained.
        - `log_fn`: maps what the hook returned to any pytree of arrays. As `hook_fn`.
        - `where`: which sites. `None`: all leaf modules (callable, with no callable
            module inside). A pattern over keys, as `"layers.*.attn"` or `"**.norm"`
            (`*` is one path component, `**` any number), a class, or a list of these;
            a function from the model to its nodes, `lambda m: [m.a, m.b]`; or a dict
            from names of your own to patterns and classes, `{"resid": "layers.*"}`.
            These names become the keys, with what the wildcards stand for behind them:
            `"resid.0"`, `"resid.1"` (of a class, the key of the module). Any key
            that is listed or logged is a pattern: `"cell#1"` is the second call of
            `cell` alone (a hook runs at all calls, and what it makes of the others is
            dropped). A key of a dict that could be taken for something else is listed
            in quotes, as in `{"a.b": ..., "a": {"b": ...}}`.
            `"embed:attend"` is a method other than `__call__`, and `"attn:in"` (or
            `"embed:attend:in"`) are the positional arguments of the call (no keyword
            arguments): a lone one as itself, several as a tuple. Functions in fields,
            as an activation, are sites where they are named. `"attn/softmax"` is a
            value inside of a module's forward pass: see below.
        - `pre_hook`: whether the value of all sites is the tuple of a module's
            positional arguments instead of its output, under the key of that. (The
            output of a stateful layer, which returns a pair with an `eqx.nn.State`, is
            what comes before that.)
        - `with_kwargs`: of a pre hook, whether the value is the pair `(args, kwargs)`.
        - `method`: what is run: the name of a method of the model, or a function
            `f(model, *args, **kwargs)`, such as a rollout or a loss.
        - `while_buffer`: inside of a while loop, whose number of iterations isn't known
            before it runs, a log holds the last one. With this it holds the last
            `while_buffer` ones, oldest first, along a step axis of that size (zeros
            behind the last, if there were fewer).
        - `max_bytes`: how many bytes the log of a call may take. Before anything runs,
            the call is traced (so, as under `jit`, no branch in Python may depend on
            an array's value), and raises if its log would take more. A transformation
            around the wrapper adds to that: a `vmap` of 8 takes 8 times as much.

        **Raises:**

        [`peex.SiteNotFoundError`][] if a part of `where`, or a pattern of `hook_fn` or
        `log_fn`, matches nothing. `TypeError` for arguments of other types.

        A `UserWarning` if the model is wrapped in an equal wrapper already.

        **Values inside of a forward pass**

        `"attn/NAME"` is what NAME computes in each call of the module, in the layout
        that it has there: the attention probabilities of an `eqx.nn.MultiheadAttention`
        are `"attn/softmax"`, with axes for heads, queries and keys. NAME is

        - an operation, by the name of its primitive (`"div"`, `"dot_general"`), or,
            where nothing else has it, by the one it has in `jax.numpy` or `jax.nn`
            (`"divide"`, `"matmul"`, `"sigmoid"`);
        - a function of `jax.jit`, `jax.custom_jvp` or `jax.custom_vjp`, by its name;
        - a mark, `jax.ad_checkpoint.checkpoint_name(x, NAME)`;
        - a `px.probe(x, NAME)`;
        - if it is none of these, a Python function or method that is called, by its
            name: the value is what it returns. Several arrays are a tuple, in the
            order in which they are returned.

        `"attn/div#1"` is the second of its name in one call, `"attn/div"` are all of
        them, and `"attn/*"` all that have a name (of Python functions, those of the
        model's own code, and of JAX that it calls); in the log, those of a further call
        of the module are `"attn#1/div"`. What
        a callable module inside computes belongs to that one. Bodies of `jit`,
        `checkpoint`, `scan`, `cond` and `while_loop` are seen into, those of custom
        derivatives aren't. A name that isn't there raises [`peex.SiteNotFiredError`][],
        which lists those that are, with file and line.

        The module is traced for this when it is called, so its code can't look at the
        values of arrays. The calls of a Python function are seen by a profiler
        (`sys.setprofile`, put back afterwards). A function that returns what it was
        given has no value.
        """
        # First: it refuses what no module could hold.
        self.plan = plan(
            model,
            hook_fn,
            log_fn,
            where,
            pre_hook,
            with_kwargs,
            method,
            while_buffer,
            max_bytes,
        )
        self.model = model
        self.hook_fn = hook_fn
        self.log_fn = log_fn
        warn_if_hooked_again(self)

    def __call__(self, /, *args: Any, **kwargs: Any) -> tuple[Any, Log]:
        """Runs the model on these arguments.

        **Returns:**

        The model's output, and a [`peex.Log`][]: for each call of each site, in
        execution order, what `log_fn` returned. A site inside a `scan` gains a leading
        step axis, inside a `vmap` a batch axis behind that.

        **Raises:**

        [`peex.HookShapeError`][], [`peex.LogValueError`][]: what a hook or log returned
        isn't allowed. [`peex.SiteNotFiredError`][]: something that `where` asks for
        didn't run. [`peex.SiteLostError`][]: a value can't be brought out.
        [`peex.LogTooLargeError`][]: the log would take more than `max_bytes`.
        """
        if self.plan.max_bytes is not None:
            _, log = eval_shape(_run, self, args, kwargs)
            check_size(log, self.plan.max_bytes)
        return _run(self, args, kwargs)

    def empty(self, /, *args: Any, **kwargs: Any) -> Log:
        """What the log of a call is merged with as the first: see [`peex.merge`][].
        Nothing is computed.

        **Arguments:**

        Arguments like those of the call: arrays, or `jax.ShapeDtypeStruct`s.

        **Returns:**

        A [`peex.Log`][] with the keys of that of the call, of all of which `log_fn` is
        an accumulator.

        **Raises:**

        [`peex.LogValueError`][] if one isn't.
        """
        _, log = eval_shape(_run, self, args, kwargs)
        return empty(log)


# No method: Equinox makes a module of each that is looked up, which takes long.
def _run(
    hooked: ForwardHook, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Log]:
    make = lambda: HookCollector(hooked.hook_fn, hooked.log_fn)
    out, collector = run(hooked.plan, hooked.model, make, False, args, kwargs)
    return out, _log(collector)


def _log(collector: Collector) -> Log:
    number, alike = Numbering(), Alike()
    taps: dict[str, tuple[Tap, Sequence[Any]]] = {}
    for info, arrays in collector.records:
        if info.site.log is None:
            continue
        key = number(info.site)
        if key is None:
            continue
        key = alike.first(key, info, [jax.typeof(x) for x in arrays])
        if key in taps:
            arrays = merge(info, taps[key][1], arrays)
        taps[key] = info, arrays
    entries, counts, gained = {}, {}, {}
    for key, (info, arrays) in taps.items():
        if info.counted:
            *arrays, count = arrays
            counts[key] = jnp.squeeze(count, info.axes.rings)
        entries[key] = held(info.site, info.treedef.unflatten(arrays))
        gained[key] = info.axes
    return Log(entries, counts, described(gained))
