"""`examples/training.py`: what is trained, and that many are trained side by side."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from closeness import assert_close
from training import fit


# Optax promotes dtypes.
pytestmark = pytest.mark.usefixtures("standard_promotion")
KEY = jr.key(0)


class Model(eqx.Module):
    weight: jax.Array
    steps: jax.Array
    name: str = eqx.field(static=True)


def test_trains_floating_point_numbers_to_the_minimum():
    model = Model(jnp.array([3.0, -1.0]), jnp.array(7), "m")
    goal = jnp.array([1.0, 2.0])
    loss = lambda model, goal, key: jnp.sum((model.weight - goal) ** 2)
    args = {"steps": 250, "rate": 0.1, "name": "Test", "key": KEY}
    trained, losses = fit(model, loss, (goal,), **args)
    assert_close(trained.weight, goal, rtol=1e-2)
    assert (trained.steps, trained.name) == (7, "m")
    assert len(losses) == 250
    assert losses[0] == 4 + 9 and losses[-1] < 1e-3


def test_each_step_has_a_key_of_its_own():
    loss = lambda x, key: x * jr.normal(key)
    args = {"steps": 103, "rate": 0.0, "name": "Test", "key": KEY}
    _, losses = fit(jnp.array(1.0), loss, **args)
    assert len(set(losses)) == 103


def test_those_side_by_side_are_trained_as_each_alone():
    starts, goals = jnp.array([[1.0], [5.0]]), jnp.array([0.0, 2.0])
    one = lambda x, goal: jnp.sum((x - goal) ** 4)
    both = lambda xs, goals, key: jnp.sum(jax.vmap(one)(xs, goals))
    args = {"steps": 20, "rate": 0.05, "name": "Test", "key": KEY}
    together, _ = fit(starts, both, (goals,), **args)
    for i in range(2):
        alone, _ = fit(
            starts[i], lambda x, goal, key: one(x, goal), (goals[i],), **args
        )
        assert_close(together[i], alone, rtol=1e-5)
