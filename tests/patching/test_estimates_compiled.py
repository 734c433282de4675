"""Attribution, edges and paths are traced and compiled once."""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from closeness import assert_close

import peex as px


CELL = eqx.nn.Linear(3, 3, key=jax.random.key(0))
CLEAN, CORRUPTED = jnp.ones((4, 3)), -jnp.ones((4, 3))


def run(cell, xs):
    """A sum of what is written at each step."""
    return jax.lax.scan(lambda x, y: (x + cell(x), y), xs[0], xs)[0]


FUNCTIONS = {
    "attribution": ft.partial(px.patching.attribution, where="."),
    "inputs": ft.partial(px.patching.attribution, where=".", steps=3),
    "activations": ft.partial(
        px.patching.attribution, where=".", steps=3, path="activation"
    ),
    "path": ft.partial(
        px.patching.path, senders=".", receivers={"read": ".:in"}, batch_size=5
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_is_traced_again(name):
    traces = []

    def metric(x):
        traces.append(x)
        return jnp.sum(x)

    call = ft.partial(FUNCTIONS[name], method=run, axes="time unit")
    effects = call(CELL, CLEAN, CORRUPTED, metric)
    n = len(traces)
    again = call(CELL, CLEAN, CORRUPTED, metric)
    other = jax.tree.map(lambda x: 2 * x, CELL)
    others = call(other, 2 * CLEAN, CORRUPTED + 1, metric)
    assert len(traces) == n
    assert_close(again["."], effects["."])
    expected = call(other, 2 * CLEAN, CORRUPTED + 1, jnp.sum)
    assert_close(others["."], expected["."])


class Residual(eqx.Module):
    embed: eqx.nn.Linear
    layer: eqx.nn.Linear

    def __call__(self, x):
        x = self.embed(x)
        return x + self.layer(x)


def test_edges_are_not_traced_again():
    traces = []

    def metric(x):
        traces.append(x)
        return jnp.sum(x)

    def call(scale):
        return px.patching.edges(
            jax.tree.map(lambda x: scale * x, Residual(CELL, CELL)),
            CLEAN[0],
            CORRUPTED[0],
            metric,
            senders="embed",
            receivers="layer:in",
            axes="unit",
        )["embed -> layer:in"]

    call(1.0)
    n = len(traces)
    found = call(2.0)
    assert len(traces) == n
    embed = lambda x: 2 * (CELL.weight @ x + CELL.bias)
    out = lambda x: jnp.sum(x + embed(x))
    change = (embed(CLEAN[0]) - embed(CORRUPTED[0])) * (2 * CELL.weight.sum(0))
    assert_close(found, out(embed(CORRUPTED[0])) + change, 1e-5)
