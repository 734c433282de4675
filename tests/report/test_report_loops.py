"""`px.report` on models with loops and branches: numbers worked out by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from report_numbers import f32, key, product, shown

import peex as px


class Stack(eqx.Module):
    layers: eqx.nn.Linear

    def __init__(self):
        make = lambda k: eqx.nn.Linear(4, 4, key=k)
        self.layers = eqx.filter_vmap(make)(jax.random.split(key(), 6))

    def __call__(self, x):
        dynamic, static = eqx.partition(self.layers, eqx.is_array)
        step = lambda x, d: (jax.vmap(eqx.combine(d, static))(x), None)
        return lax.scan(step, x, dynamic)[0]


def test_scan_over_layers():
    report = px.report(Stack(), f32(5, 4))
    call = report["layers"]
    assert [tuple(axis) for axis in call.axes] == [("step", 6), ("batch", 5)]
    assert call.outputs.shape == (4,) and call.log.shape == (6, 5, 4)
    assert call.log_bytes == 6 * 5 * 4 * 4
    assert call.parameter_count == 6 * (16 + 4)
    assert call.flops == 6 * 5 * (product(1, 4, 4) + 4)


def test_cond():
    class Branch(eqx.Module):
        yes: eqx.nn.Linear
        no: eqx.nn.Linear
        both: eqx.nn.Linear

        def __call__(self, x):
            yes = lambda x: self.both(self.yes(x))
            no = lambda x: self.both(self.no(x))
            return lax.cond(x[0] > 0, yes, no, x)

    linear = lambda width, seed: eqx.nn.Linear(width, 4, key=key(seed))
    model = Branch(linear(4, 0), linear(4, 1), linear(4, 2))
    report = px.report(model, f32(4))
    assert {k: c.when for k, c in report.entries.items()} == {
        "no": "conditional",
        "both": "always",
        "yes": "conditional",
    }
    each = product(1, 4, 4) + 4
    assert [c.flops for c in report.entries.values()] == [each] * 3
    # The predicate, and one of the branches.
    assert report.flops == 1 + 2 * each
    assert [c.key for c in report["."].children] == ["no", "both", "yes"]


def test_while():
    linear = eqx.nn.Linear(4, 4, key=key())

    def run(model, x):
        return lax.while_loop(lambda x: x[0] < 9, lambda x: model(x), x)

    report = px.report(linear, f32(4), method=run)
    call = report["."]
    assert call.when == "last of many" and call.axes == ()
    assert call.log.shape == (4,)
    assert call.flops == product(1, 4, 4) + 4
    batched = lambda model, xs: jax.vmap(lambda x: run(model, x))(xs)
    call = px.report(linear, f32(5, 4), method=batched)["."]
    assert call.when == "last of many"
    assert [tuple(axis) for axis in call.axes] == [("batch", 5)]


def test_gru_over_time():
    cell = eqx.nn.GRUCell(3, 4, key=key())

    def run(cell, xs):
        step = lambda h, x: (cell(x, h), None)
        return lax.scan(step, jnp.zeros(4), xs)[0]

    report = px.report(cell, f32(10, 3), method=run)
    call = report["."]
    assert [tuple(axis) for axis in call.axes] == [("step", 10)]
    assert shown(call.inputs) == [((3,), "float32"), ((4,), "float32")]
    assert call.log.shape == (10, 4)
    # Weights of three gates, from the input and from the state; biases of the gates,
    # and of the candidate's state.
    assert call.parameter_count == 12 * 3 + 12 * 4 + 12 + 4
    products = product(1, 3, 12) + product(1, 4, 12)
    assert 10 * products < call.flops < 10 * (products + 20 * 12)
