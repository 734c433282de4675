"""Other ways to ask for named values inside of a module, and what isn't found."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from closeness import assert_close
from inside_models import (
    BLOCK,
    GRU,
    Marked,
    output,
    probabilities,
    Scaled,
    V,
    Weighted,
    X,
)

import peex as px


# Other ways to ask


def test_inside_of_another_method():
    class Model(eqx.Module):
        embed: eqx.nn.Embedding

        def __call__(self, x):
            return Tied.attend(self.embed, x)

    class Tied(eqx.nn.Embedding):
        def attend(self, x):
            return jnp.tanh(self.weight @ x)

    class Outer(eqx.Module):
        embed: Tied

        def __call__(self, x):
            return self.embed.attend(x)

    model = Outer(Tied(3, 2, key=jr.key(0)))
    _, log = px.ForwardHook(model, where="embed:attend/tanh")(V)
    assert list(log) == ["embed:attend/tanh"]
    assert_close(log["embed:attend/tanh"], jnp.tanh(model.embed.weight @ V))


def test_inside_of_an_activation():
    mlp = eqx.nn.MLP(2, 2, 4, 1, activation=jax.nn.silu, key=jr.key(0))
    _, log = px.ForwardHook(mlp, where=["activation", "./silu"])(V)
    expected = jax.nn.silu(mlp.layers[0](V))
    assert_close(log["activation"], expected)
    assert_close(log["./silu"], expected)


def test_dicts_by_pattern():
    hooks = {"attn/softmax": px.ScaleHook(2.0), "**": None}
    logs = {"*/softmax": px.MaxAbsLog(), "norm": px.IdentityLog()}
    where = ["attn/softmax", "norm"]
    out, log = px.ForwardHook(BLOCK, hooks, logs, where=where)(X)
    probs = probabilities(BLOCK, X)
    assert_close(out, output(BLOCK, X, 2 * probs))
    assert_close(log["attn/softmax"], 2 * probs.max())
    assert log["norm"].shape == (5, 8)


def test_one_hook_for_all_and_another_for_one():
    where = ["cell/logistic", "cell/logistic#1"]
    hooks = {"cell/logistic#1": px.ZeroHook(), "cell/logistic": px.IdentityHook()}
    _, log = px.ForwardHook(GRU, hooks, where=where)(V.repeat(2)[:3])
    assert jnp.all(log["cell/logistic"] > 0)
    assert not jnp.any(log["cell/logistic#1"])


def test_nested_wrappers():
    where = "attn/softmax"
    inner = px.ForwardHook(BLOCK, px.ScaleHook(2.0), where=where)
    (out, log), outer_log = px.ForwardHook(inner, where=where)(X)
    probs = probabilities(BLOCK, X)
    assert_close(log[where], 2 * probs)
    assert_close(outer_log[where], 2 * probs)
    assert_close(out, output(BLOCK, X, 2 * probs))


def test_keys_of_dicts_with_slashes():
    class Parts(eqx.Module):
        parts: dict

        def __call__(self, x):
            return self.parts["a/b"](x)

    model = Parts({"a/b": Scaled(1.0)})
    _, log = px.ForwardHook(model, where=["parts.a/b", "parts.a/b/tanh"])(V)
    assert list(log) == ["parts.a/b/tanh", "parts.a/b"]


def test_layers_stacked_in_the_forward_pass():
    class Stacked(eqx.Module):
        layers: list

        def __call__(self, x):
            layers = jax.tree.map(lambda *a: jnp.stack(a), *self.layers)
            return jax.lax.scan(lambda x, layer: (layer(x), None), x, layers)[0]

    model = Stacked([Weighted(jnp.float32(i)) for i in range(3)])
    _, log = px.ForwardHook(model, where="layers.*/tanh")(V)
    assert list(log) == ["layers.*/tanh"]
    assert log["layers.*/tanh"].shape == (3, 2)


# What isn't found


def test_a_name_that_is_nowhere():
    with pytest.raises(px.SiteNotFiredError) as error:
        px.ForwardHook(BLOCK, where="attn/sofmax")(X)
    message = str(error.value)
    assert "`where='attn/sofmax'` was asked for, but nothing in the forward" in message
    assert "Names there, nearest first: 'softmax'" in message


def test_an_index_that_is_too_large():
    with pytest.raises(px.SiteNotFiredError, match="nearest first: 'div'"):
        px.ForwardHook(BLOCK, where="attn/div#7")(X)


def test_a_name_inside_of_a_derivative_rule():
    with pytest.raises(px.SiteNotFiredError) as error:
        px.ForwardHook(Marked(), where="./max")(V)
    assert "it occurs inside of 'relu' (`custom_jvp_call`) only" in str(error.value)


def test_a_module_that_is_nowhere():
    with pytest.raises(px.SiteNotFoundError, match="'atn/softmax'` matches nothing"):
        px.ForwardHook(BLOCK, where="atn/softmax")


def test_a_named_value_has_no_arguments():
    with pytest.raises(TypeError, match="'attn/softmax' is a value inside of a module"):
        px.ForwardHook(BLOCK, where="attn/softmax", pre_hook=True)


WHERES = ["attn/softmax", "**/dot_general", ["attn", "attn/div"], "attn/div#1"]


@pytest.mark.parametrize("where", WHERES, ids=str)
def test_a_report_shows_what_the_log_will_hold(where):
    report = px.report(BLOCK, X, where=where)
    _, log = px.ForwardHook(BLOCK, where=where)(X)
    assert list(report.entries) == list(log)
    for key, entry in log.items():
        call = report[key]
        assert (call.log.shape, call.log.dtype) == (entry.shape, entry.dtype)
        assert call.is_inside == ("/" in key)
        if call.is_inside:
            assert call.class_name == "value"
            assert call.parameters == ()
    assert not report.missing


def test_a_report_says_which_names_there_are():
    report = px.report(BLOCK, X, where="attn/sofmax")
    assert not report.entries
    why = report.missing["attn/sofmax"].why
    assert why.startswith("nothing in the forward pass has this name; nearest: 'softma")


def test_a_forward_pass_that_looks_at_values():
    class Looks(eqx.Module):
        def __call__(self, x):
            return jnp.tanh(x) if x[0] > 0 else x

    with pytest.raises(px.SiteLostError, match="Python looks at the values"):
        px.ForwardHook(Looks(), where="./tanh")(V)


def test_what_is_not_an_array_passes_by():
    class Other(eqx.Module):
        def __call__(self, x, *, flag, state):
            assert flag is True and isinstance(state, eqx.nn.State)
            return {"x": jnp.tanh(x), "name": "y", "flag": flag}, state

    model, state = eqx.nn.make_with_state(Other)()
    (out, new), log = px.ForwardHook(model, where="./tanh")(V, flag=True, state=state)
    assert out["name"] == "y" and out["flag"] is True
    assert isinstance(new, eqx.nn.State)
    assert_close(out["x"], jnp.tanh(V))


def test_the_difference_of_reports_with_values_inside():
    one = px.report(BLOCK, X, where="attn/softmax")
    two = px.report(BLOCK, X, where=["attn/softmax", "norm"])
    assert not one.diff(one)
    assert one.diff(two).added == ("norm",)
    assert two.diff(one).removed == {"norm": ""}
    longer = px.report(BLOCK, jnp.ones((6, 8)), where="attn/softmax")
    changed = one.diff(longer).changed
    assert changed["attn/softmax"]["outputs"] == ("f32[2,5,5]", "f32[2,6,6]")


def test_a_module_whose_key_has_a_slash_is_no_value_inside():
    class Slashes(eqx.Module):
        parts: dict

        def __call__(self, x):
            return self.parts["c"](self.parts["a/b"](x))

    make = lambda seed: eqx.nn.Linear(2, 2, key=jr.key(seed))
    model = Slashes({"a/b": make(0), "c": make(1)})
    report = px.report(model, V, where="parts.c")
    assert list(report.entries) == ["parts.c"]
    call = px.report(model, V)["parts.a/b"]
    assert not call.is_inside
    assert repr(call) == "<call parts.a/b: f32[2] -> f32[2]>"
