"""`px.reach` of recurrent cells, worked out by hand, and the Jacobian's pattern."""

import equinox as eqx
import jax.numpy as jnp
import pytest
from recurrent import (
    f32,
    GRU,
    jacobian_pattern,
    LinearGRU,
    LinearLSTM,
    LSTM,
    MinimalGated,
    Multiplied,
    reached_pattern,
    ThreeVanilla,
    TwoGRUs,
    WIDTH,
)

import peex as px


H = f32(WIDTH)
ARGS = (f32(2), H)


def hows(reach, state):
    return {
        k: r.states[state].how for k, r in reach.parameters.items() if state in r.states
    }


def named(layer, how, *names):
    return {f"{layer}.{name}": how for name in names}


LINEAR = ("weight", "bias")
CELL = ("weight_ih", "weight_hh", "bias", "bias_n")


def test_gru_and_readout():
    reach = px.reach(GRU(10, 32, 5), jnp.ones(10), jnp.ones(32))
    assert len(reach.parameters) == len(reach) == 6
    temporal = tuple(f"cell.{name}" for name in CELL)
    assert reach.temporal == reach.by_reason(None) == temporal
    assert hows(reach, "h") == dict.fromkeys(temporal, "direct")
    assert reach["cell.weight_ih"].by == (("dot_general", "cell"),)
    assert reach["cell.weight_hh"].by == (("dot_general", "cell"),)
    assert reach["cell.bias"].by == reach["cell.bias_n"].by == (("add", "cell"),)
    assert reach.excluded == {"out.weight": "non_temporal", "out.bias": "non_temporal"}
    assert reach.by_reason("non_temporal") == ("out.weight", "out.bias")
    assert reach["out.weight"].by == (("dot_general", "out"),)
    assert list(reach.states) == ["h"] and list(reach.inputs) == ["x"]
    assert reach.outputs == ("out.0",)
    ((group),) = reach.groups
    assert group.states == ("h",) and group.recurrent
    assert reach["cell.weight_hh"].outputs["out.0"].through == ("out.weight",)
    assert reach["h"].outputs["out.0"].how == "through"
    assert reach["h"].states["h"].how == "both"
    assert reach["h"].states["h"].through == ("cell.weight_hh",)
    assert reach["x"].states["h"].how == "through"


def test_gru_on_gru():
    reach = px.reach(TwoGRUs(), f32(2), H, H, state=(1, 2))
    first, second = (tuple(f"{r}.{name}" for name in CELL) for r in ("r1", "r2"))
    assert hows(reach, "h1") == dict.fromkeys(first, "direct")
    assert hows(reach, "h2") == dict.fromkeys(first, "through") | dict.fromkeys(
        second, "direct"
    )
    for parameter in first:
        assert reach[parameter].states["h2"].through == ("r2.weight_ih",)
    assert reach["r2.bias"].states["h2"].through == ()
    assert [(g.states, g.recurrent) for g in reach.groups] == [
        (("h1",), True),
        (("h2",), True),
    ]
    assert (reach.counts["direct"], reach.counts["through"]) == (8, 4)
    assert reach.state_matrix().tolist() == [["both", "through"], ["", "both"]]
    assert reach.eventually() == dict.fromkeys(first, ("h1", "h2")) | dict.fromkeys(
        second, ("h2",)
    )


def test_gru_of_three_linears():
    reach = px.reach(LinearGRU(), *ARGS)
    assert hows(reach, "h") == {
        **named("Wz", "direct", *LINEAR),
        **named("Wr", "through", *LINEAR),
        **named("Wh", "direct", *LINEAR),
    }
    for name in LINEAR:
        assert reach[f"Wr.{name}"].states["h"].through == ("Wh.weight",)
    assert reach["Wr.weight"].by == (("dot_general", "Wr"),)


def test_minimal_gated_unit():
    reach = px.reach(MinimalGated(), *ARGS)
    assert hows(reach, "h") == {
        **named("Wf", "both", *LINEAR),
        **named("Wh", "direct", *LINEAR),
    }
    assert reach["Wf.bias"].states["h"].through == ("Wh.weight",)


