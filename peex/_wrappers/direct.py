"""Which eager calls go direct: without a trace of peex's own, at hardly any cost.

A call needs a trace only if it has sites inside of what JAX stages (`scan`, `jit`,
...). Whether it has is learned from its first run, with the trace. It is remembered for
each plan and structure of a model, weakly by the class of the model or by the function
that is run. While JAX itself is staging, no call goes direct: then nothing depends on
what the process did before.
"""

from typing import Any

from .. import _compat
from .._caches import weak_cache
from .._instrument.instrument import Structured
from .._sites.walk import unwrap
from .plan import Plan


# By what is run, and by plan and structure: whether no site was inside of what JAX
# stages. If one was once, it stays at that.
_learned = weak_cache()


class Directness:
    """What is known of calls like this one."""

    def __init__(self, plan: Plan, known: Structured, backward: bool):
        method = plan.method
        owner = type(unwrap(known.model)) if isinstance(method, str) else method
        try:
            self._known = _learned.setdefault(owner, {})
        except TypeError:  # can't be hashed, or referred to weakly
            self._known = {}
        # A number alone, which keeps nothing alive.
        self._key = hash((plan, known.treedef, backward))

    @property
    def is_direct(self) -> bool:
        return self._known.get(self._key, False)

    def learn(self, stages: bool) -> None:
        self._known[self._key] = not stages and self._known.get(self._key, True)


def runs_eagerly(trace: Any) -> bool:
    """Whether what is bound on a trace is run at once, batched or not."""
    return _compat.is_eval_trace(_compat.unbatched(trace))
