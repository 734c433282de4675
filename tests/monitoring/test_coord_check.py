"""How activations grow with the width."""

import re
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import pytest

import peex as px


class Model(eqx.Module):
    """A linear layer whose weights are as large as is said, and a head of zeros."""

    hidden: eqx.nn.Linear
    head: eqx.nn.Linear

    def __call__(self, x):
        return self.head(self.hidden(x))


def make(width, key, std=1.0):
    hidden = eqx.nn.Linear(width, width, use_bias=False, key=key)
    normal = std * jax.random.normal(key, (width, width))
    head = eqx.nn.Linear(width, 1, use_bias=False, key=key)
    return Model(
        eqx.tree_at(lambda m: m.weight, hidden, normal),
        eqx.tree_at(lambda m: m.weight, head, jnp.zeros((1, width))),
    )


def loss(model, xs):
    return jnp.mean((jax.vmap(model)(xs) - 1) ** 2)


WIDTHS = [64, 256]
batch = lambda width: jax.random.normal(jax.random.key(7), (16, width))


@pytest.fixture(scope="module")
def standard():
    """SGD on N(0, 1) weights."""
    return px.monitoring.coord_check(
        make, WIDTHS, batch, loss=loss, optimiser=optax.sgd(0.1), steps=2, seeds=2
    )


def test_slopes_at_the_first_step(standard):
    assert standard.rms["hidden"].shape == (2, 2, 2)
    assert standard.slopes["hidden"].shape == (2,)
    np.testing.assert_allclose(standard.slopes["hidden"][0], 0.5, atol=0.03)
    assert np.isnan(standard.slopes["head"][0])  # of zeros
    scaled = px.monitoring.coord_check(
        lambda width, key: make(width, key, width**-0.5), WIDTHS, batch, loss=loss
    )
    assert scaled.rms["hidden"].shape == (2, 3, 1)
    np.testing.assert_allclose(scaled.slopes["hidden"][0], 0, atol=0.03)


def test_next_to_a_training_by_hand(standard):
    for i, width in enumerate(WIDTHS):
        model, xs = make(width, jax.random.key(1)), batch(width)
        for step in range(2):
            hidden = jax.vmap(model.hidden)(xs)
            for name, x in (("hidden", hidden), ("head", jax.vmap(model)(xs))):
                rms = np.sqrt(np.mean(np.asarray(x, np.float64) ** 2))
                got = standard.rms[name][i, 1, step]
                np.testing.assert_allclose(got, rms, 1e-5)
            grads = eqx.filter_grad(loss)(model, xs)
            model = eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads))
    x, y = np.log(WIDTHS), np.log(standard.rms["head"][:, :, 1]).mean(1)
    slope, _ = np.polyfit(x, y, 1)
    np.testing.assert_allclose(standard.slopes["head"][1], slope)


def test_an_optimiser_for_each_width():
    check = px.monitoring.coord_check(
        make,
        [8, 16],
        batch,
        loss=loss,
        optimiser=lambda width: optax.sgd(0.1 / width**2),
        steps=2,
        seeds=1,
        where="head",
    )
    assert list(check.rms) == ["head"]
    model, xs = make(16, jax.random.key(0)), batch(16)
    grads = eqx.filter_grad(loss)(model, xs)
    updates = jax.tree.map(lambda g: -0.1 / 16**2 * g, grads)
    out = jax.vmap(eqx.apply_updates(model, updates))(xs)
    got = check.rms["head"][1, 0, 1]
    np.testing.assert_allclose(got, np.sqrt(np.mean(out**2)), 1e-5)


def test_is_shown(standard):
    text = str(standard)
    slopes = [f"{slope:.2f}" for slope in standard.slopes["hidden"]]
    assert re.search(rf"hidden +{slopes[0]} +{slopes[1]}", text)
    assert "slopes of log(rms) over log(width), of [64, 256]" in text


def test_pictures(standard, monkeypatch):
    cells = standard.plot()
    assert [cell.get_title() for cell in cells] == ["step 0", "step 1"]
    hidden, head = cells[1].get_lines()
    expected = np.exp(np.log(standard.rms["hidden"][:, :, 1]).mean(1))
    np.testing.assert_allclose(hidden.get_ydata(), expected)
    assert np.isnan(cells[0].get_lines()[1].get_ydata()).all()
    (legend,) = cells[0].figure.legends
    slope = standard.slopes["head"][1]
    assert legend.get_texts()[1].get_text() == f"head ({slope:+.2f})"
    cells[0].figure.canvas.draw()
    plt.close("all")
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r'pip install "peex\[experiments\]"'):
        standard.plot()


def test_refused():
    with pytest.raises(ValueError, match=r"two or more different widths.*got \(64,\)"):
        px.monitoring.coord_check(make, [64], batch, loss=loss)

    def other(width, key):
        parts = [eqx.nn.Linear(2, 2, key=key)] * (1 + width // 4)
        return eqx.nn.Sequential(parts)

    match = r"width 2 and 4 have different sites: 'layers.1' is in one alone"
    with pytest.raises(px.PeexError, match=match):
        px.monitoring.coord_check(other, [2, 4], jnp.ones((1, 2)), loss=loss)
