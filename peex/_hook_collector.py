"""What listens to the sites of a wrapper, and answers with what its hooks hold."""

from collections.abc import Container, Sequence
from typing import Any

from ._collect import Collector
from ._hooks import IdentityHook
from ._indexed import AbstractIndexedHook
from ._log import Numbering
from ._plan import named
from ._primitives import lost
from ._running import next_depth
from ._site import Ask, freeze, Frozen


class HookCollector(Collector):
    """Collects for a wrapper, and answers with what its hooks hold.

    - `frozen`: the hooks and logs by name, without their arrays.
    """

    def __init__(self, hook_fn: Any, log_fn: Any):
        super().__init__(next_depth())
        self.fns = {"hook_fn": hook_fn, "log_fn": log_fn}
        self.frozen: dict[str, Frozen] = {}
        self.indexed: dict[str, AbstractIndexedHook] = {}
        self._arrays: dict[str, list[Any]] = {}
        self._data: dict[str, list[Any]] = {}
        self._number = Numbering()
        for name, fn in [*named("hook_fn", hook_fn), *named("log_fn", log_fn)]:
            if isinstance(fn, AbstractIndexedHook):
                self.indexed[name] = fn
                fn = fn.local
            if type(fn) is not IdentityHook:
                self.frozen[name], self._arrays[name] = freeze(name, fn)

    def supply(self, info: Ask) -> Sequence[Any]:
        if info.shared:
            return self._arrays[info.slot]
        site = info.site
        self.heard.add(site.key)
        if info.again:
            return self._data[only_call(info, self._data)]
        assert site.hook is not None
        key = self._number(site)
        hook = self.indexed[site.hook.name]
        self._data[key] = hook.data(key, info.shapes, info.axes)
        return self._data[key]


def only_call(info: Ask, calls: Container[str]) -> str:
    """The key of the call that is recomputed here."""
    key = info.site.key
    if info.site.numbered(1) in calls:
        lost(
            info.site,
            "it is called more than once, and recomputed in a derivative inside the "
            "model (`jax.grad` of a `jax.checkpoint`): it can't be told which call is "
            "which.",
        )
    return key