def test_lstm_of_four_linears():
    reach = px.reach(LinearLSTM(), f32(2), H, H, state=("h", "c"))
    assert list(hows(reach, "h")) == list(reach.parameters)
    assert set(hows(reach, "c")) == {f"W{g}.{n}" for g in "ifg" for n in LINEAR}
    assert set(hows(reach, "h").values()) == {"direct"}
    (group,) = reach.groups
    assert group.states == ("h", "c") and group.recurrent
    assert list(reach["Wo.weight"].states) == ["h"]
    assert reach.eventually()["Wo.weight"] == ("h", "c")


def test_lstm_cell():
    reach = px.reach(LSTM(), f32(2), (H, H))
    assert list(reach.states) == ["state.0", "state.1"]
    assert reach.matrix().tolist() == [["direct", "direct"]] * 3
    assert [g.states for g in reach.groups] == [("state.0", "state.1")]


def test_multiplied_by_another():
    reach = px.reach(Multiplied(), *ARGS)
    assert hows(reach, "h") == {
        **named("W1", "both", *LINEAR),
        **named("W2", "direct", *LINEAR),
    }
    assert reach["W1.weight"].states["h"].through == ("W2.weight",)


def test_three_vanilla_cells():
    reach = px.reach(ThreeVanilla(), f32(2), H, H, H, state=(1, 2, 3))
    assert [g.states for g in reach.groups] == [("h0",), ("h1",), ("h2",)]
    assert all(g.recurrent for g in reach.groups)
    link = reach["v0.W.weight"].states["h2"]
    assert (link.how, link.through) == ("through", ("v1.W.weight", "v2.W.weight"))
    assert reach["v1.U.weight"].states["h2"].through == ("v2.W.weight",)
    assert "h0" not in reach["v1.W.weight"].states


CASES = {
    "gru": (GRU, ARGS, 1, lambda out: out[1]),
    "gru on gru": (TwoGRUs, (f32(2), H, H), (1, 2), lambda out: out[1:]),
    "linear gru": (LinearGRU, ARGS, 1, lambda out: out),
    "minimal": (MinimalGated, ARGS, 1, lambda out: out),
    "linear lstm": (LinearLSTM, (f32(2), H, H), (1, 2), lambda out: out),
    "lstm": (LSTM, (f32(2), (H, H)), 1, lambda out: out),
    "multiplied": (Multiplied, ARGS, 1, lambda out: out),
    "three": (ThreeVanilla, (f32(2), H, H, H), (1, 2, 3), lambda out: out[1]),
}


@pytest.mark.parametrize("name", CASES)
def test_as_the_jacobian(name):
    make, args, state, new_state = CASES[name]
    model = make()
    expected = jacobian_pattern(model, args, new_state)
    assert expected
    assert reached_pattern(px.reach(model, *args, state=state)) == expected


def test_each_parameter_is_counted_once():
    class Tied(eqx.Module):
        a: eqx.nn.Linear
        b: eqx.nn.Linear

        def __call__(self, x, h):
            return jnp.tanh(self.b(jnp.tanh(self.a(h + x))))

    layer = Multiplied().W2
    reach = px.reach(Tied(layer, layer), H, H)
    assert list(reach.parameters) == ["a.weight", "a.bias"]
    weight = reach["b.weight"]
    assert weight is reach["a.weight"] and weight.uses == ("a.weight", "b.weight")
    # Itself in the second place, and through itself in the first.
    assert weight.states["h"].how == "both"
    assert weight.states["h"].through == ("a.weight",)
    assert weight.by == (("dot_general", "a"), ("dot_general", "b"))


def test_one_layer_called_twice():
    class Twice(eqx.Module):
        layer: eqx.nn.Linear

        def __call__(self, x, h):
            return jnp.tanh(self.layer(jnp.tanh(self.layer(h + x))))

    reach = px.reach(Twice(Multiplied().W2), H, H)
    calls = [call for _, call in reach["layer.weight"].by]
    assert calls == ["layer", "layer#1"]


def test_one_array_as_two_arguments():
    h = jnp.ones(WIDTH)
    reach = px.reach(Multiplied().W2, h, h, method=lambda m, x, h: jnp.tanh(m(x)))
    assert reach["x"].reason is None and reach["h"].reason == "unused"
