"""The model that the tests of hooks change, and its twin, in which the same is changed
by hand.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest


class MLP(eqx.Module):
    linear1: eqx.nn.Linear
    linear2: eqx.nn.Linear

    def __init__(self, key):
        key1, key2 = jax.random.split(key)
        self.linear1 = eqx.nn.Linear(3, 4, key=key1)
        self.linear2 = eqx.nn.Linear(4, 2, key=key2)

    def __call__(self, x):
        return self.linear2(jnp.tanh(self.linear1(x)))


MODEL = MLP(jax.random.key(0))
X = jnp.array([0.5, -1.0, 2.0])
OFFSET = jnp.array([0.1, -0.2, 0.3, 0.4])

eager_and_jit = pytest.mark.parametrize(
    "outside", [lambda f: f, eqx.filter_jit], ids=["eager", "jit"]
)


def twin(model, x, edit1=lambda a: a, edit2=lambda a: a):
    a = edit1(model.linear1.weight @ x + model.linear1.bias)
    return edit2(model.linear2.weight @ jnp.tanh(a) + model.linear2.bias)


def run(hooked, x):
    return hooked(x)


def loss(out):
    return jnp.sum(jnp.sin(out) * jnp.arange(1.0, 1 + len(out)))
