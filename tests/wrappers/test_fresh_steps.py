"""`px.value_and_grad(loss)` made anew of equal arguments is the same to JAX: what was
traced and compiled for one is used for the other, as with
`equinox.filter_value_and_grad`.
"""

import dataclasses
import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close

import peex as px


MODEL = eqx.nn.MLP(3, 2, 4, 1, activation=jnp.tanh, key=jax.random.key(0))
X = jnp.array([0.5, -1.0, 2.0])


def loss(model, x):
    return jnp.sum(model(x) ** 2)


class Counted:
    """A loss that is new to JAX, and how often it was run or traced."""

    def __init__(self):
        self.traces = 0

    def __call__(self, model, x):
        self.traces += 1
        return loss(model, x)


def spec():
    none = jax.tree.map(lambda _: False, MODEL)
    return eqx.tree_at(lambda m: m.layers[0], none, True)


def first(model):
    return model.layers[0]


# By a number: what differs is in arrays only.
OPTIONS = {
    "default": lambda i: {},
    "forward": lambda i: dict(forward=px.NormLog()),
    "no backward": lambda i: dict(backward=None),
    "dicts": lambda i: dict(
        forward={"layers.0": px.MeanLog(), "**": None},
        backward={"**": px.MeanStdLog()},
        hook_fn={"layers.1": px.ScaleHook(2.0)},
    ),
    "pattern": lambda i: dict(where="layers.*"),
    "list": lambda i: dict(where=["layers.0", eqx.nn.MLP]),
    "set": lambda i: dict(where={"layers.0", "layers.1"}),
    "class": lambda i: dict(where=eqx.nn.Linear),
    "function": lambda i: dict(where=first),
    "arrays": lambda i: dict(
        hook_fn=px.ScaleHook(jnp.array(1.0 + i)),
        forward=px.HistogramLog(jnp.array([-1.0, 0.0, i])),
    ),
    "numpy arrays": lambda i: dict(hook_fn=px.ScaleHook(np.array(1.0 + i))),
    "pre": lambda i: dict(pre_hook=True, where="layers.*"),
    "trainable": lambda i: dict(trainable=spec(), forward=px.IdentityLog()),
    "trainable function": lambda i: dict(trainable=eqx.is_inexact_array),
}


each_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


@each_option
def test_a_fresh_one_is_not_traced_again(options):
    counted = Counted()
    counts = []
    for i in range(1, 4):
        run = eqx.filter_jit(px.value_and_grad(counted, **options(i)))
        result = run(MODEL, X)
        counts.append(counted.traces)
        assert_close(result, px.value_and_grad(loss, **options(i))(MODEL, X), 1e-5)
    assert counts == [counts[0]] * 3 and counts[0] > 0


def test_equinox_does_so():
    counted = Counted()
    for _ in range(3):
        eqx.filter_jit(eqx.filter_value_and_grad(counted))(MODEL, X)
    assert counted.traces == 1


@each_option
def test_another_one_is_traced(options):
    counted = Counted()
    eqx.filter_jit(px.value_and_grad(counted, **options(1)))(MODEL, X)
    count = counted.traces
    other = options(1) | {"backward": px.MaxAbsLog()}
    (_, logs), _ = eqx.filter_jit(px.value_and_grad(counted, **other))(MODEL, X)
    assert counted.traces > count
    assert all(x.shape == () for x in jax.tree.leaves(logs.backward))


class Weighted(eqx.Module):
    """A loss that is a module, with an array."""

    weight: jax.Array
    loss: object

    def __call__(self, model, x):
        return self.weight * self.loss(model, x)

    def method(self, model, x):
        return self(model, x)


@pytest.mark.parametrize("of", [lambda w: w, lambda w: w.method], ids=["", "method"])
@pytest.mark.parametrize("forward", [None, px.NormLog()], ids=["", "forward"])
def test_arrays_of_a_loss_are_inputs(of, forward):
    counted = Counted()
    expected, expected_grads = eqx.filter_value_and_grad(loss)(MODEL, X)
    counts = []
    for i in (1.0, 2.0, 3.0):
        weighted = of(Weighted(jnp.array(i), counted))
        run = eqx.filter_jit(px.value_and_grad(weighted, forward=forward))
        (value, logs), grads = run(MODEL, X)
        counts.append(counted.traces)
        assert_close(value, i * expected, 1e-5)
        assert_close(grads.layers[0].bias, i * expected_grads.layers[0].bias, 1e-5)
        assert len(logs.backward) == 2 and len(logs.forward) == (2 if forward else 0)
    assert counts == [counts[0]] * 3


