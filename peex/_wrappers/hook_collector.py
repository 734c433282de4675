"""What listens to the sites of a wrapper, and answers with what its hooks hold."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from .. import _compat
from .._engine.active_calls import next_depth
from .._engine.collector import Collector
from .._engine.messages import ArraysAsk, Ask
from .._engine.numbering import Numbering
from .._engine.scope import Scope
from .._engine.site import freeze, Frozen, Site
from .._engine.values import zeros
from .._hooks.hooks import IdentityHook
from .._hooks.log_fns import IdentityLog
from .._hooks.step_hooks import AbstractStepHook, OnlyIf
from .plan import by_name


class HookCollector(Collector):
    """Collects for a wrapper, and answers with what its hooks hold.

    - `frozen`: the hooks and logs by name, without their arrays.
    """

    state = (*Collector.state, "_number")

    def __init__(self, hook_fn: Any, log_fn: Any):
        super().__init__(Scope(next_depth()))
        self.fns = {"hook_fn": hook_fn, "log_fn": log_fn}
        self.frozen: dict[str, Frozen] = {}
        self.step_hooks: dict[str, AbstractStepHook] = {}
        self._arrays: dict[str, list[Any]] = {}
        self._number = Numbering()
        for name, fn in [*by_name("hook_fn", hook_fn), *by_name("log_fn", log_fn)]:
            if isinstance(fn, AbstractStepHook):
                self.step_hooks[name] = fn
                fn = fn.local_half
            if type(fn) is not IdentityHook:
                is_log = type(fn) is IdentityLog
                self.frozen[name], self._arrays[name] = freeze(name, fn, is_log)

    def of_one_call(self, name: str) -> Frozen:
        """A hook that acts in one call of its module only."""
        short = f"{name}, in one call"
        if short not in self._arrays:
            hook = self.frozen[name].thaw(self._arrays[name])
            self.frozen[short], self._arrays[short] = freeze(short, OnlyIf(hook))
        return self.frozen[short]

    @property
    def heard(self) -> list[Site]:
        """The site of each call that was received."""
        return [info.site for info, _ in self.records]

    def supply(self, info: Ask) -> Sequence[Any]:
        if isinstance(info, ArraysAsk):
            return self._arrays[info.fn]
        site = info.site
        self.received.add(site.key)
        assert site.hook is not None
        call = self._number.next(site)
        shapes = info.shapes
        data: list[Any] = []
        name = site.hook.name
        if site.call is not None:
            name = name.removesuffix(", in one call")
            acts = jnp.full(shapes[0].shape, site.is_of(call))
            data, shapes = [acts], shapes[1:]
        if name in self.step_hooks and site.is_of(call):
            key = site.numbered(call)
            hook = self.step_hooks[name]
            data += hook.data_of_call(key, call, shapes, info.axes)
        else:
            data += [zeros(s) for s in shapes]
        # Of an explicit sharding, too.
        pairs = zip(data, info.shapes, strict=True)
        data = [_compat.typed_as(x, shape) for x, shape in pairs]
        return _compat.as_varying(data, info.varying)
