"""The forward wrapper: activations, logged and changed."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx

from ._collect import Collector, next_depth
from ._hooks import IdentityHook
from ._log import Log, Numbering
from ._logs import IdentityLog
from ._site import Ask
from ._walk import AbstractWrapper
from ._wrap import check_fired, freeze_all, Method, Plan, plan, run


class _Forward(Collector):
    """Answers with the arrays of the hooks."""

    def __init__(self, depth: int, arrays: dict[str, list[Any]]):
        super().__init__(depth)
        self.arrays = arrays

    def supply(self, info: Ask) -> Sequence[Any]:
        return self.arrays[info.slot]


class ForwardHook(AbstractWrapper):
    """Wraps a model so that it hands back what its parts computed, or changes it."""

    model: Any
    hook_fn: Any
    log_fn: Any
    plan: Plan = eqx.field(static=True)

    def __init__(
        self,
        model: Any,
        hook_fn: Any = IdentityHook(),
        log_fn: Any = IdentityLog(),
        *,
        where: Any = None,
        pre_hook: bool = False,
        with_kwargs: bool = False,
        method: Method = "__call__",
    ):
        self.model = model
        self.hook_fn = hook_fn
        self.log_fn = log_fn
        self.plan = plan(model, hook_fn, log_fn, where, pre_hook, with_kwargs, method)

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, Log]:
        frozen, arrays = freeze_all(self.plan, self.hook_fn, self.log_fn)
        collector = _Forward(next_depth(), arrays)
        out = run(self.plan, self.model, frozen, collector, False, args, kwargs)
        check_fired(self.plan, {info.site.key for info, _ in collector.records})
        return out, _log(collector)


def _log(collector: Collector) -> Log:
    number = Numbering()
    entries, counts = {}, {}
    for info, arrays in collector.records:
        if info.site.log is None:
            continue
        key = number(info.site.key)
        if info.counted:
            *arrays, counts[key] = arrays
        entries[key] = info.treedef.unflatten(arrays)
    return Log(entries, counts)
