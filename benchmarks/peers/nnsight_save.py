"""nnsight: `save` in a trace of a PyTorch model, of every layer."""

from typing import Any

import nnsight
import torch

from ..contestants import Call, Contestant, Unsupported
from ..models import Case, GRU
from .torch_models import in_torch, layers


def contestant(case: Case) -> Contestant:
    if isinstance(case.model, GRU):
        raise Unsupported("only the first call of a module in a loop is read simply")
    model, x = in_torch(case)
    wrapped, _ = in_torch(case)
    traced = nnsight.NNsight(wrapped)
    keys = list(layers(wrapped))
    envoys = [traced.get(key) for key in keys]

    def logged(x: torch.Tensor) -> tuple[Any, Any]:
        with torch.no_grad(), traced.trace(x):
            values = nnsight.save([envoy.output for envoy in envoys])
            out = nnsight.save(traced.output)
        return out, values

    def plain(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(x)

    return Contestant(
        plain=Call(plain, (x,)),
        logged=Call(logged, (x,)),
        values=lambda result: (result[0], dict(zip(keys, result[1], strict=True))),
        own=True,
        staged=False,
    )
