"""TorchLens's JAX backend: a trace of an Equinox model, of which the outputs of the
modules are read. It runs the model's jaxpr in Python, so it can't be compiled.
"""

from typing import Any

import torchlens

from ..contestants import Call, Contestant, unhooked, Unsupported
from ..models import AbstractChain, Case, Values


def contestant(case: Case) -> Contestant:
    model, x = case.model, case.x
    if not isinstance(model, AbstractChain):
        raise Unsupported("refuses a model that has a scan or jit of jax.nn's inside")

    def logged(x: Any) -> tuple[Any, Values]:
        trace = torchlens.trace(model, (x,), backend="jax")
        # The last operation of a module, as `layer3` in its first call: `layer3:1`.
        values = {call[:-2]: op.out for op in trace.ops for call in op.modules}
        out = values.pop("self")
        return out, values

    return Contestant(
        plain=unhooked(case).plain,
        logged=Call(logged, (x,)),
        own=True,
        staged=False,
    )
