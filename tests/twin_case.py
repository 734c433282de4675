"""What a model with a hand-written twin is.

A twin computes what its model computes, in plain JAX and without peex. It adds
`eps[key]` to the value of each site, and returns the output and the values. So its
values are the forward log, and the gradient with respect to `eps`, at zero, is the
backward log.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr


Twin = Callable[[Any, Any, dict[str, Any]], tuple[Any, dict[str, Any]]]


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    name: str
    model: Any
    x: Any
    twin: Twin
    differentiable: bool = True
    where: Any = None

    def __repr__(self) -> str:
        return self.name

    def eps(self) -> dict[str, Any]:
        """Zeros of the shapes of the sites' values."""
        shapes: dict[str, Any] = {}

        class Zero(dict):
            def __missing__(self, key):
                return 0.0

        _, shapes = jax.eval_shape(lambda x: self.twin(self.model, x, Zero()), self.x)
        return {k: jnp.zeros(s.shape, s.dtype) for k, s in shapes.items()}


def key(seed: int) -> Any:
    return jr.key(seed)


def linear(i: int, o: int, seed: int) -> eqx.nn.Linear:
    return eqx.nn.Linear(i, o, key=key(seed))


def apply(lin: eqx.nn.Linear, x: Any) -> Any:
    return lin.weight @ x + lin.bias


def stack(fn: Callable[[Any], Any], n: int, seed: int) -> Any:
    return eqx.filter_vmap(fn)(jr.split(key(seed), n))
