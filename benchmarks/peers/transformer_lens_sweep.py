"""TransformerLens: a sweep of patches by a loop of `run_with_hooks`, as its own
`generic_activation_patch` makes it, on the same weights.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..models import Transformer
from .torch_models import tensor
from .transformer_lens_cache import model_of


def sweep(
    transformer: Transformer, clean: Any, corrupted: Any, metric: Callable[[Any], Any]
) -> Callable[[], np.ndarray]:
    """What each layer returns at each token, from the clean run, one at a time."""
    depth = len(transformer.layers)
    model = model_of(transformer, len(clean))
    names = [f"blocks.{i}.hook_resid_post" for i in range(depth)]
    blocks = {"start_at_layer": 0, "stop_at_layer": depth}
    clean, corrupted = (tensor(x)[None] for x in (clean, corrupted))

    def patched(name: str, cache: Any, token: int) -> Any:
        def patch(value: torch.Tensor, hook: Any) -> torch.Tensor:
            del hook
            value[:, token] = cache[name][:, token]
            return value

        out = model.run_with_hooks(corrupted, fwd_hooks=[(name, patch)], **blocks)
        return metric(out[0])

    @torch.no_grad()
    def run() -> np.ndarray:
        model(corrupted, **blocks)
        _, cache = model.run_with_cache(
            clean, names_filter=lambda name: name in names, **blocks
        )
        tokens = range(clean.shape[1])
        return np.array(
            [[float(patched(name, cache, token)) for token in tokens] for name in names]
        )

    return run
