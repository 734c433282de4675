"""What a monitor keeps at other sites: attention, arguments, several arrays."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parts import Chain

import peex as px


STATS = px.monitoring.Stats


def read(monitor, model, *batch):
    step = eqx.filter_jit(lambda state: monitor(model, state, *batch))
    (value, state), grads = step(monitor.init(model, *batch))
    return monitor.read(state)[0], grads


def test_entropy_and_largest_logit():
    attention = eqx.nn.MultiheadAttention(2, 8, key=jax.random.key(0))
    xs = jax.random.normal(jax.random.key(1), (3, 5, 8))
    mask = jnp.tril(jnp.ones((5, 5), bool))
    loss = lambda m, xs: jnp.sum(jax.vmap(lambda x: m(x, x, x, mask=mask))(xs))
    stats = {"./softmax": STATS("entropy"), "./where": STATS("highest")}
    summary, _ = read(px.monitoring.Monitor(loss, forward=stats), attention, xs)

    def by_hand(x):
        split = lambda proj: jax.vmap(proj)(x).reshape(5, 2, 4)
        q, k = split(attention.query_proj), split(attention.key_proj)
        logits = jnp.einsum("qhd,khd->hqk", q, k) / 2
        return jnp.where(mask, logits, -jnp.inf)

    logits = jax.vmap(by_hand)(xs)
    p = np.asarray(jax.nn.softmax(logits), np.float64)
    entropy = np.mean(-np.sum(p * np.log(np.where(p > 0, p, 1)), -1))
    np.testing.assert_allclose(summary["./softmax/entropy"], entropy, 1e-5)
    np.testing.assert_allclose(summary["./where/highest"], logits.max(), 1e-5)


@pytest.mark.parametrize("frozen", [False, True])
def test_output_over_input(frozen):
    """Of each call of a layer that is called three times."""
    model = Chain(eqx.nn.Linear(3, 3, key=jax.random.key(0)))
    xs = jax.random.normal(jax.random.key(1), (4, 3))
    loss = lambda m, xs: (jnp.mean(jax.vmap(m)(xs) ** 2), "aux")
    trainable = eqx.tree_at(
        lambda m: m.cell.bias, jax.tree.map(eqx.is_array, model), not frozen
    )
    monitor = px.monitoring.Monitor(
        loss,
        forward={"cell": STATS("rms", "out_over_in")},
        has_aux=True,
        trainable=trainable,
    )
    summary, grads = read(monitor, model, xs)
    rms = lambda x: np.sqrt(np.mean(np.square(x)))
    x, ratios, sizes = xs, [], []
    for _ in range(3):
        out = jax.vmap(model.cell)(x)
        ratios.append(rms(out) / rms(x))
        sizes.append(rms(out))
        x = jnp.tanh(out)
    names = ("cell", "cell#1", "cell#2")
    assert list(summary) == [f"{n}/{s}" for n in names for s in ("rms", "out_over_in")]
    got = [[summary[f"{n}/{s}"] for n in names] for s in ("rms", "out_over_in")]
    np.testing.assert_allclose(got, [sizes, ratios], 1e-5)
    expected = eqx.filter_grad(lambda m: loss(m, xs)[0])(model)
    np.testing.assert_allclose(grads.cell.weight, expected.cell.weight, 1e-5)
    assert (grads.cell.bias is None) == frozen


def test_several_arrays_and_names_of_ones_own():
    cell = eqx.nn.LSTMCell(3, 2, key=jax.random.key(0))
    xs = jax.random.normal(jax.random.key(1), (4, 3))
    zero = jnp.zeros(2)
    loss = lambda m, xs: jnp.sum(jax.vmap(lambda x: m(x, (zero, zero))[0])(xs))
    edges = px.HistogramLog([0.0])
    monitor = px.monitoring.Monitor(
        loss, forward=STATS("max", edges), backward=STATS("rms"), where={"lstm": "."}
    )
    summary, _ = read(monitor, cell, xs)
    h, c = jax.vmap(lambda x: cell(x, (zero, zero)))(xs)
    for i, x in enumerate((h, c)):
        np.testing.assert_allclose(summary[f"lstm/{i}/max"], np.max(np.abs(x)), 1e-5)
        counts = int(np.sum(x < 0)), int(np.sum(x >= 0))
        assert summary[f"lstm/{i}/histogram"] == (counts, (0.0,))
    assert summary["backward/lstm/0/rms"] == 1
    assert summary["backward/lstm/1/rms"] == 0
