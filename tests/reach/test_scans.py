"""`px.reach(..., state=None)`: what the scans of a program carry."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from recurrent import f32, GRU, key, linear, TwoGRUs, WIDTH

import peex as px


XS = f32(4, 2)


class RNN(eqx.Module):
    """As in Equinox's own example: a loop over time inside of the model."""

    cell: eqx.nn.GRUCell
    out: eqx.nn.Linear

    def __init__(self, n_in=2):
        self.cell = eqx.nn.GRUCell(n_in, WIDTH, key=key())
        self.out = linear(WIDTH)

    def __call__(self, xs):
        step = lambda h, x: (self.cell(x, h), None)
        h, _ = lax.scan(step, jnp.zeros(WIDTH), xs)
        return self.out(h)


def test_an_unedited_rnn():
    reach = px.reach(RNN(), XS, state=None)
    assert list(reach.states) == ["./scan[0]"]
    step = px.reach(GRU(), f32(2), f32(WIDTH))
    assert reach.temporal == step.temporal
    assert reach.excluded == step.excluded
    for parameter in reach.temporal:
        (link,) = reach[parameter].states.values()
        assert link == step[parameter].states["h"]
    own, of_step = reach["./scan[0]"], step["h"]
    assert own.states["./scan[0]"] == of_step.states["h"]
    assert reach.outputs == ("out",)
    assert reach["cell.weight_hh"].outputs["out"].how == "through"
    # Without a state, all of it is a way to the output.
    without = px.reach(RNN(), XS, state=())
    assert without.states == {} and without.groups == ()
    assert set(without.excluded.values()) == {"non_temporal"}


def test_a_scan_is_named_by_the_call_that_it_is_in():
    class Outer(eqx.Module):
        rnn: RNN
        other: RNN

        def __call__(self, xs):
            return self.rnn(xs) + self.other(xs) + self.rnn(xs)

    reach = px.reach(Outer(RNN(), RNN()), XS, state=None)
    assert list(reach.states) == ["rnn/scan[0]", "other/scan[0]", "rnn#1/scan[0]"]
    assert list(reach["rnn.cell.bias"].states) == ["rnn/scan[0]", "rnn#1/scan[0]"]
    assert [g.states for g in reach.groups] == [(key,) for key in reach.states]


class TwoScans(eqx.Module):
    """Runs one cell over what another has made, then looks at the last."""

    cells: TwoGRUs

    def __call__(self, xs):
        one = lambda h, x: ((h := self.cells.r1(x, h)), h)
        _, hs = lax.scan(one, jnp.zeros(WIDTH), xs)
        two = lambda h, x: ((h := self.cells.r2(x, h)), h)
        return lax.scan(two, jnp.zeros(WIDTH), hs)[0]


def test_one_scan_over_what_another_made():
    reach = px.reach(TwoScans(TwoGRUs()), XS, state=None)
    first, second = "./scan[0]", "./scan[1]"
    assert list(reach.states) == [first, second]
    assert reach["cells.r1.bias"].states[first].how == "direct"
    link = reach["cells.r1.bias"].states[second]
    assert (link.how, link.through) == ("through", ("cells.r2.weight_ih",))
    assert list(reach["cells.r2.bias"].states) == [second]
    assert reach.state_matrix().tolist() == [["both", "through"], ["", "both"]]


def test_one_step_of_what_is_carried():
    """h and c of an LSTM of which the output gate reaches c in the next step only."""

    class LSTM(eqx.Module):
        gate: eqx.nn.Linear
        rest: eqx.nn.Linear

        def __call__(self, xs):
            def step(state, x):
                h, c, n = state
                c = jnp.tanh(self.rest(h) + c)
                return (jax.nn.sigmoid(self.gate(h)) * c, c, n + 1), None

            state = jnp.zeros(WIDTH), jnp.zeros(WIDTH), 0
            return lax.scan(step, state, xs)[0]

    reach = px.reach(LSTM(linear(WIDTH), linear(WIDTH, seed=1)), XS, state=None)
    h, c = reach.states  # the counter has no derivative
    assert (h, c) == ("./scan[0].0", "./scan[0].1")
    assert list(reach["gate.weight"].states) == [h]
    assert reach.eventually()["gate.weight"] == (h, c)
    assert reach.groups[0].states == (h, c)


def test_a_scan_in_a_scan():
    """Of the inner one a step, of the outer one all steps of the inner one."""

    class Nested(eqx.Module):
        a: eqx.nn.Linear
        b: eqx.nn.Linear

        def __call__(self, xs):
            def inner(carry, _):
                p, q = carry
                return (q, jnp.tanh(self.a(p))), None

            def outer(h, x):
                return lax.scan(inner, (h, self.b(x)), None, length=3)[0][0], None

            return lax.scan(outer, jnp.zeros(WIDTH), xs)[0]

    model = Nested(linear(WIDTH), linear(WIDTH, seed=1))
    reach = px.reach(model, f32(4, WIDTH), state=None)
    assert list(reach.states) == ["./scan[0]", "./scan[1].0", "./scan[1].1"]
    # q is made of p, and p of q, so that h is made of both layers.
    assert list(reach["a.weight"].states) == ["./scan[0]", "./scan[1].1"]
    assert "./scan[0]" in reach["./scan[0]"].states
    assert "./scan[1].0" not in reach["./scan[1].0"].states
    assert "./scan[1].0" in reach["./scan[1].1"].states


def test_a_state_that_is_learned_where_it_begins():
    class Learned(eqx.Module):
        cell: eqx.nn.GRUCell
        h0: jax.Array

        def __call__(self, xs):
            return lax.scan(lambda h, x: (self.cell(x, h), None), self.h0, xs)[0]

    cell = eqx.nn.GRUCell(2, WIDTH, key=key())
    reach = px.reach(Learned(cell, jnp.zeros(WIDTH)), XS, state=None)
    assert reach["h0"].states["./scan[0]"].how == "both"


def test_mapped_and_compiled_and_recomputed():
    def run(model, batch):
        one = lambda xs: eqx.filter_checkpoint(eqx.filter_jit(model))(xs)
        return jax.vmap(one)(batch)

    reach = px.reach(RNN(), f32(3, 4, 2), method=run, state=None)
    assert list(reach.states) == ["./scan[0]"]
    assert reach["./scan[0]"].shape == (3, WIDTH)
    assert reach["cell.bias"].states["./scan[0]"].how == "direct"


def test_no_scan():
    reach = px.reach(linear(WIDTH), f32(WIDTH), state=None)
    assert reach.states == {} and reach.excluded["weight"] == "non_temporal"
