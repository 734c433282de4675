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
from .active_calls import AbstractListener, Call
from .cotangent import attach
from .messages import Ask, Tap
from .primitives import ask_p, lost, mark_p
from .signature import Signature
from .site import Site


# Why nothing arrived of a site that ran.
NOT_RECEIVED = (
    "it ran in a function whose result isn't part of this program, as under "
    "`jax.linear_transpose`."
)


class Collector(AbstractListener):
    """Takes what the sites of one wrapper hand out, and gives what they ask for.

    - `records`: the taps, in execution order.
    - `emitted`: the sites that ran where only JAX can bring on what they emit, by key.
    - `received`: the keys of the sites of which something arrived.
    - `probes`: what it does at a `px.probe`, `None` for nothing.
    - `missed`: of named values that weren't found inside of their module, by key: the
        names that are there, each with its place in the source, and what hides the
        name.
    - `groups`: the layers that share one name (see `_sites/stacked.py`).
    - `frame`: that of the call: what is on the stack above it is the model.
    - `at_end`: what is to be done when the call ends.
    """

    # What a call adds to, and `saved` brings back: lists, dicts, sets, numberings.
    state: tuple[str, ...] = ("emitted", "groups", "missed", "received", "records")
    # Whether it listens on the trace on which the call began.
    direct = False
    # Whether it takes the taps of other wrappers, too, and drops them. A `while` runs
    # its condition at two places, of which these wrappers shall hear once.
    drops_others = False
    # Whether it throws away what it takes, as in a derivative rule: the function that
    # the rule is of has been listened to. A primitive without a rule may hold
    # sites there.
    discards = False

    def __init__(self, depth: int, call: Call | None = None):
        self.depth = depth
        self.call = call or Call()
        self.stages = False
        self.groups: list[tuple[str, ...]] = []
        self.frame: types.FrameType | None = None
        self.at_end: list[Callable[[], None]] = []
        self.records: list[tuple[Tap, list[Any]]] = []
        self.emitted: dict[str, Site] = {}
        self.received: set[str] = set()
        self.probes: Any = None
        self.missed: dict[str, tuple[dict[str, str], str | None]] = {}
        self.trace: _compat.Trace | None = None
        # Of what is brought out, each has another place in the call.
        self._places = itertools.count()

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

    def mine(self, site: Site) -> bool:
        return site.depth == self.depth

    def lasting(self) -> "Collector":
        """One that takes the same, and holds nothing of this call."""
        return Collector(self.depth, self.call)

    def receives(self, site: Site) -> bool:
        """Whether taps of this site come to it."""
        return self.drops_others or self.mine(site)

    def takes(self, primitive: Any, info: Any) -> bool:
        """Whether it answers this tap, ask or mark."""
        del primitive
        return self.mine(info.site)

    def part(self, signature: Signature) -> Signature:
        """What of a signature is this collector's to take."""
        return signature.at(self.depth).at_place(next(self._places))

    def supply(self, info: Ask) -> Sequence[Any]:
        raise NotImplementedError

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
