"""Errors that are raised inside of a hook, a log or a layer say where that was, and
what it was given, in a note: their type and message are those that they have without
hooks.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import peex as px


class Fails(eqx.Module):
    """Fails where it is called with more than three numbers."""

    scale: float = 2.0

    def __call__(self, x, *, shift=0.0, mode=None):
        if x.size > 3:
            raise ZeroDivisionError("of the layer")
        return self.scale * x + shift

    def other(self, x):
        return self(x)


class Block(eqx.Module):
    layer: Fails
    activation: object

    def __call__(self, x):
        x = self.activation(x)
        return self.layer(x, shift=jnp.ones(()), mode="same")


class Model(eqx.Module):
    blocks: list[Block]

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x

    def second(self, x):
        return self.blocks[1].layer.other(x)

    def long(self, x):
        return self.blocks[0](jnp.concatenate([x, x]))


MODEL = Model([Block(Fails(), jnp.tanh), Block(Fails(), jnp.tanh)])
X, LONG = jnp.ones(3), jnp.ones(4)


def notes(error):
    """Those of peex's."""
    return [n for n in getattr(error.value, "__notes__", ()) if n.startswith("In ")]


def raises(call, error=ZeroDivisionError, match="^of the "):
    with pytest.raises(error, match=match) as raised:
        call()
    assert type(raised.value) is error
    return notes(raised)


LAYER = (
    "In the layer 'blocks.0.layer' (Fails), given float32[4], shift=float32[], "
    "mode=a str."
)
BLOCK = "In the layer 'blocks.0' (Block), given float32[4]."
WHOLE = "In the model (Model), given float32[4]."

WRAPPERS = {
    "forward": lambda x, **kwargs: px.ForwardHook(MODEL, **kwargs)(x),
    "backward": lambda x, **kwargs: px.BackwardHook(MODEL, **kwargs).init(x),
    "value_and_grad": lambda x, **kwargs: px.value_and_grad(
        lambda model, x: jnp.sum(model(x)), **kwargs
    )(MODEL, x),
}
wrappers = pytest.mark.parametrize("call", WRAPPERS.values(), ids=WRAPPERS)
outside = pytest.mark.parametrize(
    "around", [lambda f: f, eqx.filter_jit], ids=["eager", "jit"]
)


@outside
@wrappers
def test_a_layer(call, around):
    for _ in range(2):
        assert raises(lambda: around(call)(LONG)) == [LAYER, BLOCK, WHOLE]


@outside
@wrappers
def test_only_what_has_a_site(call, around):
    assert raises(lambda: around(call)(LONG, where="**.layer")) == [LAYER]
    assert raises(lambda: around(call)(LONG, where=["blocks.0", "."])) == [BLOCK, WHOLE]
    assert raises(lambda: around(call)(LONG, where="blocks.0.activation")) == []


def test_values_inside_of_a_layer():
    # (Where there may be probes, all modules say where they are.)
    hooked = px.ForwardHook(MODEL, where="blocks.*.layer/mul")
    assert raises(lambda: hooked(LONG)) == [LAYER, BLOCK, WHOLE]


def test_other_methods_and_functions():
    hooked = px.ForwardHook(MODEL, where=["blocks.1.layer:other"], method="second")
    expected = "In the layer 'blocks.1.layer:other' (Fails), given float32[4]."
    assert raises(lambda: hooked(LONG)) == [expected]

    def fails(x):
        raise ZeroDivisionError("of the activation")

    model = Block(Fails(), fails)
    hooked = px.ForwardHook(model, where=["activation"])
    expected = "In the layer 'activation' (fails), given float32[3]."
    assert raises(lambda: hooked(X)) == [expected]


def test_what_a_pre_hook_made_of_the_arguments_is_what_was_given():
    hook = lambda value: ((value[0][0],), {**value[1], "shift": value[1]["shift"] + 1})
    hooked = px.ForwardHook(
        MODEL, hook, where="blocks.0.layer", pre_hook=True, with_kwargs=True
    )
    assert raises(lambda: hooked(LONG)) == [LAYER]


def test_in_loops_and_batches():
    def scanned(model, x):
        return lax.scan(lambda x, _: (model(x), None), x, length=2)[0]

    mapped = lambda model, xs: jax.vmap(model)(xs)
    for method, x in ((scanned, LONG), (mapped, jnp.ones((2, 4)))):
        hooked = px.ForwardHook(MODEL, where="**.layer", method=method)
        assert raises(lambda hooked=hooked, x=x: hooked(x)) == [LAYER]
    hooked = px.ForwardHook(MODEL, where="**.layer")
    assert raises(lambda: jax.vmap(hooked)(jnp.ones((2, 4)))) == [LAYER]


def test_once_for_each_site():
    inner = px.ForwardHook(MODEL, log_fn=None, hook_fn=px.ScaleHook(2.0))
    hooked = px.BackwardHook(px.ForwardHook(inner, where="**"), log_fn=None, where="**")
    hooked = px.BackwardHook(hooked, px.ZeroHook(), None, where="**")
    assert raises(lambda: hooked(LONG)) == [LAYER, BLOCK, WHOLE]


