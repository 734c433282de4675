"""What listens to the sites of a wrapper during a call.

Taps are recorded, marks and asks are answered, on the trace on which a call began: a
direct call, at hardly any cost. That is all there is to it unless sites are inside of
what JAX stages: see `trace.py`.
"""

import contextlib
import itertools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import _compat
from .active_calls import AbstractListener, Call, Calls
from .cotangent import attach
from .messages import Ask, Tap
from .primitives import ask_p, lost, mark_p
from .scope import Scope
from .site import Site


Source = Callable[[Ask], Sequence[Any]]

# Why nothing arrived of a site that ran.
NOT_RECEIVED = (
    "it ran in a function whose result isn't part of this program, as under "
    "`jax.linear_transpose`."
)


def _none(info: Ask) -> Sequence[Any]:
    raise NotImplementedError(info)


class Collector(AbstractListener):
    """Takes what the sites in its scope hand out, and gives what they ask for.

    - `scope`: which sites these are.
    - `owners`: the hooked calls that they are of: its own, unless it collects on behalf
        of others.
    - `source`: what answers their asks.
    - `records`: the taps, in execution order.
    - `emitted`: the sites that ran where only JAX can bring on what they emit, by key.
    - `received`: the keys of the sites of which something arrived.
    - `probes`: what it does at a `px.probe`, `None` for nothing.
    - `missed`: of named values that weren't found inside of their module, by key: the
        names that are there, each with its place in the source, and what hides the
        name.
    - `written`: where named values inside of modules are written, by key.
    - `groups`: the layers that share one name (see `_sites/stacked.py`).
    - `frame`: that of the call: what is on the stack above it is the model.
    - `at_end`: what is to be done when the call ends.
    """

    # What a call adds to, and `saved` brings back: lists, dicts, sets, numberings.
    state: tuple[str, ...] = ("emitted", "groups", "missed", "received", "records")
    # Whether it listens on the trace on which the call began.
    direct = False
    # Where what is bound is only traced for now (see `traced_once.py`): the jaxprs of
    # the jits that will be inlined later, by their `id`.
    inlined: set[int] | None = None

    def __init__(
        self, scope: Scope, owners: Calls | None = None, source: Source = _none
    ):
        self.scope = scope
        self.source = source
        self.call = Call()
        self.owners = (*[None] * scope.depth, self.call) if owners is None else owners
        self.stages = False
        self.groups: list[tuple[str, ...]] = []
        self.frame: types.FrameType | None = None
        self.at_end: list[Callable[[], None]] = []
        self.records: list[tuple[Tap, list[Any]]] = []
        self.emitted: dict[str, Site] = {}
        self.received: set[str] = set()
        self.probes: Any = None
        self.missed: dict[str, tuple[dict[str, str], str | None]] = {}
        self.written: dict[str, str] = {}
        self.trace: _compat.Trace | None = None
        # Of what is brought out, each has another place in the call.
        self.places = itertools.count()

    @contextlib.contextmanager
    def running_in(self, frame: types.FrameType) -> Iterator[None]:
        """What is called inside, in this frame, is the model."""
        self.frame = frame
        try:
            yield
        finally:
            self.frame = None
            for end in self.at_end:
                end()

    def record(self, info: Tap, arrays: list[Any]) -> None:
        self.received.add(info.site.key)
        self.records.append((info, arrays))

    def saved(self) -> Callable[[], None]:
        state = {name: getattr(self, name).copy() for name in self.state}
        undo_probes = None if self.probes is None else self.probes.saved()

        def undo() -> None:
            for name, x in state.items():
                setattr(self, name, x.copy())
            if undo_probes is not None:
                undo_probes()

        return undo

    def emits(self, site: Site) -> None:
        """A site has handed something to JAX, which has to bring it here. Unless this
        is under `jax.eval_shape`: there nothing runs, of which JAX keeps the result
        (so the next time not even Python does).
        """
        known = site.key in self.emitted or site.key in self.received
        if not known and not _compat.is_abstract(self.frame):
            self.emitted[site.key] = site

    def check_received(self) -> None:
        """Whatever ran must have arrived. A function that a library runs on its own,
        or in which JAX drops what isn't used, would lose it in silence.
        """
        for key, site in self.emitted.items():
            if key not in self.received:
                lost(site, NOT_RECEIVED)

    def supply(self, info: Ask) -> Sequence[Any]:
        """The arrays that a site asks for."""
        return self.source(info)

    def answer(
        self, primitive: Any, args: Sequence[Any], params: dict[str, Any]
    ) -> list[Any]:
        info = params["info"]
        if primitive is ask_p:
            return list(self.supply(info))
        num_values = params["num_values"]
        values, others = list(args[:num_values]), list(args[num_values:])
        if primitive is mark_p:
            return attach(values, others, info, self.supply)
        self.record(info, others)
        return values
