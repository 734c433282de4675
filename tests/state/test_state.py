"""State taken out of a model, given to its calls, and put back."""

import collections.abc
import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from closeness import assert_close

import peex as px


class Moments(eqx.Module):
    """Exponential moments of what it is given."""

    first: px.StateEntry | px.StateKey
    second: px.StateEntry | px.StateKey

    def __init__(self, size):
        self.first = px.StateEntry(jnp.zeros(size))
        self.second = px.StateEntry(jnp.ones(size))

    def __call__(self, x, state):
        first = 0.9 * state[self.first] + 0.1 * x
        second = 0.9 * state[self.second] + 0.1 * x**2
        state = px.update_state(state, {self.first: first, self.second: second})
        return first, state


class Normed(eqx.Module):
    """A layer, and what keeps moments of its output."""

    linear: eqx.nn.Linear
    moments: list[Moments]
    activation: collections.abc.Callable

    def __init__(self):
        self.linear = eqx.nn.Linear(2, 2, key=jax.random.key(0))
        self.moments = [Moments(2), Moments(2)]
        self.activation = jnp.tanh

    def __call__(self, x, state):
        x = self.activation(self.linear(x))
        for moments in self.moments:
            x, state = moments(x, state)
        return x, state


NORMED_PATHS = [f"moments.{i}.{name}" for i in (0, 1) for name in ("first", "second")]


def exported():
    return px.export_state(Moments(2))


def test_an_entry_becomes_a_key():
    bare, state = px.export_state({"a": 1, "b": px.StateEntry(jnp.zeros(2))})
    assert bare == {"a": 1, "b": px.StateKey("b")}
    assert type(bare["b"]) is px.StateKey
    assert repr(bare) == "{'a': 1, 'b': StateKey('b')}"
    assert list(state) == ["b"] and type(state) is dict
    assert_close(state["b"], jnp.zeros(2))


def test_a_key_is_a_string_without_leaves():
    key = px.StateKey("a.b")
    assert key == "a.b" and hash(key) == hash("a.b") and {"a.b": 1}[key] == 1
    assert jax.tree.leaves(key) == []
    again = jax.tree.map(lambda x: x, key)
    assert again == key and type(again) is px.StateKey
    assert type(pickle.loads(pickle.dumps(exported()[0].first))) is px.StateKey


def test_keys_are_static():
    traces = []

    @jax.jit
    def run(bare, state):
        traces.append(bare)
        return bare, state[bare["b"]] + 1

    for value in (0.0, 1.0):
        bare, state = px.export_state({"b": px.StateEntry(jnp.array(value))})
        again, out = run(bare, state)
        assert again == bare and out == value + 1
    assert len(traces) == 1


@pytest.mark.parametrize(
    "tree",
    [
        {"a": 1, "b": px.StateEntry(jnp.zeros(2))},
        px.StateEntry({"mean": jnp.zeros(2), "n": [jnp.array(3), None, 2.0]}),
        [px.StateEntry(()), (px.StateEntry(jax.random.key(0)), "text", None)],
        {"a.b": px.StateEntry(jnp.ones(1)), "a": {"b": px.StateEntry(jnp.zeros(1))}},
        Normed(),
        eqx.filter_vmap(Normed()),
        {"no": "entries"},
    ],
    ids=["dict", "whole", "nested", "dots", "model", "vmapped", "none"],
)
def test_export_then_import_is_the_identity(tree):
    bare, state = px.export_state(tree)
    assert_no_entry(bare)
    again = px.import_state(bare, state)
    assert jax.tree.structure(again) == jax.tree.structure(tree)
    pairs = zip(jax.tree.leaves(again), jax.tree.leaves(tree), strict=True)
    assert all(a is b for a, b in pairs)


def assert_no_entry(tree):
    is_entry = lambda x: isinstance(x, px.StateEntry)
    assert not any(map(is_entry, jax.tree.leaves(tree, is_leaf=is_entry)))


def test_what_has_no_entry_is_the_very_object():
    model = Normed()
    bare, _ = px.export_state(model)
    assert bare.linear is model.linear
    assert px.export_state(model.linear) == (model.linear, {})


def test_a_dict_keeps_its_order():
    tree = {"z": px.StateEntry(jnp.zeros(1)), "a": 1}
    bare, state = px.export_state(tree)
    assert list(bare) == list(px.import_state(bare, state)) == ["z", "a"]


def test_paths_are_those_of_sites():
    _, state = px.export_state(Normed())
    assert list(state) == NORMED_PATHS
    dots = {"a.b": px.StateEntry(1), "a": {"b": px.StateEntry(2)}}
    assert px.export_state(dots)[1] == {'"a.b"': 1, "a.b": 2}
    assert px.export_state(px.StateEntry(1)) == (".", {".": 1})


