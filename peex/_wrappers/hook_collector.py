"""What listens to the sites of a wrapper, and answers with what its hooks hold."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.tree_util as jtu

from .. import _compat
from .._engine.active_calls import next_depth
from .._engine.collector import Collector
from .._engine.messages import ArraysAsk, Ask, DataAsk
from .._engine.numbering import Numbering
from .._engine.scope import Scope
from .._engine.site import freeze, Frozen, Site
from .._hooks.accumulators import accumulator_of
from .._hooks.call_hooks import AbstractCallHook
from .._hooks.hooks import IdentityHook
from .._hooks.log_fns import IdentityLog
from .._hooks.only_if import InCalls, of_sums
from .._hooks.step_hooks import AbstractStepHook, nothing, SiteCall
from .plan import by_name


class HookCollector(Collector):
    """Collects for a wrapper, and answers with what its hooks hold.

    - `frozen`: the hooks and logs by name, without their arrays.
    - `step_hooks`: those that take data for each step and example.
    - `matched`: the patterns of their masks that have chosen a call.
    """

    # Whether what accumulators record is added up (see `to_sums` of these).
    sums = False
    state = (*Collector.state, "_number", "matched")

    def __init__(self, hook_fn: Any, log_fn: Any):
        super().__init__(Scope(next_depth()))
        self.fns = {"hook_fn": hook_fn, "log_fn": log_fn}
        self.frozen: dict[str, Frozen] = {}
        self.step_hooks: dict[str, AbstractStepHook] = {}
        self.matched: set[str] = set()
        self._hooks: dict[str, Any] = {}
        self._arrays: dict[str, list[Any]] = {}
        self._number = Numbering()
        for name, fn in by_name("hook_fn", hook_fn):
            if type(fn) is not IdentityHook:
                self._hooks[name] = fn
                half = fn.local_half if isinstance(fn, AbstractStepHook) else fn
                self._freeze(name, fn, half)
        for name, fn in by_name("log_fn", log_fn):
            half = fn.log_half if isinstance(fn, AbstractStepHook) else fn
            accumulator = accumulator_of(fn)
            monoid = None
            if accumulator is not None:
                # Without a name: logs of other wrappers can be merged with it.
                monoid, _ = freeze("", accumulator)
                half = of_sums(half) if self.sums else half
            self._freeze(name, fn, half, monoid)

    def _freeze(
        self, name: str, fn: Any, half: Any, monoid: Frozen | None = None
    ) -> None:
        takes_data = isinstance(fn, AbstractStepHook)
        if takes_data:
            self.step_hooks[name] = fn
        frozen = freeze(name, half, type(half) is IdentityLog, takes_data, monoid)
        self.frozen[name], self._arrays[name] = frozen

    def in_calls(self, name: str, but: tuple[int, ...] = ()) -> Frozen:
        """A hook that acts in the calls that its site is of only, but for some."""
        short = f"{name}, in calls but {but}"
        if short not in self._arrays:
            hook = InCalls(self._hooks[name], but)
            self._freeze(short, hook, hook.local_half)
        return self.frozen[short]

    def is_around(self, name: str | None) -> bool:
        """Whether a hook stands around calls."""
        return isinstance(self._hooks.get(name or ""), AbstractCallHook)

    @property
    def heard(self) -> list[Site]:
        """The site of each call that was received."""
        return [info.site for info, _ in self.records]

    def supply(self, info: Ask) -> Sequence[Any]:
        if isinstance(info, ArraysAsk):
            return self._arrays[info.fn]
        assert isinstance(info, DataAsk)
        site = info.site
        self.received.add(site.key)
        number = self._number.next(site, info.fn)
        wanted = info.treedef.unflatten(info.shapes)
        if not site.is_of(number):
            data = jtu.tree_map(nothing, wanted)
        else:
            front = info.axes.shape
            logged = tuple(
                jax.ShapeDtypeStruct((*front, *s.shape), s.dtype) for s in info.value
            )
            call = SiteCall(
                site.numbered(number),
                number,
                info.axes,
                logged,
                logged,
                info.differentiated,
                self.matched,
            )
            data = self.step_hooks[info.fn].data_of_call(call, wanted)
        # Of an explicit sharding, too.
        pairs = zip(jtu.tree_leaves(data), info.shapes, strict=True)
        data = [_compat.typed_as(x, shape) for x, shape in pairs]
        return _compat.as_varying(data, info.varying)
