"""TransformerLens: `run_with_cache` of the hook points for the same values."""

from typing import Any

import torch
import transformer_lens

from ..contestants import Call, Contestant, Unsupported
from ..models import Block, BLOCK_KEYS, Case, Transformer
from .torch_models import tensor


_POINTS = {
    "norm1": "ln1.hook_normalized",
    "q": "attn.hook_q",
    "k": "attn.hook_k",
    "v": "attn.hook_v",
    "o": "hook_attn_out",
    "norm2": "ln2.hook_normalized",
    "up": "mlp.hook_pre",
    "down": "hook_mlp_out",
}


def contestant(case: Case) -> Contestant:
    transformer: Any = case.model
    if not isinstance(transformer, Transformer):
        raise Unsupported("has transformers alone")
    depth = len(transformer.layers)
    model = model_of(transformer, len(case.x))
    # From the key to the name of the hook point.
    points = {
        f"layers.{i}.{key}": f"blocks.{i}.{_POINTS[key]}"
        for i in range(depth)
        for key in BLOCK_KEYS
    }
    names = set(points.values())
    only_blocks = {"start_at_layer": 0, "stop_at_layer": depth}

    def plain(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(x, **only_blocks)

    def logged(x: torch.Tensor) -> Any:
        with torch.no_grad():
            return model.run_with_cache(
                x, names_filter=lambda name: name in names, **only_blocks
            )

    x = tensor(case.x)[None]
    return Contestant(
        plain=Call(plain, (x,)),
        logged=Call(logged, (x,)),
        values=lambda result: (
            result[0][0],
            {key: result[1][point][0] for key, point in points.items()},
        ),
        own=True,
        staged=False,
    )


def model_of(transformer: Transformer, tokens: int) -> Any:
    """The model in TransformerLens, with these parameters."""
    first = transformer.layers[0]
    width, heads = len(first.q.bias), first.heads
    config = transformer_lens.HookedTransformerConfig(
        n_layers=len(transformer.layers),
        d_model=width,
        n_ctx=tokens,
        d_head=width // heads,
        n_heads=heads,
        d_mlp=4 * width,
        d_vocab=2,
        act_fn="gelu_new",
        attention_dir="bidirectional",
        normalization_type="LN",
        device="cpu",
    )
    model = transformer_lens.HookedTransformer(config)
    state = model.state_dict()
    for i, block in enumerate(transformer.layers):
        new = {f"blocks.{i}.{name}": x for name, x in _parameters(block).items()}
        state |= {name: x.reshape(state[name].shape) for name, x in new.items()}
    model.load_state_dict(state)
    return model


def _parameters(block: Block) -> dict[str, torch.Tensor]:
    """By the names that TransformerLens has for them."""
    parameters = {
        "attn.W_O": tensor(block.o.weight).T,
        "attn.b_O": tensor(block.o.bias),
        "mlp.W_in": tensor(block.up.weight).T,
        "mlp.b_in": tensor(block.up.bias),
        "mlp.W_out": tensor(block.down.weight).T,
        "mlp.b_out": tensor(block.down.bias),
        "ln1.w": tensor(block.norm1.weight),
        "ln1.b": tensor(block.norm1.bias),
        "ln2.w": tensor(block.norm2.weight),
        "ln2.b": tensor(block.norm2.bias),
    }
    for name in "qkv":
        layer = getattr(block, name)
        width = layer.weight.shape[1]
        per_head = tensor(layer.weight).reshape(block.heads, -1, width)
        parameters[f"attn.W_{name.upper()}"] = per_head.transpose(1, 2)
        parameters[f"attn.b_{name.upper()}"] = tensor(layer.bias)
    return parameters