@pytest.mark.parametrize(
    "wrap",
    [
        px.ForwardHook,
        lambda m: px.BackwardHook(px.ForwardHook(m), log_fn=None),
        eqx.filter_jit,
        lambda m: px.ForwardHook(eqx.filter_jit(m)),
    ],
    ids=["forward", "both", "jit", "hooked_jit"],
)
def test_paths_are_the_same_wrapped(wrap):
    model = Normed()
    wrapped = wrap(model)
    bare, state = px.export_state(wrapped)
    assert_no_entry(bare)
    assert list(state) == NORMED_PATHS
    plain, _ = px.export_state(model)
    x = jnp.array([1.0, 2.0])
    expected, expected_state = plain(x, state)
    out = bare(x, state)
    while not isinstance(out[1], dict):
        out = out[0]
    assert_close(out, (expected, expected_state))
    again = px.import_state(bare, state)
    assert jax.tree.structure(again) == jax.tree.structure(wrapped)


def test_a_hooked_model_with_keys_logs_and_is_differentiated():
    bare, state = px.export_state(Normed())
    x = jnp.array([1.0, 2.0])
    (out, _), log = px.ForwardHook(bare, where="linear")(x, state)
    assert_close(log["linear"], bare.linear(x))

    def loss(model, x, state):
        return jnp.sum(model(x, state)[0] ** 2)

    where = {"linear": px.IdentityLog()}
    (value, logs), grads = px.value_and_grad(loss, backward=where)(bare, x, state)
    assert_close(value, jnp.sum(out**2))
    # d/dz sum((0.01 tanh z)^2)
    tanh = jnp.tanh(bare.linear(x))
    assert_close(logs.backward["linear"], 2e-4 * tanh * (1 - tanh**2))
    assert_close(grads.linear.bias, logs.backward["linear"])
    assert grads.moments[0].first == "moments.0.first"


def test_exponential_moments():
    bare, state = exported()
    out, new = bare(jnp.array([1.0, 2.0]), state)
    assert_close(out, jnp.array([0.1, 0.2]))
    assert_close(new, {"first": out, "second": jnp.array([1.0, 1.3])})
    assert_close(state["first"], jnp.zeros(2))  # that of before


def test_in_a_scan():
    bare, state = exported()

    def step(state, x):
        out, state = bare(x, state)
        return state, out

    state, outs = jax.jit(lambda *a: jax.lax.scan(step, *a))(state, jnp.ones((4, 2)))
    expected = jnp.array([0.1, 0.19, 0.271, 0.3439])
    assert_close(outs, jnp.stack([expected, expected], 1))
    assert_close(state, {"first": outs[-1], "second": jnp.ones(2)})


def test_a_gradient():
    bare, state = exported()
    loss = lambda x: jnp.sum(bare(x, state)[1]["first"] ** 2)
    assert_close(jax.grad(loss)(jnp.ones(2)), jnp.array([0.02, 0.02]))


def test_under_vmap():
    bare, state = exported()
    xs = jnp.arange(10.0).reshape(5, 2)
    outs, states = jax.vmap(bare, in_axes=(0, None))(xs, state)
    assert outs.shape == states["first"].shape == states["second"].shape == (5, 2)
    assert_close(states["first"], 0.1 * xs)
    # A state for each, of which the next call of each goes on.
    outs, states = jax.vmap(bare)(xs, states)
    assert_close(states["first"], 0.19 * xs)
    # The keys have none of the new axis; nor has what was mapped elsewhere.
    batched = px.import_state(bare, states)
    assert batched.first.value.shape == (5, 2)
    closed_over, whole = px.export_state(batched)
    one = jax.vmap(lambda state: px.import_state(closed_over, state))(whole)
    assert_close(one.first.value, states["first"])


def test_an_ensemble_made_inside_of_vmap():
    def make(value):
        return px.export_state({"s": px.StateEntry(jnp.full(2, value))})

    bare, states = jax.vmap(make)(jnp.arange(3.0))
    assert bare == {"s": "s"}
    tree = px.import_state(bare, states)
    assert_close(tree["s"].value, jnp.array([[0.0, 0], [1, 1], [2, 2]]))


def test_values_are_whole_pytrees():
    value = {"n": jnp.array(0), "sums": (jnp.zeros(2), jnp.zeros(3))}
    _, state = px.export_state([px.StateEntry(value)])
    assert state == {"0": value}
    new = {"n": 1, "sums": (jnp.ones(2), jnp.ones(3))}
    updated = px.update_state(state, {"0": new})
    assert_close(updated["0"], new | {"n": jnp.array(1)})
    assert isinstance(updated["0"]["n"], jax.Array)


def test_of_shapes_alone():
    model = eqx.filter_eval_shape(lambda: Moments(2))
    bare, state = px.export_state(model)
    assert state["first"] == jax.ShapeDtypeStruct((2,), jnp.float32)
    out, _ = eqx.filter_eval_shape(bare, jnp.ones(2), state)
    assert out.shape == (2,)
    assert px.import_state(bare, state).first == model.first


def test_an_update_keeps_the_order_and_the_old_state():
    state = {"b": jnp.zeros(1), "a": jnp.zeros(1)}
    new = px.update_state(state, {px.StateKey("a"): jnp.ones(1)})
    assert list(new) == ["b", "a"] and all(type(key) is str for key in new)
    assert new["a"] == 1 and state["a"] == 0 and new["b"] is state["b"]


def test_a_shared_entry_is_two():
    entry = px.StateEntry(jnp.zeros(2))
    _, state = px.export_state([entry, entry])
    assert list(state) == ["0", "1"]
