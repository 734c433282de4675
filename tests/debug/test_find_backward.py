"""What made a gradient that isn't finite, of a value that is."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from nonfinite_models import Chain, find, Fn, mean

import peex as px


def test_a_square_root_at_zero_behind_a_relu():
    model = Chain(Fn(jax.nn.relu), Fn(jnp.sqrt))
    xs = jnp.array([[1.0, 2.0], [-1.0, 2.0]])
    _, grads = eqx.filter_value_and_grad(mean)(model, xs)
    assert np.isfinite(grads.gain.factor)
    found = find(model, xs)
    assert not found and found.producers == () and found.gradients == {}
    (one,) = found.masked
    assert (one.key, one.direction, one.kind) == ("parts.1", "backward", "inf")
    assert one.examples == (1,)


def test_a_norm_at_zero():
    model = Chain(Fn(jnp.linalg.norm))
    xs = jnp.ones((4, 3)).at[2].set(0)
    _, grads = eqx.filter_value_and_grad(mean)(model, xs)
    assert np.isnan(grads.gain.factor)
    found = find(model, xs)
    assert found and found.value == "finite"
    assert found.gradients == {"gain.factor": "nan"}
    (first,) = found.producers
    assert (first.key, first.direction, first.source) == (
        "parts.0",
        "backward",
        "inside",
    )
    assert first.examples == (2,) and first.op == "sqrt"
    assert first.line.startswith("nonfinite_models.py:")
    assert first.trail == ("gain",)


def test_a_branch_of_where_that_is_not_taken():
    model = Chain(Fn(lambda x: jnp.where(x > 0, jnp.log(x), 0.0)))
    xs = jnp.ones((4, 2)).at[3, 1].set(0)
    found = find(model, xs)
    (first,) = found.producers
    assert found.value == "finite" and first.direction == "backward"
    assert (first.key, first.kind, first.op) == ("parts.0", "nan", "log")
    assert first.examples == (3,)


def test_in_a_loop_the_step():
    class Loop(eqx.Module):
        gain: Fn
        root: Fn
        w: jax.Array

        def __call__(self, xs):
            step = lambda c, x: (c + self.root(self.gain(self.w * x)), None)
            return jax.lax.scan(step, 0.0, xs)[0]

    model = Loop(Fn(jnp.abs), Fn(jnp.sqrt), jnp.array(2.0))
    xs = jnp.ones((3, 5)).at[1, 4].set(0).at[1, 2].set(0)
    found = find(model, xs)
    # The last step is the first of the backward pass.
    assert [b.step for b in found.producers] == [(4,), (2,)]
    assert {(b.key, b.examples, b.op) for b in found.producers} == {
        ("root", (1,), "sqrt")
    }


def test_only_the_gradient_of_a_parameter():
    class Power(eqx.Module):
        exponent: jax.Array

        def __call__(self, x):
            # Its derivative in the exponent is `log(x) * x ** exponent`.
            return jnp.exp(self.exponent * jnp.log(jnp.abs(x)))

    model = Chain(Fn(jax.lax.stop_gradient), Power(jnp.array(3.0)))
    found = find(model, jnp.ones((2, 2)).at[1, 1].set(0))
    (first,) = found.producers
    assert found.value == "finite"
    assert list(found.gradients) == ["parts.1.exponent"]
    assert first.key == "parts.1" and first.direction == "backward"


def test_the_derivative_of_the_loss():
    def loss(model, xs):
        return jnp.sqrt(jnp.sum(jax.vmap(model)(xs) ** 2))

    found = find(Chain(Fn(jnp.sin)), jnp.zeros((2, 2)), loss)
    (first,) = found.producers
    assert (first.source, first.direction, first.key) == ("outside", "backward", "loss")
    assert first.op == "sqrt"


def test_without_a_gradient_there_is_none():
    found = find(Chain(Fn(jnp.linalg.norm)), jnp.zeros((2, 2)), grad=False)
    assert not found and found.masked == ()


def test_sites_that_cannot_be_brought_out_are_listed():
    @jax.custom_vjp
    def ruled(layer, x):
        return layer(x)

    ruled.defvjp(
        lambda layer, x: (layer(x), (layer, x)),
        lambda saved, g: (saved[0], g * jnp.inf),
    )

    class Ruled(eqx.Module):
        part: Fn

        def __call__(self, x):
            return ruled(self.part, x)

    model = Chain(Ruled(Fn(jnp.sin)))
    found = find(model, jnp.ones((2, 2)))
    assert found.first.key == "parts.0" and found.first.direction == "backward"
    assert any("parts.0.part" in key for key in found.lost)
    assert "not seen: parts.0.part" in str(found)


def test_an_overflow_is_not_blamed_twice():
    model = Chain(Fn(jnp.exp), Fn(jnp.sin))
    found = px.debug.find_nonfinite(
        model, jnp.full((2, 2), 100.0), method=mean, drill=False
    )
    assert [(b.key, b.direction) for b in found.producers] == [("parts.0", "forward")]


def test_an_overflow_that_only_the_gradient_sees():
    """`exp(-inf)` is 0, and its derivative times that of what overflowed NaN."""
    model = Chain(Fn(jnp.exp), Fn(lambda x: jnp.exp(-x)))
    xs = jnp.ones((3, 2)).at[1].set(100)
    found = find(model, xs)
    assert found.value == "finite" and found.gradients == {"gain.factor": "nan"}
    assert found.masked == ()
    assert [(b.key, b.direction, b.kind, b.examples) for b in found.producers] == [
        ("parts.0", "forward", "inf", (1,)),
        ("parts.0", "backward", "nan", (1,)),
    ]
