"""What made a value that isn't finite."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from nonfinite_models import (
    Chain,
    find,
    Fn,
    mean,
    Recurrent,
    scales,
    Scanned,
    Unrolled,
)

import peex as px


# Those of examples 1 to 4 overflow where they are doubled.
BATCH = jnp.ones((6, 3)).at[1:5].set(45.0)


def test_a_scanned_stack_that_overflows_at_one_layer():
    model = Scanned()
    assert not np.isfinite(mean(model, BATCH))
    found = find(model, BATCH)
    assert found and found.value == "nan"  # 0 * inf
    (first,) = found.producers
    assert found.first == first
    assert first.key == "layers.act" and first.class_name == "Act"
    assert (first.direction, first.kind, first.source) == ("forward", "inf", "inside")
    assert first.step == (2,) and first.examples == (1, 2, 3, 4)
    assert first.op == "exp" and first.line.startswith("nonfinite_models.py:")
    assert first.max_abs == 90.0
    # Of the victims, the innermost that were given what isn't finite.
    assert first.trail == ()


def test_the_same_stack_unrolled():
    found = find(Unrolled(), BATCH)
    (first,) = found.producers
    assert first.key == "layers.2.act" and first.step == ()
    assert (first.direction, first.kind) == ("forward", "inf")
    assert first.examples == (1, 2, 3, 4) and first.op == "exp"


def test_each_step_that_makes_one_itself_is_to_blame_by_itself():
    model = Scanned(scales().at[4].set(60.0))
    xs = BATCH.at[0].set(2.0)  # example 0 overflows at layer 4
    found = find(model, xs, drill=False)
    assert [(b.step, b.examples) for b in found.producers] == [
        ((2,), (1, 2, 3, 4)),
        ((4,), (0,)),
    ]
    assert all(b.op is None for b in found.producers)


def test_a_recurrent_model_in_half_precision():
    xs = jnp.ones((3, 8, 2), jnp.float16).at[1, 5].set(100)
    found = find(Recurrent(), xs)
    (first,) = found.producers
    assert first.key == "scale" and first.step == (5,) and first.examples == (1,)
    assert first.kind == "inf" and first.op == "mul" and first.max_abs == 100
    assert "cell" in first.trail  # no cause, but a victim


def test_bfloat16():
    big = jnp.full((2, 3), 1e38, jnp.bfloat16).at[0].set(1)
    model = Chain(Fn(lambda x: x * x), gain=jnp.bfloat16(1.0))
    first = find(model, big).first
    assert first.key == "parts.0" and first.examples == (1,) and first.op == "mul"


def test_a_parameter():
    model = Scanned()
    model = eqx.tree_at(lambda m: m.layers.scale, model, scales().at[3].set(jnp.nan))
    found = find(model, BATCH / 45)
    (first,) = found.producers
    assert (first.source, first.key) == ("parameter", "layers.scale")
    assert first.kind == "nan" and first.index == (3,)


def test_an_argument():
    found = find(Chain(Fn(jnp.tanh)), jnp.ones((4, 2)).at[1, 0].set(jnp.nan))
    (first,) = found.producers
    assert (first.source, first.key) == ("argument", "args[0]")
    assert first.index == (1, 0)


def test_a_log_in_the_loss():
    def loss(model, xs):
        return jnp.mean(jnp.log(jax.vmap(model)(xs)))

    found = find(Chain(Fn(jax.nn.relu)), -jnp.ones((4, 2)), loss)
    (first,) = found.producers
    assert (first.source, first.key) == ("outside", "loss")
    assert (first.direction, first.kind, first.op) == ("forward", "inf", "log")
    assert "test_find_forward.py:" in first.line


def test_code_between_the_parts_of_a_module():
    class Between(eqx.Module):
        a: Fn
        b: Fn

        def __call__(self, x):
            return self.b(jnp.exp(self.a(x)))

    model = Chain(Between(Fn(jnp.abs), Fn(jnp.tanh)), Fn(jnp.sin))
    xs = jnp.full((2, 1), 100.0).at[1].set(1.0)
    found = find(model, xs, grad=False)
    # What `b` makes of it is finite, so that it goes nowhere.
    assert not found and not found.producers
    model = Chain(Between(Fn(jnp.abs), Fn(jnp.square)), Fn(jnp.sin))
    (first,) = find(model, xs).producers
    assert (first.key, first.source) == ("parts.0", "between")
    assert first.examples == (0,) and first.op == "exp"
    assert first.trail == ("parts.0.b", "parts.1")


def test_a_function_with_a_rule_of_its_own_is_not_looked_into():
    @jax.custom_jvp
    def steep(x):
        return jnp.exp(x)

    steep.defjvp(lambda x, t: (jnp.exp(x[0]), t[0]))
    (first,) = find(Chain(Fn(lambda x: steep(2 * x))), 100 * jnp.ones((1, 1))).producers
    assert first.op == "steep" and "rule of its own" in first.note


def test_masks_of_attention_are_nothing():
    attention = eqx.nn.MultiheadAttention(2, 4, key=jax.random.key(0))

    class Masked(eqx.Module):
        attention: eqx.nn.MultiheadAttention
        bias: jax.Array
        add: Fn

        def __call__(self, x):
            logits = self.add(x @ x.T, self.bias)
            return jax.nn.softmax(logits) @ self.attention(x, x, x, mask=self.bias == 0)

    bias = jnp.where(jnp.tri(3, dtype=bool), 0, -jnp.inf)
    model = Masked(attention, bias, Fn(jnp.add))
    xs = jax.random.normal(jax.random.key(1), (2, 3, 4))
    train = lambda model, xs: jnp.mean(jax.vmap(model)(xs) ** 2)
    found = find(model, xs, train)
    assert not found and found.producers == ()
    assert {b.key for b in found.masked} == {"bias"}
    # Nor are they something if another call overflows.
    model = Masked(attention, bias, Fn(lambda x, y: 1e30 * x + y))
    model = Chain(model, Fn(lambda x: (1e30 * x) ** 2))
    found = find(model, xs, train)
    assert [b.key for b in found.producers] == ["parts.1"]
    assert {b.key for b in found.masked} == {"parts.0.bias"}


def test_what_is_ignored_is_not_to_blame():
    inf = Fn(lambda x: jnp.full_like(x, jnp.inf))
    found = find(Chain(inf), jnp.ones((2, 2)), ignore="parts.*", drill=False)
    assert found and [b.source for b in found.producers] == ["outside"]
    found = find(Chain(inf), jnp.ones((2, 2)), ignore=["other", "**.x"], drill=False)
    assert found.first.key == "parts.0"


@pytest.mark.parametrize("grad", [True, False])
def test_finite_models_are_nothing(grad):
    found = find(Scanned(jnp.zeros(6)), BATCH, grad=grad)
    assert not found and found.first is None and found.masked == ()
    assert found.value == "finite" and found.gradients == {} and found.lost == {}
    found.raise_if_found()
    assert str(found) == "The value and all gradients are finite."


def test_what_is_not_a_scalar_is_looked_at_as_a_whole():
    model = Chain(Fn(jnp.log))
    found = px.debug.find_nonfinite(model, jnp.array([1.0, 0.0]))
    assert found.value == "inf" and found.first.key == "parts.0"
    assert found.first.examples == ()
    aux = lambda model, x: (model(x).sum(), jnp.array([jnp.inf]))
    assert not px.debug.find_nonfinite(model, jnp.ones(2), method=aux)


def test_methods_by_name():
    class Two(eqx.Module):
        part: Fn

        def encode(self, x):
            return self.part(x)

    model = Two(Fn(jnp.log))
    found = px.debug.find_nonfinite(model, jnp.zeros(2), method="encode", grad=False)
    assert found.first.key == "part" and found.first.op == "log"


def test_a_branch_that_is_taken():
    class Branch(eqx.Module):
        part: Fn

        def __call__(self, x):
            return jax.lax.cond(x[0] > 0, self.part, lambda x: x, x)

    model = Chain(Branch(Fn(lambda x: x / 0)))
    (first,) = find(model, jnp.array([[1.0], [-1.0]]), drill=False).producers
    assert first.key == "parts.0.part" and first.examples == (0,)


def test_raises_what_it_prints():
    found = find(Scanned(), BATCH)
    match = r"layers\.act \(Act\), forward, step 2, examples 1 to 4: inf from `exp`"
    with pytest.raises(px.NonFiniteError, match=match):
        found.raise_if_found()
    with pytest.raises(FloatingPointError):
        found.raise_if_found()
