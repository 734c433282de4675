"""What listens to the sites of a wrapper, and answers with what its hooks hold."""

from collections.abc import Sequence
from typing import Any

from . import _compat
from ._collect import Collector
from ._hooks import IdentityHook
from ._indexed import AbstractIndexedHook
from ._log import Numbering
from ._plan import named
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
        assert site.hook is not None
        key = self._number(site)
        hook = self.indexed[site.hook.name]
        data = hook.data(key, info.shapes, info.axes)
        return _compat.as_varying(data, info.varying)
