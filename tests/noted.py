"""A model that says when it runs, for what is to be refused before that."""

import equinox as eqx
import jax
import jax.numpy as jnp
import parts


ran = []


class Noted(eqx.Module):
    """Says when it runs, other than when it is traced."""

    def __call__(self, x):
        jax.debug.callback(ran.append, x.size)
        return x


MODEL = parts.Two(Noted(), eqx.nn.Lambda(jnp.tanh))
CLEAN, CORRUPTED = jnp.ones((3, 4)), jnp.zeros((3, 4))
