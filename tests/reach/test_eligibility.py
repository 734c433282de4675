"""`px.eligibility`: next to backpropagation through time, and to numbers by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from closeness import assert_close
from jax import lax
from recurrent import f32, GRU, LinearLSTM, LSTM, random_like, TwoGRUs, Vanilla

import peex as px


T, IN, WIDTH = 8, 3, 4
H = jnp.zeros(WIDTH)


class Plain(eqx.Module):
    """Without a bias."""

    W: jax.Array
    U: jax.Array

    def __call__(self, x, h):
        return jnp.tanh(self.W @ x + self.U @ h)


class Stacked(eqx.Module):
    r1: eqx.nn.GRUCell
    r2: eqx.nn.GRUCell

    def __call__(self, x, state):
        h1 = self.r1(x, state[0])
        return h1, self.r2(h1, state[1])


def plain():
    return Plain(*random_like((f32(WIDTH, IN), f32(WIDTH, WIDTH)), 0))


def cell(kind, n_in=IN, seed=0):
    return kind(n_in, WIDTH, key=jax.random.key(seed))


# Model, state, and the bytes of its traces.
CELLS = {
    "vanilla": (plain, H, 448),
    "gru": (lambda: cell(eqx.nn.GRUCell), H, 1600),
    "lstm": (lambda: cell(eqx.nn.LSTMCell), (H, H), 4096),
    "gru on gru": (
        lambda: Stacked(cell(eqx.nn.GRUCell), cell(eqx.nn.GRUCell, WIDTH, 1)),
        (H, H),
        6784,
    ),
}


def losses(model, state, xs, ys):
    """Over some steps: the sum of 0.5 |h - y|^2, and the state behind them."""

    def step(state, xy):
        state = model(xy[0], state)
        last = jax.tree.leaves(state)[0 if isinstance(model, eqx.nn.LSTMCell) else -1]
        return state, 0.5 * jnp.sum((last - xy[1]) ** 2)

    state, each = lax.scan(step, state, (xs, ys))
    return jnp.sum(each), state


@pytest.mark.parametrize("window", [1, 2, 4, 8])
@pytest.mark.parametrize("name", CELLS)
def test_windows_add_up_to_backpropagation_through_time(name, window):
    make, state, size = CELLS[name]
    model = make()
    xs, ys = random_like((f32(T, IN), f32(T, WIDTH)), 1)
    expected = eqx.filter_grad(lambda m: losses(m, state, xs, ys)[0])(model)

    run = lambda model, xs, state: lax.scan(
        lambda state, x: (model(x, state), None), state, xs
    )[0]
    e = px.eligibility(model, xs[:window], state, method=run)
    assert e.bytes == size

    @jax.jit
    def through(model, e, state, xs, ys):
        loss = lambda m, s: losses(m, s, xs, ys)[0]
        by_model, by_state = jax.grad(loss, (0, 1))(model, state)
        grads = jax.tree.map(jnp.add, by_model, e.gradient(by_state))
        return grads, *e.advance(model, xs, state)

    total = jax.tree.map(jnp.zeros_like, model)
    for i in range(0, T, window):
        part = slice(i, i + window)
        grads, state, e = through(model, e, state, xs[part], ys[part])
        total = jax.tree.map(jnp.add, total, grads)
    scale = max(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(expected))
    assert_close(total, expected, rtol=1e-5, atol=1e-5 * scale)


def test_bytes():
    e = px.eligibility(GRU(10, 32, 5), f32(10), f32(32))
    assert e.bytes == 532480
    names = "weight_ih", "weight_hh", "bias", "bias_n"
    assert e.keys == tuple(f"cell.{name}" for name in names)
    assert e["cell.weight_hh"].shape == (32, 96, 32)
    assert repr(e) == "<Eligibility: 4 parameters by h, 532 kB>"


class Scalar(eqx.Module):
    a: jax.Array
    w: jax.Array

    def __call__(self, x, h):
        return self.a * h + self.w * x


SCALAR = Scalar(jnp.array(0.5), jnp.array(2.0))


@pytest.mark.parametrize("diagonal", [False, True], ids=["full", "diagonal"])
def test_by_hand(diagonal):
    h = jnp.array(0.0)
    e = px.eligibility(SCALAR, h, h, diagonal=diagonal)
    seen = []
    for x in (1.0, 2.0, 3.0):
        h, e = e.advance(SCALAR, jnp.array(x), h)
        seen.append((float(h), float(e["a"]), float(e["w"])))
    assert seen == [(2.0, 0.0, 1.0), (5.0, 2.0, 2.5), (8.5, 6.0, 4.25)]
    grads = e.gradient(jnp.array(2.0))
    assert isinstance(grads, Scalar)
    assert (float(grads.a), float(grads.w)) == (12.0, 8.5)


def test_what_a_scan_carries():
    model, xs = cell(eqx.nn.GRUCell), random_like(f32(T, IN), 1)

    def step(carry, x):
        h, e = carry
        h, e = e.advance(model, x, h)
        return (h, e), h

    e = px.eligibility(model, xs[0], H)
    (h, e), hs = jax.jit(lambda h, e: lax.scan(step, (h, e), xs))(H, e)
    final = lambda m: lax.scan(lambda h, x: (m(x, h), None), H, xs)[0]
    assert_close(h, final(model))
    jacobian = jax.jacrev(final)(model)
    for name in ("weight_ih", "weight_hh", "bias", "bias_n"):
        assert_close(e[name], getattr(jacobian, name), rtol=1e-5)


def test_mapped_over():
    model = cell(eqx.nn.GRUCell)
    xs, hs = random_like((f32(5, IN), f32(5, WIDTH)), 1)
    e = px.eligibility(model, xs[0], H)
    es = jax.tree.map(lambda x: jnp.broadcast_to(x, (5, *x.shape)), e)
    hs, es = jax.vmap(lambda e, x, h: e.advance(model, x, h))(es, xs, hs)
    grads = jax.vmap(lambda e, h: e.gradient(h))(es, hs)
    one = jax.tree.map(lambda x: x[3], es)
    assert_close(grads.weight_hh[3], one.gradient(hs[3]).weight_hh)
    assert grads.weight_hh.shape == (5, 12, 4)


def test_the_output_is_that_of_the_model():
    model, x, h = GRU(IN, WIDTH, 2), *random_like((f32(IN), f32(WIDTH)), 1)
    e = px.eligibility(model, x, h)
    (y, new), e = e.advance(model, x, h)
    assert_close((y, new), model(x, h))
    grads = e.gradient(new)
    assert grads.out.weight is None and grads.cell.bias.shape == (3 * WIDTH,)
    assert eqx.filter_jit(lambda e: e.advance(model, x=x, h=h))(e)[0][1].shape == (4,)


@pytest.mark.parametrize(
    ("where", "keys"),
    [
        ("r2", ["r2.weight_ih", "r2.weight_hh", "r2.bias", "r2.bias_n"]),
        ("**.bias", ["r1.bias", "r2.bias"]),
        (["r1.weight_hh", "r2.bias"], ["r1.weight_hh", "r2.bias"]),
        (lambda m: [m.r1.bias, m.out], ["r1.bias"]),
    ],
    ids=["module", "pattern", "several", "function"],
)
def test_where(where, keys):
    model, h = TwoGRUs(IN, WIDTH), f32(WIDTH)
    e = px.eligibility(model, f32(IN), h, h, state=(1, 2), where=where)
    assert list(e.keys) == keys
    assert set(e[keys[0]]) == {"h1", "h2"}


def test_a_layer_in_two_places():
    class Tied(eqx.Module):
        a: eqx.nn.Linear
        b: eqx.nn.Linear

        def __call__(self, x, h):
            return jnp.tanh(self.b(jnp.tanh(self.a(h + x))))

    layer = eqx.nn.Linear(WIDTH, WIDTH, key=jax.random.key(0))
    model, x, h = Tied(layer, layer), *random_like((H, H), 1)
    new, e = px.eligibility(model, x, h).advance(model, x, h)
    assert e.keys == ("a.weight", "a.bias")
    both = eqx.filter_grad(lambda m: 0.5 * jnp.sum(m(x, h) ** 2))(model)
    grads = e.gradient(new)
    assert_close(grads.a.weight, both.a.weight + both.b.weight, rtol=1e-5)
    assert not grads.b.weight.any()


def test_several_states():
    model = LinearLSTM()
    x, h, c = random_like((f32(2), f32(3), f32(3)), 1)
    e = px.eligibility(model, x, h, c, state=("h", "c"))
    (h, c), e = e.advance(model, x, h, c)
    as_tuple, by_key = e.gradient((h, c)), e.gradient({"c": c, "h": h})
    assert_close(as_tuple, by_key)
    alone = e.gradient((h, jnp.zeros(3)))
    assert_close(alone.Wo.weight, as_tuple.Wo.weight)
    with pytest.raises(AssertionError):
        assert_close(alone.Wg.weight, as_tuple.Wg.weight)


def test_a_counter_in_the_state():
    class Counting(eqx.Module):
        cell: Vanilla

        def __call__(self, x, state):
            h, n = state
            return self.cell(x, h) + n.astype(h.dtype), n + 1

    model = Counting(Vanilla(IN, WIDTH))
    state = H, jnp.zeros((), jnp.int32)
    e = px.eligibility(model, jnp.ones(IN), state)
    new, e = e.advance(model, jnp.ones(IN), state)
    assert e.states == ("state.0",) and int(new[1]) == 1
    assert e.gradient(new[0]).cell.U.weight.shape == (WIDTH, WIDTH)


def test_of_an_lstm_cell_by_name():
    model = LSTM(IN, WIDTH)
    e = px.eligibility(model, f32(IN), (f32(WIDTH), f32(WIDTH)), state="state")
    assert set(e["cell.bias"]) == {"state.0", "state.1"} and e.bytes == 4096


def test_dtypes():
    """Weights in half precision, a state in single."""
    step = lambda cell, x, h: cell(x, h.astype(jnp.bfloat16)).astype(jnp.float32)
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), cell(eqx.nn.GRUCell))
    x = jnp.ones(IN, jnp.bfloat16)
    e = px.eligibility(half, x, H, method=step)
    assert e["bias"].dtype == jnp.float32
    new, e = e.advance(half, x, H)
    assert e.gradient(new).bias.dtype == jnp.bfloat16
