"""A model that calls one of its layers twice."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from twin_case import linear


class Twice(eqx.Module):
    shared: eqx.nn.Linear

    def __call__(self, x):
        return self.shared(jnp.tanh(self.shared(x)))


class Net(eqx.Module):
    a: eqx.nn.Linear
    b: Twice
    c: eqx.nn.Linear

    def __call__(self, x):
        return self.c(self.b(self.a(x)))


NET = Net(linear(4, 4, 0), Twice(linear(4, 4, 1)), linear(4, 2, 2))
XS = jr.normal(jr.key(0), (3, 4))
BATCH = lambda net, xs: jax.vmap(net)(xs)
