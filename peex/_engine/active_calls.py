"""Which hooked calls are running now, on this thread.

A hooked call has a depth: how many others were running when it started. A site knows
its depth, and finds its collector by it. Depth is part of compiled programs, so that
equal calls share these; which very call a module was instrumented for is known apart
from that, by the [`Call`][]s that were running when the module object was made.
"""

import abc
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import _compat


class Call:
    """One hooked call, whichever collectors listen on behalf of it.

    - `thread`: the thread that it runs on.
    - `ended`: whether it has returned, or raised.
    """

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.ended = False


# Hooked calls by depth, `None` where there is none to be found.
Calls = tuple[Call | None, ...]


class NeedsTrace(BaseException):
    """A direct call has met a site inside of a program that JAX is staging: it must be
    made again, with a trace of its own (see `run` in `_wrappers/run.py`).
    """

    def __init__(self, call: Call):
        self.call = call


class AbstractListener(abc.ABC):
    """What a hooked call listens with.

    - `call`: that call.
    - `trace`: where what its sites say is answered.
    - `direct`: whether that is the trace on which the call began, rather than one made
        for it.
    - `stages`: whether it has met a site in what JAX stages.
    """

    call: Call
    trace: _compat.Trace | None
    direct: bool
    stages: bool

    @abc.abstractmethod
    def answer(
        self, primitive: Any, args: Sequence[Any], params: dict[str, Any]
    ) -> list[Any]:
        """Answers a tap, an ask or a mark on the trace that is current."""

    @abc.abstractmethod
    def saved(self) -> Callable[[], None]:
        """What makes it forget all that it hears from now on."""


class Acting:
    """While it is entered, the hook or log of a site runs: what is named in there is a
    value of the site.

    - `counts`: how often each name was met there, by the depth of who listens.
    """

    def __init__(self, site: Any, is_log: bool):
        self.site = site
        self.is_log = is_log
        self.counts: dict[tuple[int, str], int] = {}

    def __enter__(self) -> None:
        this_thread.acting.append(self)

    def __exit__(self, *error: Any) -> None:
        this_thread.acting.pop()


class _ThisThread(threading.local):
    """All that peex knows of what is running on a thread.

    - `listeners`, `calls`: the listeners, the outermost first, and the calls that they
        listen for. `None` is one that isn't to be found (see `only_listener`).
    - `acting`: what of which site is running, the outermost first (see `Acting`).
    - `rebinding`: the compiled primitives that are being called (see `compiled.py`).
    - `num_traced`: how many forward passes are being traced, in one another, for the
        values inside of them; and `marks`: whether functions are marked there.
    """

    def __init__(self) -> None:
        self.listeners: list[Any] = []
        self.calls: Calls = ()
        self.acting: list[Acting] = []
        self.rebinding: list[Any] = []
        self.num_traced = 0
        self.marks = False


this_thread = _ThisThread()


def next_depth() -> int:
    """The depth of a hooked call that starts now."""
    return len(this_thread.listeners)


def active_listeners() -> list[Any]:
    """The collectors of the hooked calls that are running, the outermost first."""
    return [listener for listener in this_thread.listeners if listener is not None]


def active_calls() -> Calls:
    """The hooked calls that are running, by depth."""
    return this_thread.calls


def all_saved() -> Callable[[], None]:
    """What makes all hooked calls that are running forget what they hear from now on:
    a call inside of theirs may have to be made again.
    """
    undo = [listener.saved() for listener in active_listeners()]

    def forget() -> None:
        for each in undo:
            each()

    return forget


def listener_at(depth: int) -> Any | None:
    """The collector of the hooked call at this depth, if it is still running."""
    stack = this_thread.listeners
    return stack[depth] if depth < len(stack) else None


@contextlib.contextmanager
def started(listener: AbstractListener) -> Iterator[None]:
    """Sites inside find `listener` through `listener_at`, for one hooked call."""
    calls = this_thread.calls
    this_thread.listeners.append(listener)
    this_thread.calls = (*calls, listener.call)
    try:
        yield
    finally:
        listener.call.ended = True
        this_thread.listeners.pop()
        this_thread.calls = calls


@contextlib.contextmanager
def only_listener(listener: AbstractListener, calls: Calls) -> Iterator[None]:
    """Sites inside find `listener` in the place of those of these hooked calls, and no
    other.
    """
    before = this_thread.listeners, this_thread.calls
    this_thread.listeners = [None if call is None else listener for call in calls]
    this_thread.calls = calls
    try:
        yield
    finally:
        this_thread.listeners, this_thread.calls = before


class SitePrimitive(_compat.PassingPrimitive):
    """A primitive by which a site speaks to its collector. Wherever it is bound, it is
    handed on by its rules until it comes to the collector's trace, and answered there.
    """

    multiple_results = True

    def bind_with_trace(
        self, trace: Any, args: Any, avals: Any, params: Any, /
    ) -> list[Any]:
        listener: AbstractListener | None = listener_at(params["info"].site.depth)
        if listener is not None:
            if trace is listener.trace:
                with _compat.set_current_trace(trace):
                    return listener.answer(self, args, params)
            if not _compat.hands_on(trace):
                listener.stages = True
                if listener.direct:
                    raise NeedsTrace(listener.call)
        return super().bind_with_trace(trace, args, avals, params)
