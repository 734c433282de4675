"""PyTorch's own hooks. It isn't compiled: one uses them on eager models."""

from typing import Any

import torch

from ..contestants import Call, Contestant
from ..models import Case, Values
from .torch_models import in_torch, layers


def contestant(case: Case) -> Contestant:
    model, x = in_torch(case)
    hooked, _ = in_torch(case)
    varied, _ = in_torch(case)
    seen: dict[str, list[torch.Tensor]] = {}

    for key, layer in layers(hooked).items():
        calls = seen.setdefault(key, [])
        layer.register_forward_hook(
            lambda module, args, out, calls=calls: calls.append(out)
        )
    for key, layer in layers(varied).items():
        calls = seen[key]
        layer.register_full_backward_hook(
            lambda module, to_args, to_out, calls=calls: calls.append(to_out[0])
        )

    def take() -> dict[str, list[torch.Tensor]]:
        taken = {key: list(calls) for key, calls in seen.items()}
        for calls in seen.values():
            calls.clear()
        return taken

    def plain(x: torch.Tensor) -> Any:
        with torch.no_grad():
            return model(x)

    def logged(x: torch.Tensor) -> Any:
        with torch.no_grad():
            return hooked(x), take()

    def step(x: torch.Tensor) -> Any:
        return *_loss_and_grads(varied, x), take()

    return Contestant(
        plain=Call(plain, (x,)),
        logged=Call(logged, (x,)),
        values=lambda result: (result[0], _values(result[1])),
        plain_step=Call(lambda x: _loss_and_grads(model, x), (x,)),
        step=Call(step, (x,)),
        cotangents=lambda result: (result[0], _values(result[2], reverse=True)),
        own=True,
        staged=False,
    )


def _loss_and_grads(model: torch.nn.Module, x: torch.Tensor) -> Any:
    # A layer's hook runs when its input's gradient is known: of the first, that of `x`.
    x = x.detach().requires_grad_()
    loss = torch.sum(model(x) ** 2)
    return loss.detach(), torch.autograd.grad(loss, [x, *model.parameters()])


def _values(seen: dict[str, list[torch.Tensor]], reverse: bool = False) -> Values:
    """In the form of `Case.by_hand`: a layer that runs many times gets a step axis."""
    order = slice(None, None, -1) if reverse else slice(None)
    return {
        key: calls[0] if len(calls) == 1 else torch.stack(calls[order])
        for key, calls in seen.items()
    }
