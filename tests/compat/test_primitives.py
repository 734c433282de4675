"""Canaries, as in `test_jax.py`: which primitives have bodies."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from peex import _compat


@jax.custom_jvp
def doubled(x):
    return 2 * x


doubled.defjvp(lambda primals, tangents: (doubled(*primals), doubled(*tangents)))


@jax.custom_vjp
def tripled(x):
    return 3 * x


tripled.defvjp(lambda x: (tripled(x), None), lambda _, c: (3 * c,))


@jax.custom_batching.custom_vmap
def halved(x):
    return x / 2


halved.def_vmap(lambda size, batched, x: (halved(x), batched[0]))


def solved(b):
    solve = lambda matvec, b: b / 2
    return lax.custom_linear_solve(lambda x: 2 * x, b, solve, symmetric=True)


def sharded(x):
    mesh = jax.make_mesh((1,), ("d",))
    spec = jax.sharding.PartitionSpec()
    return jax.shard_map(jnp.sin, mesh=mesh, in_specs=spec, out_specs=spec)(x)


CASES = {
    "jit_p": jax.jit(jnp.sin),
    "remat_p": jax.checkpoint(jnp.sin),
    "scan_p": lambda x: lax.scan(lambda c, _: (c + 1, c), x, length=2),
    "cond_p": lambda x: lax.cond(x > 0, jnp.sin, jnp.cos, x),
    "while_p": lambda x: lax.while_loop(lambda x: x < 3, lambda x: x + 1, x),
    "custom_jvp_call_p": doubled,
    "custom_vjp_call_p": tripled,
    "custom_vmap_p": halved,
    "linear_solve_p": solved,
    "shard_map_p": sharded,
}


@pytest.mark.parametrize("name", CASES)
def test_primitive(name):
    jaxpr, _ = _compat.open_jaxpr(jax.make_jaxpr(CASES[name])(1.0))
    assert getattr(_compat, name) in [eqn.primitive for eqn in jaxpr.eqns]


@pytest.mark.parametrize(
    "name", ["call_p", "closed_call_p", "eval_jaxpr_p", "call_hi_primitive_p"]
)
def test_primitive_that_no_function_of_jax_binds_alone(name):
    # (The last two: see `test_jaxprs.py`.)
    assert isinstance(getattr(_compat, name), _compat.Primitive)
