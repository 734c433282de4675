"""Which arguments are the state, and where in the output the new one is."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recurrent import f32, GRU, linear, LSTM, random_like, WIDTH

import peex as px


H, Y = f32(WIDTH), f32(2)


class Carry(NamedTuple):
    h: jax.Array
    steps: jax.Array


class Named(eqx.Module):
    layer: eqx.nn.Linear

    def __call__(self, x, carry: Carry):
        h = jnp.tanh(self.layer(carry.h) + x)
        return {"y": h, "carry": Carry(h, carry.steps + 1)}


def test_a_named_tuple():
    model = Named(linear(WIDTH))
    carry = Carry(jnp.zeros(WIDTH), jnp.zeros((), jnp.int32))
    reach = px.reach(model, jnp.ones(WIDTH), carry)
    assert list(reach.states) == ["carry.h", "carry.steps"]
    assert reach.outputs == ("out.y",)
    steps = reach["carry.steps"]
    assert steps.states["carry.steps"].how == "value" and steps.kind == "state"
    assert [(g.states, g.recurrent) for g in reach.groups] == [
        (("carry.h",), True),
        (("carry.steps",), False),
    ]


@pytest.mark.parametrize("state", [1, "carry", (1,), ["carry"]], ids=repr)
def test_by_position_or_name(state):
    carry = Carry(H, jax.ShapeDtypeStruct((), jnp.int32))
    reach = px.reach(Named(linear(WIDTH)), H, carry, state=state)
    assert list(reach.states) == ["carry.h", "carry.steps"]
    by_keyword = px.reach(Named(linear(WIDTH)), H, carry=carry, state="carry")
    assert by_keyword.to_dict() == reach.to_dict()


@pytest.mark.parametrize(
    "new_state",
    ["carry", lambda out: out["carry"], ["carry"]],
    ids=["name", "function", "several"],
)
def test_new_state_is_told(new_state):
    carry = Carry(H, jax.ShapeDtypeStruct((), jnp.int32))
    reach = px.reach(Named(linear(WIDTH)), H, carry, new_state=new_state)
    assert reach["layer.weight"].states["carry.h"].how == "direct"


class Square(eqx.Module):
    """The output is like the state."""

    layer: eqx.nn.Linear
    out: eqx.nn.Linear

    def __call__(self, x, h):
        h = jnp.tanh(self.layer(h) + x)
        return self.out(h), h


SQUARE = Square(linear(WIDTH), linear(WIDTH, seed=1))


def test_what_may_be_either_is_asked():
    message = (
        r"Where in the output the new state isn't clear: the state is f32\[3\], and "
        r"the output is f32\[3\], f32\[3\], of which 2 parts are like it.*`new_state=1`"
    )
    with pytest.raises(px.PeexError, match=message):
        px.reach(SQUARE, H, H)
    reach = px.reach(SQUARE, H, H, new_state=1)
    assert reach.by_reason("non_temporal") == ("out.weight", "out.bias")
    assert reach.outputs == ("out.0",)
    other = px.reach(SQUARE, H, H, new_state=0)
    assert other.temporal == tuple(other.parameters)


def test_one_array_that_is_returned_twice_is_clear():
    twice = lambda model, x, h: ((h := jnp.tanh(model.layer(h) + x)), h)
    reach = px.reach(SQUARE, H, H, method=twice)
    assert reach.temporal == ("layer.weight", "layer.bias")


def test_the_state_is_the_first_argument():
    step = lambda model, h, x: (jnp.tanh(model.layer(h) + x), None)
    reach = px.reach(SQUARE, H, H, state=0, method=step)
    assert list(reach.states) == ["h"] and list(reach.inputs) == ["x"]
    negative = r"the argument -1 \(`state=-1`\), which isn't an argument of this call"
    with pytest.raises(px.PeexError, match=negative):
        px.reach(SQUARE, H, H, state=-1)


@pytest.mark.parametrize("new_state", [3, "h", lambda out: out.carry], ids="abc")
def test_a_new_state_that_is_not_there(new_state):
    match = r"`new_state=.*` isn't a part of the output, which is f32\[1\], f32\[3\]"
    with pytest.raises(px.PeexError, match=match):
        px.reach(GRU(), Y, H, new_state=new_state)


def test_a_new_state_of_another_shape():
    match = r"`new_state=0` is f32\[1\], but the state is f32\[3\]"
    with pytest.raises(px.PeexError, match=match):
        px.reach(GRU(), Y, H, new_state=0)
    match = r"names 2 parts of the output, but there are 1 arguments in `state`"
    with pytest.raises(px.PeexError, match=match):
        px.reach(GRU(), Y, H, new_state=(0, 1))


def test_no_new_state():
    match = r"Where in the output the new state isn't there: the state is f32\[3\]"
    with pytest.raises(px.PeexError, match=match):
        px.reach(GRU(), Y, H, method=lambda m, x, h: m(x, h)[0])


@pytest.mark.parametrize("state", [2, "hidden"], ids=repr)
def test_a_state_that_is_not_there(state):
    match = (
        rf"The state was to be the argument {state!r} \(`state={state!r}`\), which "
        r"isn't an argument of this call. The arguments are: 0: x, 1: h. Write "
        "`state=`.*`state=None`"
    )
    with pytest.raises(px.PeexError, match=match):
        px.reach(GRU(), Y, H, state=state)
    with pytest.raises(px.PeexError, match="which holds no array"):
        px.reach(linear(WIDTH), H, None, method=lambda m, x, key: m(x))
    with pytest.raises(px.PeexError, match="The arguments are: 0: x"):
        px.reach(linear(WIDTH), H)


def test_arguments_of_every_kind():
    model = GRU()
    given = px.reach(model, np.ones(2, np.float32), jnp.ones(WIDTH))
    shapes = px.reach(eqx.filter_eval_shape(lambda: model), Y, H)
    assert given.to_dict() == shapes.to_dict()
    several = px.reach(model, Y, H, method=lambda m, *args: m(*args))
    assert list(several.states) == ["args.1"] and "args.0" in several
    compiled = eqx.filter_jit(lambda m, x, h: len(px.reach(m, x, h).temporal))
    assert compiled(model, *random_like((Y, H), 0)) == 4


class Normed(eqx.Module):
    layer: eqx.nn.Linear
    norm: eqx.nn.BatchNorm

    def __init__(self):
        self.layer = linear(WIDTH)
        self.norm = eqx.nn.BatchNorm(WIDTH, "batch", mode="ema")

    def __call__(self, x, state):
        return self.norm(self.layer(x), state)


def test_state_of_equinox():
    model, state = eqx.nn.make_with_state(Normed)()

    def run(model, xs, state):
        each = lambda x: model(x, state)
        return jax.vmap(each, out_axes=(0, None), axis_name="batch")(xs)

    reach = px.reach(model, f32(4, WIDTH), state, method=run)
    # By the names that `px.export_state` gives them.
    _, exported = px.export_state(model, state)
    assert reach.states and exported
    assert all(
        s.startswith(tuple(f"state.{k}" for k in exported)) for s in reach.states
    )
    # Its averages are of what the layer makes.
    assert any(link.how == "direct" for link in reach["layer.weight"].states.values())
    assert reach.excluded == {
        "norm.weight": "non_temporal",
        "norm.bias": "non_temporal",
    }
    # It is always state, wherever it is, also beside what is named.
    step = lambda model, s, xs, h: (run(model, xs + h, s), h + 1)
    reach = px.reach(model, state, f32(4, WIDTH), H, state="h", method=step)
    assert {s.partition(".")[0] for s in reach.states} == {"h", "s"}
    reach = px.reach(model, f32(4, WIDTH), state, method=run, state=())
    assert reach.states


def test_state_of_equinox_in_inference_is_only_read():
    model, state = eqx.nn.make_with_state(Normed)()
    model = eqx.nn.inference_mode(model)
    step = lambda model, x, state: model(x, state)[0]
    reach = px.reach(model, H, state, method=step)
    assert all(not r.states for r in reach.states.values())
    assert reach["layer.weight"].reason == "non_temporal"


def test_wrong_method():
    with pytest.raises(TypeError, match="has no method 'step'"):
        px.reach(LSTM(), Y, (H, H), method="step")


WRAPPERS = {
    "filter_jit": eqx.filter_jit,
    "filter_checkpoint": eqx.filter_checkpoint,
    "ForwardHook": lambda model: px.ForwardHook(model, log_fn=None),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapped_model_has_the_names_of_the_model(name):
    reach = px.reach(WRAPPERS[name](GRU()), Y, H)
    plain = px.reach(GRU(), Y, H)
    assert reach["cell.bias"].by == plain["cell.bias"].by == (("add", "cell"),)
    assert list(reach.parameters) == list(plain.parameters)
    assert reach["cell.bias"].states == plain["cell.bias"].states
    batched = px.reach(eqx.filter_vmap(GRU()), f32(5, 2), f32(5, WIDTH))
    assert batched["cell.bias"].states == plain["cell.bias"].states
