"""Arguments that are like the model (its frozen half, averaged weights, those that it
started from, the state of an optimiser) combine with it in a hooked call as they do
without hooks.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from closeness import assert_close

import peex as px


class Residual(eqx.Module):
    """A list, a dict whose keys aren't sorted, a function in a field."""

    layers: list[eqx.nn.Linear]
    heads: dict[str, eqx.nn.Linear]
    norm: eqx.nn.LayerNorm
    activation: object

    def __init__(self, seed):
        keys = jax.random.split(jax.random.key(seed), 4)
        make = lambda key: eqx.nn.Linear(3, 3, key=key)
        self.layers = [make(keys[0]), make(keys[1])]
        self.heads = {"policy": make(keys[2]), "action": make(keys[3])}
        self.norm = eqx.nn.LayerNorm(3)
        self.activation = jnp.tanh

    def __call__(self, x):
        for layer in self.layers:
            x = x + self.activation(layer(x))
        x = self.norm(x)
        return self.heads["policy"](x) + 2 * self.heads["action"](x)


MODEL, OTHER = Residual(0), Residual(1)
TRAINED, FROZEN = eqx.partition(
    MODEL,
    eqx.tree_at(lambda m: m.layers[1], jax.tree.map(lambda _: False, MODEL), True),
)
X = jnp.array([0.5, -1.0, 2.0])


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    step: jax.Array
    average: Residual


def arrays(model):
    return eqx.filter(model, eqx.is_inexact_array)


def distance(model, other):
    """An L2 term, as people write it."""
    squares = lambda a, b: jnp.sum((a - b) ** 2)
    terms = jax.tree.map(squares, arrays(model), arrays(other))
    return sum(jax.tree.leaves(terms))


def output(model, x):
    return jnp.sum(jnp.sin(model(x)))


def l2(model, other, x):
    return output(model, x) + distance(model, other)


def of_average(model, other, x):
    mix = lambda a, b: 0.1 * a + 0.9 * b if eqx.is_array(a) else a
    return output(jax.tree.map(mix, model, other), x)


def by_keyword(model, x, *, first, other):
    return l2(model, first, x) + distance(other, model)


def in_a_dict(model, batch):
    return l2(model, batch["models"]["b"], batch["x"]) + batch["models"]["a"]


def in_a_state(model, state, x):
    assert type(state) is State
    return l2(model, state.average, x) * state.step


def in_a_list(model, others, x):
    return output(model, x) + sum(distance(model, other) for other in others)


def halves(trained, frozen, x):
    return output(eqx.combine(trained, frozen), x)


def halves_reversed(trained, frozen, x):
    return output(eqx.combine(frozen, trained), x)


def halves_in_a_tuple(trained, given):
    frozen, x = given
    return output(eqx.combine(trained, frozen), x) + distance(trained, frozen)


def only_arrays(model, others, x):
    return output(model, x) + distance(model, others)


def both_run(model, other, x):
    return jnp.sum((model(x) - other(x)) ** 2)


