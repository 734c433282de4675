"""`px.eligibility(..., diagonal=True)`: traces of one unit each."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from closeness import assert_close
from jax import lax
from recurrent import f32, LinearGRU, LinearLSTM, random_like, TwoGRUs, WIDTH

import peex as px


T = 6
H = f32(WIDTH)


class Diagonal(eqx.Module):
    """Units that each depend on themselves alone."""

    decay: jax.Array
    W: eqx.nn.Linear

    def __init__(self):
        self.decay = jnp.array([0.5, -0.3, 0.9])
        self.W = eqx.nn.Linear(2, WIDTH, key=jax.random.key(0))

    def __call__(self, x, h):
        return jnp.tanh(self.decay * h + self.W(x))


def jacobian(model, h, xs):
    final = lambda m: lax.scan(lambda h, x: (m(x, h), None), h, xs)[0]
    return jax.jacrev(final)(model)


def advanced(model, h, xs, **kwargs):
    e = px.eligibility(model, xs[0], h, **kwargs)
    for x in xs:
        h, e = e.advance(model, x, h)
    return h, e


def test_exact_for_diagonal_recurrences():
    model = Diagonal()
    h, xs = random_like((H, f32(T, 2)), 1)
    new, e = advanced(model, h, xs, diagonal=True)
    assert e.bytes == 4 * (3 + 6 + 3)
    full = jacobian(model, h, xs)
    assert_close(e["decay"], jnp.diag(full.decay), rtol=1e-5)
    assert_close(e["W.weight"], full.W.weight[jnp.arange(3), jnp.arange(3)], rtol=1e-5)
    expected = jax.tree.map(lambda j: jnp.tensordot(new, j, 1), full)
    assert_close(e.gradient(new), expected, rtol=1e-5)
    (new, e), _ = lax.scan(
        lambda c, x: (c[1].advance(model, x, c[0]), None),
        (h, px.eligibility(model, xs[0], h, diagonal=True)),
        xs,
    )
    assert_close(e.gradient(new), expected, rtol=1e-5)
    assert repr(e) == "<Eligibility: diagonal, 3 parameters by h, 48 B>"


def test_only_the_diagonal_is_kept():
    """By hand: h' = tanh(U h + W x), of which diag(dh'/dh) is (1 - h'^2) diag(U)."""

    class Plain(eqx.Module):
        U: jax.Array

        def __call__(self, x, h):
            return jnp.tanh(self.U @ h + x)

    U, h, xs = random_like((f32(WIDTH, WIDTH), H, f32(T, WIDTH)), 1)
    model, trace = Plain(U), jnp.zeros((WIDTH, WIDTH))
    _, e = advanced(model, h, xs, diagonal=True)
    for x in xs:
        old, h = h, jnp.tanh(U @ h + x)
        trace = (1 - h**2)[:, None] * (old[None] + jnp.diag(U)[:, None] * trace)
    assert_close(e["U"], trace, rtol=1e-5)


def test_units_of_a_stacked_cell():
    """Of a GRU cell, the rows of each gate belong to the units in turn."""
    cell = eqx.nn.GRUCell(2, WIDTH, key=jax.random.key(0))
    x, h = random_like((f32(2), H), 1)
    new, e = px.eligibility(cell, x, h, diagonal=True).advance(cell, x, h)
    full = jax.jacrev(lambda m: m(x, h))(cell)
    rows = jnp.arange(3 * WIDTH)
    assert_close(e["weight_hh"], full.weight_hh[rows % WIDTH, rows], rtol=1e-5)
    assert_close(e["bias_n"], jnp.diag(full.bias_n), rtol=1e-5)


def test_states_of_one_shape_have_their_units_in_common():
    """An LSTM without recurrent weights is diagonal in h and c together."""

    class Peephole(eqx.Module):
        W: eqx.nn.Linear
        p: jax.Array

        def __call__(self, x, state):
            h, c = state
            c = jax.nn.sigmoid(self.p * h) * c + jnp.tanh(self.W(x))
            return jnp.tanh(c) * jax.nn.sigmoid(self.p * c), c

    model = Peephole(eqx.nn.Linear(2, WIDTH, key=jax.random.key(0)), jnp.arange(1.0, 4))
    state, xs = random_like(((H, H), f32(T, 2)), 1)
    (h, c), e = advanced(model, state, xs, diagonal=True)
    final = lambda m: lax.scan(lambda s, x: (m(x, s), None), state, xs)[0]
    loss = lambda m: sum(jnp.sum(y**2) for y in final(m)) / 2
    assert_close(e.gradient((h, c)), jax.grad(loss)(model), rtol=1e-5)


def test_rows_that_are_not_read_have_the_units_of_those_that_are():
    class Embedded(eqx.Module):
        table: jax.Array
        decay: jax.Array

        def __call__(self, token, h):
            return jnp.tanh(self.decay * h + self.table[token])

    model = Embedded(*random_like((f32(5, WIDTH), H), 0))
    h, token = random_like(H, 1), jnp.array(3)
    e = px.eligibility(model, token, h, diagonal=True)
    h, e = e.advance(model, token, h)
    assert_close(e["table"][3], 1 - h**2, rtol=1e-5)
    assert not e["table"][:3].any()


def test_a_parameter_of_several_units():
    match = (
        r"'Wr.weight' doesn't belong to one unit: a number of it reaches several units "
        r"of the state \(h\) in one step, or none.*`where=\['Wz.weight', 'Wz.bias', .*"
    )
    with pytest.raises(px.PeexError, match=match):
        px.eligibility(LinearGRU(), f32(2), H, diagonal=True)
    e = px.eligibility(LinearGRU(), f32(2), H, diagonal=True, where=["Wz", "Wh"])
    assert e.keys == ("Wz.weight", "Wz.bias", "Wh.weight", "Wh.bias")
    with pytest.raises(px.PeexError, match="'r1.weight_ih' doesn't belong to one unit"):
        px.eligibility(TwoGRUs(), f32(2), H, H, state=(1, 2), diagonal=True)
    scaled = lambda model, x, h: jnp.tanh(model[0] * h)
    with pytest.raises(px.PeexError, match="'0' doesn't belong to one unit"):
        scale = (jnp.array(0.5),)
        px.eligibility(scale, f32(2), H, diagonal=True, method=scaled)


def test_of_shapes_and_inside_of_jit():
    model = eqx.filter_eval_shape(LinearLSTM)
    e = px.eligibility(model, f32(2), H, H, state=(1, 2), diagonal=True)
    assert e["Wo.weight"]["h"].shape == (WIDTH, 2 + WIDTH)

    @eqx.filter_jit
    def run(model, x, h):
        return px.eligibility(model, x, h, diagonal=True).advance(model, x, h)[0]

    x, h = random_like((f32(2), H), 1)
    assert_close(run(Diagonal(), x, h), Diagonal()(x, h))
