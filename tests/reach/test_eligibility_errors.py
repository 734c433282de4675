"""What `px.eligibility` refuses, and what it says."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax import lax
from recurrent import f32, GRU, linear, LinearLSTM, WIDTH

import peex as px


X, H = jnp.ones(2), jnp.ones(WIDTH)


def test_no_parameter():
    step = lambda model, x, h: (model(x, h)[0], lax.stop_gradient(model(x, h)[1]))
    match = (
        r"No parameter reaches the state \(h\) with a derivative, so there is nothing "
        r"to keep traces of. Of those that are chosen: cell.weight_ih "
        r"\(stop_gradient\), .*out.bias \(non_temporal\). Those that do: none"
    )
    with pytest.raises(px.PeexError, match=match):
        px.eligibility(GRU(), X, H, method=step)
    match = r"chosen: out.weight \(non_temporal\), .* Those that do: cell.weight_ih, "
    with pytest.raises(px.PeexError, match=match):
        px.eligibility(GRU(), X, H, where="out")
    with pytest.raises(px.PeexError, match="Of those that are chosen: none"):
        px.eligibility(GRU(), X, H, where=lambda m: [])


def test_no_state():
    with pytest.raises(px.PeexError, match="There is no state"):
        px.eligibility(GRU(), X, H, state=())
    with pytest.raises(px.PeexError, match=r"its state is an argument.*`state=1`"):
        px.eligibility(GRU(), X, H, state=None)
    counted = lambda model, x, n: (model(x), n + 1)
    match = r"No parameter reaches the state \(n\)"
    with pytest.raises(px.PeexError, match=match):
        px.eligibility(linear(2), X, jnp.array(0), method=counted, new_state=1)


def test_where_that_matches_nothing():
    match = "`where='cell.weight_h'` matches no parameter. Nearest: 'cell.weight_ih', "
    with pytest.raises(px.PeexError, match=match):
        px.eligibility(GRU(), X, H, where="cell.weight_h")


def test_more_than_max_bytes():
    # (6 + 9) * 3 + 9 + 3 numbers for each of three units.
    assert px.eligibility(GRU(), X, H, max_bytes=684).bytes == 684
    match = (
        r"The traces would take 684 B \(684 bytes\), more than `max_bytes=683`. The "
        r"largest: cell.weight_hh 324 B; .*`where`.*`diagonal=True`.*`max_bytes=684`"
    )
    with pytest.raises(px.PeexError, match=match):
        px.eligibility(GRU(), X, H, max_bytes=683)
    big = eqx.filter_eval_shape(lambda: GRU(10, 4096))
    with pytest.raises(px.PeexError, match=r"would take 827 GB \(826915422208 bytes\)"):
        px.eligibility(big, f32(10), f32(4096))


def test_another_state():
    e = px.eligibility(GRU(), X, H)
    match = (
        r"were made for a state \(h\) of f32\[3\], and this call has f32\[5,3\].*"
        r"`jax.vmap\(lambda e"
    )
    with pytest.raises(px.PeexError, match=match):
        e.advance(GRU(), X, jnp.ones((5, 3)))
    with pytest.raises(px.PeexError, match="this call has -"):
        e.advance(GRU(), X)


def test_another_cotangent():
    e = px.eligibility(LinearLSTM(), X, H, H, state=("h", "c"))
    match = (
        r"The cotangent of the state is f32\[3\], but the state \(h, c\) has the "
        r"shapes \[\(3,\), \(3,\)\]"
    )
    with pytest.raises(px.PeexError, match=match):
        e.gradient(H)


def test_a_key_without_a_trace():
    e = px.eligibility(GRU(), X, H)
    with pytest.raises(KeyError, match="'out.weight' has no trace. .* cell.weight_ih"):
        e["out.weight"]


def test_complex_numbers():
    class Complex(eqx.Module):
        a: jax.Array

        def __call__(self, x, h):
            return self.a.astype(h.dtype) * h

    h = jnp.ones(3, jnp.complex64)
    with pytest.raises(px.PeexError, match="'a' is complex.*imaginary parts as two"):
        px.eligibility(Complex(h), X, h)
    with pytest.raises(px.PeexError, match="'h' is complex"):
        px.eligibility(Complex(jnp.ones(3)), X, h)