# Hooks and logs


def fails(value):
    raise ZeroDivisionError("of the hook")


class FailingHook(px.AbstractHook):
    def __call__(self, value):
        return fails(value)


class FailingLog(px.AbstractLog):
    def __call__(self, value):
        return fails(value)


VALUE = "the {} of the site 'blocks.0.layer' ({}), given float32[3]."


@outside
@wrappers
@pytest.mark.parametrize(
    ("hook", "name"), [(fails, "fails"), (FailingHook(), "FailingHook")]
)
def test_a_hook(call, around, hook, name):
    found = raises(lambda: around(call)(X, hook_fn=hook, where="**.layer"))
    assert found == ["In " + VALUE.format("hook_fn", name)]
    found = raises(lambda: around(call)(X, hook_fn={"blocks.0.**": hook}, where="**"))
    block, whole = BLOCK.replace("[4]", "[3]"), WHOLE.replace("[4]", "[3]")
    assert found == ["In " + VALUE.format("hook_fn", name), block, whole]


@outside
@pytest.mark.parametrize("wrapper", [px.ForwardHook, px.BackwardHook])
@pytest.mark.parametrize(
    ("log", "name"), [(fails, "fails"), (FailingLog(), "FailingLog")]
)
def test_a_log(wrapper, around, log, name):
    hooked = wrapper(MODEL, log_fn=log, where="**.layer")
    call = hooked if wrapper is px.ForwardHook else lambda x: hooked.init(x)
    expected = "In " + VALUE.format("log_fn", name)
    assert raises(lambda: around(call)(X)) == [expected]


def test_a_hook_of_arguments():
    hooked = px.ForwardHook(MODEL, fails, where="blocks.0.layer", pre_hook=True)
    expected = VALUE.format("hook_fn", "fails").replace("float", "tuple(float")
    assert raises(lambda: hooked(X)) == ["In " + expected.replace("].", "]).")]


def test_a_hook_at_a_step():
    run = lambda m, x: lax.scan(lambda x, _: (m(x), None), x, length=2)[0]
    hook = px.AtStep(FailingHook(), 0)
    hooked = px.ForwardHook(MODEL, hook, where="blocks.0.layer", method=run)
    assert raises(lambda: hooked(X)) == ["In " + VALUE.format("hook_fn", "FailingHook")]


def test_a_hook_that_fails_in_the_backward_pass():
    calls = []

    def hook(value):
        calls.append(value)
        if len(calls) > 1:  # not where it is tried, in the forward pass
            raise ZeroDivisionError("of the hook")
        return value

    hooked = px.BackwardHook(MODEL, hook, None, where="blocks.0.layer")
    grad = lambda: jax.grad(lambda x: jnp.sum(hooked(x) ** 2))(X)
    assert raises(grad) == ["In " + VALUE.format("hook_fn", "hook")]


# What stays as it is


def test_errors_of_peex_name_their_site_themselves():
    hooked = px.ForwardHook(MODEL, lambda x: x[:1], where="**")
    with pytest.raises(px.HookShapeError, match="site 'blocks.0.layer'") as error:
        hooked(X)
    assert notes(error) == []


def test_errors_of_jax():
    model = eqx.nn.Linear(3, 2, key=jax.random.key(0))
    plain = raises(lambda: model(LONG), TypeError, "contracting dimensions")
    found = raises(lambda: px.ForwardHook(model)(LONG), TypeError, "contracting dimens")
    assert plain == [] and found == ["In the model (Linear), given float32[4]."]


def test_an_error_that_the_model_catches():
    class Catches(eqx.Module):
        layer: Fails

        def __call__(self, x):
            try:
                return self.layer(jnp.concatenate([x, x]))
            except ZeroDivisionError:
                return self.layer(x)

    out, log = px.ForwardHook(Catches(Fails()))(X)
    np.testing.assert_array_equal(out, 2 * X)
    assert list(log) == ["layer"]


def test_what_is_given():
    class Takes(eqx.Module):
        def __call__(self, *args, **kwargs):
            raise ZeroDivisionError("of the layer")

    key, many = jax.random.key(0), {f"k{i}": jnp.ones(i) for i in range(6)}
    given = (X, 2, None, "text", key, (X, [LONG]), many, jnp.tanh)
    (note,) = raises(lambda: px.ForwardHook(Takes())(*given, flag=True))
    assert note == (
        "In the model (Takes), given float32[3], 2, None, a str, key<fry>[], "
        "tuple(float32[3], float32[4]), dict(float32[0], float32[1], float32[2], "
        "float32[3], ...), a PjitFunction, flag=True."
    )
    (note,) = raises(lambda: px.ForwardHook(Takes())())
    assert note == "In the model (Takes), given nothing."


def test_programs_are_the_same_with_notes():
    # (Nothing is done until an error is raised.)
    plain = jax.make_jaxpr(MODEL)(X)
    hooked = jax.make_jaxpr(lambda x: px.ForwardHook(MODEL, log_fn=px.NoneLog())(x)[0])(
        X
    )
    assert str(plain) == str(hooked)
