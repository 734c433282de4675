"""Sweeps of other models than transformers: over time and units, calls of one layer,
arguments, branches.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import parts
import pytest
from closeness import assert_close

import peex as px


def run_cell(cell, xs):
    step = lambda state, x: (cell(x, state), None)
    return jax.lax.scan(step, jnp.zeros(cell.hidden_size), xs)[0]


def test_a_gru_over_time_and_units():
    cell = eqx.nn.GRUCell(2, 3, key=jax.random.key(0))
    clean, corrupted = jax.random.normal(jax.random.key(1), (2, 4, 2))

    def states(xs, at=None, unit=None, new=None):
        state, seen = jnp.zeros(3), []
        for t, x in enumerate(xs):
            state = cell(x, state)
            if t == at:
                state = state.at[unit].set(new[t][unit])
            seen.append(state)
        return seen

    new = states(clean)
    expected = [
        [jnp.sum(states(corrupted, t, unit, new)[-1]) for unit in range(3)]
        for t in range(4)
    ]
    effects = px.patching.sweep(
        cell, clean, corrupted, jnp.sum, method=run_cell, where=".", axes="time unit"
    )
    assert effects.axes == {".": ("time", "unit")}
    assert_close(effects["."], jnp.array(expected))


def test_each_call_of_a_layer_is_a_site():
    model = parts.Chain(eqx.nn.Linear(2, 2, key=jax.random.key(0)))
    clean, corrupted = jnp.ones(2), -jnp.ones(2)
    effects = px.patching.sweep(
        model, clean, corrupted, jnp.sum, where="cell", axes="unit"
    )
    assert list(effects) == ["cell", "cell#1", "cell#2"]

    def values(x, at=None, unit=None, new=None):
        seen = []
        for i in range(3):
            x = model.cell(x)
            if i == at:
                x = x.at[unit].set(new[i][unit])
            seen.append(x)
            x = jnp.tanh(x)
        return x, seen

    _, new = values(clean)
    for i, key in enumerate(effects):
        expected = [jnp.sum(values(corrupted, i, unit, new)[0]) for unit in range(2)]
        assert_close(effects[key], jnp.stack(expected))


class Twice(eqx.Module):
    """Two sines."""

    def __call__(self, x):
        return jnp.sin(2 * jnp.sin(x))


def test_each_value_of_each_call_is_a_site():
    model = parts.Two(Twice(), lambda x: x)
    twice = parts.Whole(model, lambda model, x: model.a(model.a(x) + 1))
    clean, corrupted = jnp.array([0.3, 2.0]), jnp.array([1.5, 0.1])
    kwargs = {"where": "part.a/sin", "axes": "unit"}
    effects = px.patching.sweep(twice, clean, corrupted, jnp.sum, **kwargs)
    assert len(effects) == 4 and "part.a#1/sin#1" in effects

    def values(x, at=None, unit=None, new=None):
        seen = []
        for i in range(4):
            x = jnp.sin([x, 2 * x, x + 1, 2 * x][i])
            if i == at:
                x = x.at[unit].set(new[i][unit])
            seen.append(x)
        return x, seen

    _, new = values(clean)
    for i, key in enumerate(effects):
        expected = [jnp.sum(values(corrupted, i, unit, new)[0]) for unit in range(2)]
        assert_close(effects[key], jnp.stack(expected))


def test_arguments():
    model = parts.Returning(lambda x, scale: x * scale)
    effects = px.patching.sweep(
        model, (jnp.ones(2), 3.0), (jnp.zeros(2), 3.0), jnp.sum, where=".", axes="unit"
    )
    assert_close(effects["."], jnp.array([3.0, 3.0]))
    inner = parts.Two(eqx.nn.Lambda(jnp.sin), eqx.nn.Lambda(jnp.cos))
    kwargs = {"where": "b", "axes": "unit", "pre_hook": True}
    effects = px.patching.sweep(inner, jnp.ones(2), jnp.zeros(2), jnp.sum, **kwargs)
    expected = jnp.cos(jnp.sin(1.0)) + 1
    assert_close(effects["b"], jnp.stack([expected, expected]))


class Branches(eqx.Module):
    """Runs its parts where an argument is positive, and not elsewhere."""

    part: eqx.nn.Linear

    def __call__(self, xs, on):
        step = lambda x, on: (
            jax.lax.cond(on > 0, lambda x: self.part(x), lambda x: x, x),
            None,
        )
        return jax.lax.scan(step, xs[0], on)[0]


def test_branches():
    model = Branches(eqx.nn.Linear(2, 2, key=jax.random.key(0)))
    kwargs = {"where": "part", "axes": "step _", "progress": False}
    on, less = jnp.array([1.0, 0.0, 1.0]), jnp.array([1.0, 1.0, 0.0])
    run = lambda *runs: px.patching.sweep(model, *runs, jnp.sum, **kwargs)
    clean, corrupted = jnp.ones((1, 2)), jnp.zeros((1, 2))
    effects = run((clean, on), (corrupted, on))
    linear = model.part
    last = jnp.sum(linear(linear(clean[0])))
    untouched = jnp.sum(linear(linear(corrupted[0])))
    assert_close(effects["part"], jnp.stack([last, untouched, last]))
    with pytest.raises(
        px.SiteNotFiredError,
        match="'part' runs under a condition, 2 times in the clean run and 2 times in "
        "the corrupted one, or not at the same steps",
    ):
        run((clean, on), (corrupted, less))


class Given(NamedTuple):
    x: jax.Array


def test_an_argument_that_is_a_named_tuple():
    model = parts.Whole(eqx.nn.Lambda(jnp.tanh), lambda fn, given: fn(given.x))
    runs = Given(jnp.ones(2)), Given(jnp.zeros(2))
    effects = px.patching.sweep(model, *runs, jnp.sum, where="part", axes="unit")
    assert_close(effects["part"], jnp.full(2, jnp.tanh(1.0)))