def test_a_step_as_an_argument():
    counted = Counted()
    run = eqx.filter_jit(lambda step, model, x: step(model, x))
    counts = []
    for i in (1.0, 2.0, 3.0):
        hook = px.ScaleHook(jnp.array(i))
        (_, logs), _ = run(px.value_and_grad(counted, hook_fn=hook), MODEL, X)
        counts.append(counted.traces)
        assert_close(logs.backward["layers.1"], i * 2 * MODEL(X), 1e-5)
    assert counts == [counts[0]] * 3


@dataclasses.dataclass
class Doubled:
    """A function of a class that can't be hashed."""

    factor: float

    def __call__(self, value):
        return self.factor * value


def test_what_cannot_be_hashed():
    with pytest.raises(TypeError, match="unhashable type: 'Doubled'"):
        hash(Doubled(2.0))
    for factor in (2.0, 2.0, 3.0):
        run = px.value_and_grad(loss, backward=Doubled(factor))
        (_, logs), _ = eqx.filter_jit(run)(MODEL, X)
        assert_close(logs.backward["layers.1"], factor * 2 * MODEL(X), 1e-5)


def test_as_jax_takes_functions():
    # `jax.jit` compares functions: those of other arrays are others.
    linear = eqx.nn.Linear(3, 3, key=jax.random.key(0))
    for i in (1, 2):
        hook = px.ScaleHook(jnp.array(1.0 * i))
        run = jax.jit(px.value_and_grad(loss, hook_fn=hook))
        (_, logs), grads = run(linear, X)
        assert_close(logs.backward["."], i * 2 * linear(X), 1e-5)
        assert_close(grads.bias, i * 2 * linear(X), 1e-5)
    xs = jnp.stack([X, -X])
    (values, _), _ = jax.vmap(px.value_and_grad(loss), (None, 0))(linear, xs)
    assert_close(values, jax.vmap(lambda x: loss(linear, x))(xs))


def test_equality():
    make = px.value_and_grad
    hook = px.AddHook(jnp.ones(3))
    assert make(loss) == make(loss) and hash(make(loss)) == hash(make(loss))
    assert make(loss, where="a", hook_fn=hook) == make(loss, where="a", hook_fn=hook)
    others = [
        make(Counted()),
        make(loss, where="a"),
        make(loss, has_aux=True),
        make(loss, forward=px.NormLog()),
        make(loss, hook_fn=hook),
        make(loss, hook_fn=px.AddHook(jnp.ones(3))),
        make(loss, trainable=False),
        loss,
    ]
    for i, one in enumerate(others):
        assert make(loss) != one
        assert [one == other for other in others].index(True) == i


def test_is_a_function_of_the_name_and_arguments_of_the_loss():
    run = px.value_and_grad(loss)
    assert callable(run) and run.__name__ == "loss" and run.__wrapped__ is loss
    assert inspect.signature(run) == inspect.signature(loss)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        run()


def test_as_a_method():
    class Trainer(eqx.Module):
        weight: jax.Array

        @px.value_and_grad
        def loss(self, x):
            return jnp.sum(self.weight * x)

    trainer = Trainer(jnp.array(3.0))
    for wrap in (lambda f: f, eqx.filter_jit):
        (value, logs), grads = wrap(trainer.loss)(X)
        assert_close(value, 3 * jnp.sum(X))
        assert_close(grads.weight, jnp.sum(X))
        assert logs == px.Logs(px.Log(), px.Log())
    assert Trainer.loss.__name__ == "loss"


def test_in_a_field_it_is_no_site():
    class Model(eqx.Module):
        layer: eqx.nn.Linear
        step: object

        def __call__(self, x):
            (value, _), _ = self.step(self.layer, x)
            return value

    model = Model(eqx.nn.Linear(3, 3, key=jax.random.key(0)), px.value_and_grad(loss))
    value, log = px.ForwardHook(model)(X)
    assert list(log) == ["layer"]
    assert_close(value, loss(model.layer, X))
