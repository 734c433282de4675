"""Flax Linen's `perturb`: cotangents, of a model that is edited for it."""

from typing import Any

import jax
import jax.numpy as jnp

from ..contestants import Call, Contestant, loss_of
from ..models import Case, Values
from .flax_models import by_key, in_flax


def contestant(case: Case) -> Contestant:
    plain, params = in_flax(case, perturbed=False)
    edited, _ = in_flax(case, perturbed=True)
    shapes = jax.eval_shape(edited.init, jax.random.key(0), case.x)["perturbations"]
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    def loss(params: Any, zeros: Any, x: Any) -> Any:
        return loss_of(edited.apply({**params, "perturbations": zeros}, x))

    def cotangents(result: Any) -> tuple[Any, Values]:
        loss, (_, cotangents) = result
        leaf = ".state" if "cell" in cotangents else "_"
        return loss, by_key(cotangents, leaf)

    step = jax.value_and_grad(lambda params, x: loss_of(plain.apply(params, x)))
    return Contestant(
        plain=Call(plain.apply, (params, case.x)),
        plain_step=Call(step, (params, case.x)),
        step=Call(jax.value_and_grad(loss, (0, 1)), (params, zeros, case.x)),
        cotangents=cotangents,
        own=True,
    )
