"""Flax Linen's `capture_intermediates`, for the layers that are sites in Equinox."""

from typing import Any

import flax.linen as nn
import jax

from ..contestants import Call, Contestant, loss_of
from ..models import Case, Values
from .flax_models import by_key, FlaxCell, in_flax


_LAYERS = (nn.Dense, nn.LayerNorm, FlaxCell)


def contestant(case: Case) -> Contestant:
    model, params = in_flax(case, perturbed=False)

    def logged(params: Any, x: Any) -> Any:
        is_layer = lambda module, method: isinstance(module, _LAYERS)
        return model.apply(params, x, capture_intermediates=is_layer)

    def values(result: Any) -> tuple[Any, Values]:
        out, state = result
        return out, by_key(state["intermediates"], ".__call__")

    step = jax.value_and_grad(lambda params, x: loss_of(model.apply(params, x)))
    return Contestant(
        plain=Call(model.apply, (params, case.x)),
        logged=Call(logged, (params, case.x)),
        values=values,
        plain_step=Call(step, (params, case.x)),
        own=True,
    )