CASES = {
    "L2": (l2, (MODEL, OTHER, X), {}),
    "average": (of_average, (MODEL, OTHER, X), {}),
    "keywords": (by_keyword, (MODEL, X), {"first": OTHER, "other": Residual(2)}),
    "dict": (in_a_dict, (MODEL, {"x": X, "models": {"b": OTHER, "a": 1.0}}), {}),
    "state": (in_a_state, (MODEL, State(jnp.array(2.0), OTHER), X), {}),
    "list": (in_a_list, (MODEL, [OTHER, Residual(2)], X), {}),
    "halves": (halves, (TRAINED, FROZEN, X), {}),
    "halves, reversed": (halves_reversed, (TRAINED, FROZEN, X), {}),
    "arrays alone": (only_arrays, (MODEL, arrays(OTHER), X), {}),
    "both run": (both_run, (MODEL, OTHER, X), {}),
}
# What is hooked, and whether with a forward log and jitted.
HOW = {
    "default": (None, False),
    "one layer": ("layers.0", False),
    "all": ("**", False),
    "a value inside": (["layers.1", "layers.0/add"], False),
    "functions": (["activation", "layers.*"], False),
    "default, jit": (None, True),
    "functions, jit": (["activation", "layers.*"], True),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("how", HOW)
def test_as_without_hooks(case, how):
    loss, args, kwargs = case
    where, jit = HOW[how]
    if how.startswith("functions") and args[0] is TRAINED:
        where = ["layers.*"]  # the activation is in the frozen half
    wrap = eqx.filter_jit if jit else lambda f: f
    expected = wrap(eqx.filter_value_and_grad(loss))(*args, **kwargs)
    forward = px.IdentityLog() if jit else None
    run = wrap(px.value_and_grad(loss, where=where, forward=forward))
    (value, logs), grads = run(*args, **kwargs)
    assert_close((value, grads), expected, 1e-5)
    # The other model is no part of the log.
    whole = eqx.combine(args[0], FROZEN)
    _, log = px.ForwardHook(whole, where=where)(X)
    assert list(logs.backward) == list(log)
    assert list(logs.forward) == (list(log) if jit else [])


OPTIM = optax.sgd(0.1, momentum=0.9)


def train_step(model, state, x):
    value, grads = eqx.filter_value_and_grad(output)(model, x)
    updates, state = OPTIM.update(grads, state, arrays(model))
    return value, eqx.apply_updates(model, updates), state


@pytest.mark.parametrize("where", [None, "layers.0"])
def test_a_whole_step_of_training(where):
    state = OPTIM.init(arrays(MODEL))
    plain = state
    for _ in range(2):
        step = px.ForwardHook(MODEL, method=train_step, where=where)
        (value, model, state), log = step(state, X)
        expected, expected_model, plain = train_step(MODEL, plain, X)
        assert_close(value, expected)
        assert_close(arrays(model), arrays(expected_model))
        assert_close(state, plain)
        assert "layers.0" in log
    # What comes back is the user's own.
    assert type(model) is Residual and type(state[0].trace) is Residual


def test_what_holds_no_model_is_handed_on_as_it_is():
    given = {"b": [X, {"c": X}], "a": (1, None), "f": jnp.sin, "layer": OTHER.norm}

    class Model(eqx.Module):
        layer: eqx.nn.Linear

        def __call__(self, x, other, *, also):
            assert other is given and also is given
            assert type(other["layer"]) is eqx.nn.LayerNorm
            return self.layer(x)

    px.ForwardHook(Model(OTHER.layers[0]))(X, given, also=given)


def test_what_holds_a_model_keeps_its_order_and_all_else():
    def method(model, given, state):
        assert list(given) == ["z", "models", "a"]
        assert given["z"] is Z and given["a"] is None
        assert list(given["models"]) == ["second", "first"]
        assert type(given["models"]) is dict
        assert state is STATE
        return model(X)

    Z, (_, STATE) = [X], eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "b", mode="batch")
    given = {"z": Z, "models": {"second": OTHER, "first": MODEL}, "a": None}
    px.ForwardHook(MODEL, method=method)(given, STATE)
    assert type(given["models"]["second"]) is Residual


CLOSED_OVER = {
    "halves": (lambda m: output(eqx.combine(m, FROZEN), X), TRAINED, None, "Residual"),
    "average": (lambda m: of_average(m, OTHER, X), MODEL, None, "Residual"),
    "other first": (lambda m: of_average(OTHER, m, X), MODEL, None, "Residual"),
    "a layer": (
        lambda m: distance(m.layers[0], OTHER.layers[0]),
        MODEL,
        None,
        "Linear",
    ),
    "a function": (lambda m: distance(m, OTHER), MODEL, "activation", "function"),
}
MESSAGE = (
    "The model brings modules of different structure together, one {} with a site and "
    "one without: a site carries its name and what acts there in the structure of its "
    "module. A copy of the model (its frozen half, an average of it, what it started "
    "from) goes through the call whole and as an argument, as in "
    "`loss(model, copy, x)`, so that it is made alike: neither closed over, nor a part "
    "of it alone. To freeze parameters, write "
    "`px.value_and_grad(loss, trainable=...)`. Layers that are stacked"
)


@pytest.mark.parametrize("case", CLOSED_OVER.values(), ids=CLOSED_OVER)
@pytest.mark.parametrize("wrap", [lambda f: f, eqx.filter_jit], ids=["eager", "jit"])
def test_what_is_closed_over_is_refused_and_explained(case, wrap):
    loss, model, where, name = case
    eqx.filter_value_and_grad(loss)(model)
    with pytest.raises(px.SiteLostError) as error:
        wrap(px.value_and_grad(loss, where=where))(model)
    assert str(error.value).startswith(MESSAGE.format(name))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_report_of_such_a_call(case):
    loss, args, kwargs = case
    report = px.report(*args, method=loss, **kwargs)
    _, log = px.ForwardHook(args[0], method=loss)(*args[1:], **kwargs)
    assert list(report) == [*log, *report.missing]
    assert "layers.0" in report and "norm" in report
    shapes = eqx.filter_eval_shape(lambda *args: args, *args[1:])
    assert px.report(args[0], *shapes, method=loss, **kwargs).flops == report.flops
    hooked = px.BackwardHook(args[0], method=loss).init(*shapes, **kwargs)
    assert list(hooked.log) == list(log)


def test_report_of_what_is_closed_over():
    loss, model, _, name = CLOSED_OVER["average"]
    with pytest.raises(px.SiteLostError) as error:
        px.report(model, method=loss)
    assert str(error.value).startswith(MESSAGE.format(name))


def test_leaves_of_what_is_closed_over_need_no_structure():
    def loss(model):
        pairs = zip(*map(jax.tree.leaves, map(arrays, (model, OTHER))), strict=True)
        return output(model, X) + sum(jnp.sum((a - b) ** 2) for a, b in pairs)

    (value, _), grads = px.value_and_grad(loss)(MODEL)
    assert_close((value, grads), eqx.filter_value_and_grad(l2)(MODEL, OTHER, X))
