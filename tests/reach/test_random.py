"""`px.reach` of random programs is the pattern of their Jacobian, or more where a
branch isn't taken.
"""

import random

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax import lax
from recurrent import f32, jacobian_pattern, reached_pattern, WIDTH

import peex as px


def looped(a, b):
    return lax.scan(lambda c, x: ((jnp.tanh(c[1] + x), c[0] * b), c[0]), (a, b), a)


UNARY = [
    jnp.tanh,
    jnp.floor,
    lax.stop_gradient,
    jax.nn.softmax,
    jax.jit(lambda a: jnp.sin(a) + 1),
    jax.checkpoint(lambda a: jnp.cumsum(a)),
    lambda a: jnp.concatenate([a[1:], a[:1]]),
    lambda a: a[jnp.argsort(lax.stop_gradient(a))],
]
BINARY = [
    jnp.add,
    jnp.multiply,
    lambda a, b: jnp.outer(a, b).sum(1),
    lambda a, b: looped(a, b)[0][0],
    lambda a, b: looped(a, b)[1].sum(0),
    lambda a, b: lax.fori_loop(0, 2, lambda i, c: jnp.tanh(c) + b, a),
    lambda a, b: jnp.tanh(jnp.linalg.norm(a) * b),
]
BRANCHES = [
    lambda a, b: jnp.where(a > 0, a, b),
    lambda a, b: lax.cond(a.sum() > 0, lambda: jnp.tanh(a), lambda: b * 2),
]


class Program(eqx.Module):
    """Operations on parameters, weights, an input and a state, in random order."""

    vectors: list[jax.Array]
    matrices: list[jax.Array]
    seed: int = eqx.field(static=True)
    branches: bool = eqx.field(static=True)

    def __call__(self, x, h1, h2):
        rng = random.Random(self.seed)
        values = [*self.vectors, x, h1, h2]
        binary = BINARY + (BRANCHES if self.branches else [])
        for _ in range(10):
            # Rather what is newest.
            a, b = (
                values[-1 - min(rng.randrange(9), rng.randrange(9)) % len(values)]
                for _ in range(2)
            )
            kind = rng.choice(["unary", "binary", "binary", "matrix"])
            if kind == "unary":
                values.append(rng.choice(UNARY)(a))
            elif kind == "binary":
                values.append(rng.choice(binary)(a, b))
            else:
                values.append(rng.choice(self.matrices) @ a)
        return values[-1], values[-3]


H = f32(WIDTH)


def program(seed, branches):
    one = jnp.ones(WIDTH)
    matrices = [jnp.ones((WIDTH, WIDTH))] * 2
    separate = jax.tree.map(jnp.array, ([one, one, one], matrices))
    return Program(*separate, seed, branches)


def both(model):
    expected = jacobian_pattern(model, (H, H, H), lambda out: out)
    reach = px.reach(model, H, H, H, state=(1, 2), new_state=(0, 1))
    return expected, reached_pattern(reach)


@pytest.mark.parametrize("seed", range(10))
def test_as_the_jacobian(seed):
    expected, reached = both(program(seed, branches=False))
    assert reached == expected


@pytest.mark.parametrize("seed", range(6))
def test_more_where_branches_are_not_taken(seed):
    expected, reached = both(program(seed, branches=True))
    assert reached >= expected
