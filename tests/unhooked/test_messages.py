"""Errors that say what to write instead, where it should be clear."""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from parts import Whole
from twin_case import linear

import peex as px


X = jnp.arange(3.0)


def test_a_class_for_an_instance():
    for kwargs, name in (
        (dict(hook_fn=px.ZeroHook), "ZeroHook"),
        (dict(log_fn=px.NormLog), "NormLog"),
        (dict(hook_fn={"*": px.AddHook}), "AddHook"),
    ):
        for wrapper in (px.ForwardHook, px.BackwardHook):
            with pytest.raises(TypeError, match=rf"class {name} itself.*`{name}\("):
                wrapper(linear(3, 3, 0), **kwargs)


class Branching(eqx.Module):
    layer: eqx.nn.Linear

    def __call__(self, x):
        return self.layer(x) if float(x[0]) >= 0 else x


def test_init_says_that_it_traces():
    model = Branching(linear(3, 3, 0))
    loss = lambda m, x: jnp.sum(m(x))
    for call, what in (
        (px.BackwardHook(model).init, "`px.BackwardHook.init` traces the call"),
        (ft.partial(px.value_and_grad(loss), model), "`px.value_and_grad` traces the"),
    ):
        with pytest.raises(jax.errors.ConcretizationTypeError) as error:
            call(X)
        note = " ".join(error.value.__notes__)
        assert what in note
        assert "jax.lax.cond" in note


def test_equal_logs():
    layer = linear(3, 3, 0)
    log, same = (px.ForwardHook(layer)(X)[1] for _ in range(2))
    other = px.ForwardHook(layer)(X + 1)[1]
    assert log == same and log != other
    assert [log != same, log == other] == [False, False]
    assert log == {".": log["."]} and log != {"a": log["."]}
    assert log != 1 and log != px.Log({**log}, {".": jnp.array(1)})
    assert px.Log({"a": X, "b": X}) != px.Log({"b": X, "a": X})
    traced = jax.jit(lambda a, b: (a == b, a != b))
    assert [bool(x) for x in traced(log, other)] == [False, True]
    with pytest.raises(TypeError, match="unhashable"):
        hash(log)


def test_a_log_of_ones_own_is_a_patch():
    layer = linear(3, 3, 0)
    out, _ = px.ForwardHook(layer, px.PatchHook(px.Log({".": X})))(X)
    assert jnp.array_equal(out, X)


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
def test_a_class_in_a_static_field():
    class Static(eqx.Module):
        layer: eqx.nn.Linear = eqx.field(static=True)

        def __call__(self, x):
            return x

    for where in (eqx.nn.Linear, [eqx.nn.Linear], "layer"):
        with pytest.raises(
            px.SiteNotFoundError, match="'layer', but this is in a stat"
        ):
            px.ForwardHook(Static(linear(3, 3, 0)), where=where)


@pytest.mark.filterwarnings("ignore:This model is wrapped in an equal")
def test_which_of_two_backward_hooks_needs_init():
    layer = linear(3, 3, 0)
    outer = "the one around a BackwardHook around a Linear, logs"
    with pytest.raises(px.NotInitialisedError, match=outer):
        px.BackwardHook(px.BackwardHook(layer).init(X))(X)
    with pytest.raises(px.NotInitialisedError, match="the one around a Linear, logs"):
        px.BackwardHook(px.BackwardHook(layer)).init(X)
    px.BackwardHook(px.BackwardHook(layer).init(X)).init(X)(X)


def test_functions_that_were_made_without_hooks():
    layer = linear(3, 3, 0)
    call = lambda m, x: m(x)
    converted = eqx.filter_closure_convert(call, layer, X)
    compiled = jax.jit(call).lower(layer, X).compile()
    for fn in (lambda m, x: converted(m, x), lambda m, x: compiled(m, x)):
        model = Whole(layer, fn)
        model(X)
        with pytest.raises(
            px.SiteLostError, match="traced or compiled before, without"
        ):
            px.ForwardHook(model)(X)
        assert list(px.ForwardHook(model, where=".")(X)[1]) == ["."]
