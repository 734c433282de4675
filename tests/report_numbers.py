"""What the tests of reports write their numbers with."""

import jax
import jax.numpy as jnp


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def key(seed=0):
    return jax.random.key(seed)


def shown(tree):
    return [(x.shape, str(x.dtype)) for x in jax.tree.leaves(tree)]


def product(m, k, n):
    return 2 * m * k * n
