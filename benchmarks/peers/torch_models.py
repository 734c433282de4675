"""The models in PyTorch, with the parameters of the Equinox models."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Array

from ..models import AbstractChain, BLOCK_KEYS, Case, GRU, Transformer


# More of them wait for each other where anything else runs, JAX's own threads included:
# ten times as slow, and of no use to see what hooks cost.
torch.set_num_threads(1)


class TorchBlock(torch.nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1 = torch.nn.LayerNorm(width)
        self.q = torch.nn.Linear(width, width)
        self.k = torch.nn.Linear(width, width)
        self.v = torch.nn.Linear(width, width)
        self.o = torch.nn.Linear(width, width)
        self.norm2 = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        heads = lambda x: x.reshape(len(x), self.heads, -1).transpose(0, 1)
        q, k, v = (heads(layer(y)) for layer in (self.q, self.k, self.v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.o(out.transpose(0, 1).reshape(x.shape))
        y = torch.nn.functional.gelu(self.up(self.norm2(x)), approximate="tanh")
        return x + self.down(y)


class TorchTransformer(torch.nn.Module):
    def __init__(self, width: int, heads: int, depth: int):
        super().__init__()
        blocks = (TorchBlock(width, heads) for _ in range(depth))
        self.layers = torch.nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class TorchChain(torch.nn.Module):
    def __init__(self, width: int, names: tuple[str, ...]):
        super().__init__()
        self.names = names
        for name in names:
            setattr(self, name, torch.nn.Linear(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self.names:
            x = torch.tanh(getattr(self, name)(x))
        return x


class TorchGRU(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.cell = torch.nn.GRUCell(width, width)

    def forward(self, xs: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(self.cell.hidden_size)
        for x in xs:
            state = self.cell(x, state)
        return state


def tensor(x: Array) -> torch.Tensor:
    return torch.tensor(np.asarray(x))


def in_torch(case: Case) -> tuple[torch.nn.Module, torch.Tensor]:
    """The case's model and input in PyTorch."""
    model: Any = case.model
    if isinstance(model, Transformer):
        first = model.layers[0]
        made: Any = TorchTransformer(len(first.q.bias), first.heads, len(model.layers))
        for layer, block in zip(made.layers, model.layers, strict=True):
            for name in BLOCK_KEYS:
                _copy(getattr(layer, name), getattr(block, name))
    elif isinstance(model, AbstractChain):
        made = TorchChain(len(case.x), model.names)
        for name in model.names:
            _copy(getattr(made, name), getattr(model, name))
    else:
        assert isinstance(model, GRU)
        made = TorchGRU(model.cell.hidden_size)
        bias_n = tensor(model.cell.bias_n)
        zeros = torch.zeros(2 * len(bias_n))
        parameters = {
            "weight_ih": tensor(model.cell.weight_ih),
            "weight_hh": tensor(model.cell.weight_hh),
            "bias_ih": tensor(model.cell.bias),
            "bias_hh": torch.cat([zeros, bias_n]),
        }
        made.cell.load_state_dict(parameters)
    return made, tensor(case.x)


def _copy(to: torch.nn.Module, layer: Any) -> None:
    to.load_state_dict({"weight": tensor(layer.weight), "bias": tensor(layer.bias)})


def layers(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """What is a site in Equinox, by key: modules without modules inside."""
    return {
        name: module
        for name, module in model.named_modules()
        if not list(module.children())
    }
