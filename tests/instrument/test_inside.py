"""Named values inside of unmodified modules, against twins written by hand."""

import gc
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from closeness import assert_close
from inside_models import (
    BLOCK,
    Block,
    GRU,
    output,
    probabilities,
    X,
    XS,
)

import peex as px


# What a module of Equinox's computes


def test_attention_probabilities():
    hooked = px.ForwardHook(BLOCK, where="attn/softmax")
    for call in (hooked, eqx.filter_jit(hooked)):
        out, log = call(X)
        assert list(log) == ["attn/softmax"]
        assert_close(log["attn/softmax"], probabilities(BLOCK, X))
        assert_close(log["attn/softmax"].sum(-1), np.ones((2, 5)))
        assert_close(out, BLOCK(X))


def test_operations_and_functions_in_order():
    where = ["attn/div", "attn/dot_product_attention_weights", "attn/softmax", "attn"]
    _, log = px.ForwardHook(BLOCK, where=where)(X)
    assert list(log) == [
        "attn/div",
        "attn/div#1",
        "attn/softmax",
        "attn/dot_product_attention_weights",
        "attn",
    ]
    assert_close(log["attn/div#1"], probabilities(BLOCK, X))
    assert log["attn/div"].shape == (5, 2, 4)


def test_choosing_one_of_a_name():
    _, log = px.ForwardHook(BLOCK, where="attn/div#1")(X)
    assert list(log) == ["attn/div#1"]
    assert_close(log["attn/div#1"], probabilities(BLOCK, X))


def test_a_name_belongs_to_the_module_that_computes_it():
    _, log = px.ForwardHook(BLOCK, where="**/dot_general")(X)
    projections = [f"attn.{n}_proj/dot_general" for n in ("query", "key", "value")]
    assert list(log) == [
        *projections,
        "attn/dot_general",
        "attn/dot_general#1",
        "attn.output_proj/dot_general",
    ]


def test_methods_and_several_calls_of_a_function():
    _, log = px.ForwardHook(BLOCK, where="attn/_project")(X)
    normed = jax.vmap(BLOCK.norm)(X)
    assert list(log) == ["attn/_project", "attn/_project#1", "attn/_project#2"]
    value = jax.vmap(BLOCK.attn.value_proj)(normed).reshape(5, 2, 4)
    assert_close(log["attn/_project#2"], value)


def test_editing():
    edit = lambda p: p.at[0].set(0.2)
    hooked = px.ForwardHook(BLOCK, edit, where="attn/softmax")
    edited = edit(probabilities(BLOCK, X))
    out, log = hooked(X)
    assert_close(out, output(BLOCK, X, edited))
    assert_close(log["attn/softmax"], edited)


def test_cotangents():
    hooked = px.BackwardHook(BLOCK, where="attn/softmax").init(X)
    loss = lambda hooked: jnp.sum(hooked(X) ** 3)
    grads = eqx.filter_grad(loss)(hooked)
    by_hand = lambda p: jnp.sum(output(BLOCK, X, p) ** 3)
    _, vjp = jax.vjp(by_hand, probabilities(BLOCK, X))
    assert_close(grads.log["attn/softmax"], vjp(jnp.ones(()))[0], rtol=1e-5)
    expected = eqx.filter_grad(lambda block: jnp.sum(block(X) ** 3))(BLOCK)
    assert_close(grads.model, expected, rtol=1e-5)


def test_backward_hook_acts_on_the_cotangent():
    hooked = px.BackwardHook(BLOCK, px.ZeroHook(), None, where="attn/softmax")
    grads = eqx.filter_grad(lambda hooked: jnp.sum(hooked(X) ** 3))(hooked)
    assert not jnp.any(grads.model.attn.query_proj.weight)
    assert jnp.any(grads.model.attn.value_proj.weight)


def test_value_and_grad_per_example():
    loss = lambda block, xs: jnp.sum(jax.vmap(block)(xs) ** 3)
    run = px.value_and_grad(loss, forward=px.IdentityLog(), where="attn/softmax")
    (_, logs), _ = eqx.filter_jit(run)(BLOCK, XS)
    probs = jax.vmap(lambda x: probabilities(BLOCK, x))(XS)
    assert_close(logs.forward["attn/softmax"], probs)
    by_hand = lambda p, x: jnp.sum(output(BLOCK, x, p) ** 3)
    expected = jax.vmap(jax.grad(by_hand))(probs, XS)
    assert_close(logs.backward["attn/softmax"], expected)


# Transformations outside and inside


class Stack(eqx.Module):
    layers: list

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def scanned(self, x):
        dynamic, static = eqx.partition(self.layers[0], eqx.is_array)
        step = lambda x, _: (eqx.combine(dynamic, static)(x), None)
        return jax.lax.scan(step, x, None, length=4)[0]

    def nested(self, x):
        return jax.checkpoint(lambda x: eqx.filter_jit(self)(x))(x)

    def energy(self, x):
        return jax.grad(lambda x: jnp.sum(self(x) ** 2))(x)


STACK = Stack([Block(jr.key(3)), Block(jr.key(4))])


def test_layers():
    _, log = px.ForwardHook(STACK, where="layers.*.attn/softmax")(X)
    assert list(log) == ["layers.0.attn/softmax", "layers.1.attn/softmax"]
    second = probabilities(STACK.layers[1], STACK.layers[0](X))
    assert_close(log["layers.1.attn/softmax"], second)


@pytest.mark.parametrize("method", ["nested", "energy"])
def test_inside_jit_checkpoint_and_grad(method):
    where = "layers.*.attn/softmax"
    hooked = px.ForwardHook(STACK, where=where, method=method)
    out, log = hooked(X)
    assert_close(out, getattr(STACK, method)(X))
    assert_close(log["layers.0.attn/softmax"], probabilities(STACK.layers[0], X))
    second = probabilities(STACK.layers[1], STACK.layers[0](X))
    assert_close(log["layers.1.attn/softmax"], second)


def test_inside_scan():
    hooked = px.ForwardHook(STACK, where="layers.0.attn/softmax", method="scanned")
    _, log = eqx.filter_jit(hooked)(X)
    x, expected = X, []
    for _ in range(4):
        expected.append(probabilities(STACK.layers[0], x))
        x = STACK.layers[0](x)
    assert_close(log["layers.0.attn/softmax"], jnp.stack(expected))


def test_outside_vmap_and_forward_mode():
    hooked = px.ForwardHook(BLOCK, where="attn/softmax")
    run = lambda x: hooked(x)[1]["attn/softmax"]
    by_hand = lambda x: probabilities(BLOCK, x)
    assert_close(jax.vmap(run)(XS), jax.vmap(by_hand)(XS))
    _, tangent = jax.jvp(run, (X,), (jnp.ones_like(X),))
    assert_close(tangent, jax.jvp(by_hand, (X,), (jnp.ones_like(X),))[1])


def test_what_runs_in_a_module_inside_belongs_to_that():
    # Whether there are sites in it or not.
    attention = ["attn/dot_general", "attn/dot_general#1"]
    for where in ("attn/dot_general", ["attn/dot_general", "attn.query_proj"]):
        _, log = px.ForwardHook(BLOCK, where=where)(X)
        assert [k for k in log if "/" in k] == attention
        assert log["attn/dot_general"].shape == (2, 5, 5)


@pytest.mark.parametrize("where", ["attn/softmax", "attn.query_proj/dot_general"])
def test_the_parameters_are_not_kept(where):
    block = Block(jr.key(8))
    weight = weakref.ref(block.attn.query_proj.weight)
    px.ForwardHook(block, where=where)(X)
    eqx.filter_jit(px.ForwardHook(block, where=where))(X)
    hooked = px.BackwardHook(block, where=where).init(X)
    eqx.filter_grad(lambda hooked: jnp.sum(hooked(X)))(hooked)
    del block, hooked
    gc.collect()
    assert weight() is None


# Recurrent cells: what further calls of the module are called


def gates(x, h):
    """Reset and update gate, and the candidate, by hand."""
    cell = GRU.cell
    i, r = cell.weight_ih @ x + cell.bias, cell.weight_hh @ h
    sigmoid = lambda x: 1 / (1 + jnp.exp(-x))
    reset, update = sigmoid(i[:4] + r[:4]), sigmoid(i[4:8] + r[4:8])
    candidate = jnp.tanh(i[8:] + reset * (r[8:] + cell.bias_n))
    return reset, update, candidate


def test_gates_of_a_gru_called_twice():
    x = X[0, :3]
    _, log = px.ForwardHook(GRU, where=["cell/logistic", "cell/tanh", "cell"])(x)
    expected = [*gates(x, jnp.zeros(4)), *gates(x, GRU.cell(x, jnp.zeros(4)))]
    names = ["cell{}/logistic", "cell{}/logistic#1", "cell{}/tanh", "cell{}"]
    assert list(log) == [n.format(call) for call in ("", "#1") for n in names]
    values = [v for k, v in log.items() if "/" in k]
    for value, by_hand in zip(values, expected, strict=True):
        assert_close(value, by_hand)


def test_one_gate_of_each_call():
    x = X[0, :3]
    _, log = px.ForwardHook(GRU, where="cell/logistic#1")(x)
    assert list(log) == ["cell/logistic#1", "cell#1/logistic#1"]
    assert_close(log["cell/logistic#1"], gates(x, jnp.zeros(4))[1])


def test_backward_logs_of_each_call():
    x = X[0, :3]
    hooked = px.BackwardHook(GRU, where="cell/logistic").init(x)
    log = eqx.filter_grad(lambda hooked: jnp.sum(hooked(x)))(hooked).log
    assert list(log) == [
        f"cell{call}/logistic{gate}" for call in ("", "#1") for gate in ("", "#1")
    ]
    h = GRU.cell(x, jnp.zeros(4))
    _, _, candidate = gates(x, h)
    assert_close(log["cell#1/logistic#1"], h - candidate)


def test_patching_a_named_value():
    x, other = X[0, :3], X[1, :3]
    where = ["cell/tanh"]
    _, clean = px.ForwardHook(GRU, where=where)(other)
    _, log = px.ForwardHook(GRU, px.PatchHook(clean), where=where)(x)
    for key in ("cell/tanh", "cell#1/tanh"):
        assert_close(log[key], clean[key])
