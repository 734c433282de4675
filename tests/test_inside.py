"""Named values inside of unmodified modules, against twins written by hand."""

import gc
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import peex as px
from peex._inside import names_inside


def assert_close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


class Block(eqx.Module):
    attn: eqx.nn.MultiheadAttention
    norm: eqx.nn.LayerNorm

    def __init__(self, key):
        self.attn = eqx.nn.MultiheadAttention(2, 8, key=key)
        self.norm = eqx.nn.LayerNorm(8)

    def __call__(self, x):
        return x + self.attn(*(jax.vmap(self.norm)(x),) * 3)


BLOCK = Block(jr.key(0))
X = jr.normal(jr.key(1), (5, 8))
XS = jr.normal(jr.key(2), (3, 5, 8))


def probabilities(block, x):
    """The attention probabilities of a block, by hand: heads, queries, keys."""
    attn, x = block.attn, jax.vmap(block.norm)(x)
    q = (x @ attn.query_proj.weight.T).reshape(5, 2, 4)
    k = (x @ attn.key_proj.weight.T).reshape(5, 2, 4)
    logits = jnp.einsum("shd,Shd->hsS", q, k) / 2.0
    p = jnp.exp(logits - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def output(block, x, probs):
    """What a block makes of its attention probabilities, by hand."""
    attn = block.attn
    normed = jax.vmap(block.norm)(x)
    v = (normed @ attn.value_proj.weight.T).reshape(5, 2, 4)
    mixed = jnp.einsum("hsS,Shd->shd", probs, v).reshape(5, 8)
    return x + mixed @ attn.output_proj.weight.T


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
    assert_close(grads.log["attn/softmax"], vjp(jnp.ones(()))[0])
    expected = eqx.filter_grad(lambda block: jnp.sum(block(X) ** 3))(BLOCK)
    for a, b in zip(
        jax.tree.leaves(grads.model), jax.tree.leaves(expected), strict=True
    ):
        assert_close(a, b)


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


class Twice(eqx.Module):
    cell: eqx.nn.GRUCell

    def __call__(self, x):
        return self.cell(x, self.cell(x, jnp.zeros(4)))


GRU = Twice(eqx.nn.GRUCell(3, 4, key=jr.key(5)))


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


# Functions of one's own: jitted, shared, called in loops, marked


@jax.jit
def shared(x):
    return jnp.tanh(helper(x))


def helper(x):
    return 2 * x + 1


class Scaled(eqx.Module):
    scale: float

    def __call__(self, x):
        return shared(self.scale * x) + helper(x)


class Two(eqx.Module):
    a: Scaled
    b: Scaled

    def __call__(self, x):
        return self.b(self.a(x))


TWO = Two(Scaled(0.5), Scaled(0.3))
V = jnp.array([0.5, -1.0])


@pytest.mark.parametrize("jit", [False, True])
def test_two_modules_that_share_a_jitted_function(jit):
    TWO(V)  # JAX has traced it
    hooked = px.ForwardHook(TWO, where=["*/shared", "*/helper"])
    _, log = (eqx.filter_jit(hooked) if jit else hooked)(V)
    y = jnp.tanh(V + 1) + 2 * V + 1
    expected = {
        "a/helper": V + 1,
        "a/shared": jnp.tanh(V + 1),
        "a/helper#1": 2 * V + 1,
        "b/helper": 0.6 * y + 1,
        "b/shared": jnp.tanh(0.6 * y + 1),
        "b/helper#1": 2 * y + 1,
    }
    assert list(log) == list(expected)
    for key, value in expected.items():
        assert_close(log[key], value)


def test_editing_in_one_of_two_modules_that_share_a_jitted_function():
    TWO(V)
    out, _ = px.ForwardHook(TWO, px.ZeroHook(), None, where="b/helper")(V)
    y = jnp.tanh(V + 1) + 2 * V + 1
    assert_close(out, jnp.tanh(jnp.zeros(2)) + jnp.zeros(2))
    out, _ = px.ForwardHook(TWO, px.ZeroHook(), None, where="b/tanh")(V)
    assert_close(out, 2 * y + 1)


def activation(x):
    return jnp.sin(x) * x


def repeated(x):
    for _ in range(3):
        x = 2 * x
    return x


class Loops(eqx.Module):
    def __call__(self, x):
        for _ in range(3):
            x = activation(x)
        y = repeated(x)
        return activation(y) + activation(x), y

    def body(self, x):
        return jax.lax.scan(lambda x, _: (activation(x), x), x, None, length=3)[0]

    def branch(self, x):
        return jax.lax.cond(x[0] > 0, activation, lambda x: 3 * x, x)

    def both(self, x):
        x = jax.lax.cond(x[0] > 0, activation, lambda x: activation(3 * x), x)
        return activation(x)

    def while_(self, x):
        return jax.lax.while_loop(lambda x: x[0] > 0.1, activation, x)

    def remat(self, x):
        return jax.checkpoint(activation)(x) + activation(x)


def by_hand(x):
    return jnp.sin(x) * x


def test_calls_in_python_loops_are_told_apart():
    (out, y), log = px.ForwardHook(Loops(), where=["./activation", "./repeated"])(V)
    x = V
    values = [x := by_hand(x) for _ in range(3)]
    assert list(log) == [
        "./activation",
        "./activation#1",
        "./activation#2",
        "./repeated",
        "./activation#3",
        "./activation#4",
    ]
    values += [8 * x, by_hand(8 * x), by_hand(x)]
    for value, expected in zip(log.values(), values, strict=True):
        assert_close(value, expected)


def test_in_the_body_of_a_scan():
    hooked = px.ForwardHook(Loops(), where=["./activation", "./sin"], method="body")
    out, log = hooked(V)
    x = V
    values = [x := by_hand(x) for _ in range(3)]
    assert list(log) == ["./sin", "./activation"]
    assert_close(log["./activation"], jnp.stack(values))
    assert_close(out, values[-1])
    hooked = px.BackwardHook(Loops(), where="./activation", method="body").init(V)
    log = eqx.filter_grad(lambda h: h(V).sum())(hooked).log
    cotangents, g = [], jnp.ones(2)
    for x in [values[1], values[0], None]:
        cotangents.insert(0, g)
        if x is not None:
            g = g * (jnp.cos(x) * x + jnp.sin(x))
    assert_close(log["./activation"], jnp.stack(cotangents))


@pytest.mark.parametrize("sign", [1, -1])
def test_in_the_branches_of_a_cond(sign):
    hooked = px.ForwardHook(Loops(), where="./activation", method="branch")
    x = sign * V
    out, log = hooked(x)
    assert list(log) == ["./activation"]
    assert_close(log["./activation"], by_hand(x) if sign > 0 else jnp.zeros(2))
    assert log.counts["./activation"] == (sign > 0)
    assert_close(out, by_hand(x) if sign > 0 else 3 * x)


@pytest.mark.parametrize("sign", [1, -1])
def test_in_both_branches_of_a_cond(sign):
    hooked = px.ForwardHook(Loops(), where="./activation", method="both")
    out, log = hooked(sign * V)
    assert list(log) == ["./activation", "./activation#1"]
    assert_close(log["./activation"], by_hand(V if sign > 0 else -3 * V))
    assert_close(out, by_hand(log["./activation"]))
    assert_close(out, log["./activation#1"])


def test_in_the_body_of_a_while_loop():
    hooked = px.ForwardHook(Loops(), where="./activation", method="while_")
    out, log = hooked(V)
    x, n = V, 0
    while x[0] > 0.1:
        x, n = by_hand(x), n + 1
    assert log.counts["./activation"] == n
    assert_close(log["./activation"], x)
    assert_close(out, x)


def test_in_a_checkpoint():
    hooked = px.ForwardHook(Loops(), px.ScaleHook(2.0), where="./sin", method="remat")
    out, log = hooked(V)
    assert list(log) == ["./sin", "./sin#1"]
    assert_close(out, 4 * by_hand(V))
    remat = lambda x: hooked(x)[0]
    assert "remat" in str(jax.make_jaxpr(remat)(V)) or "checkpoint" in str(
        jax.make_jaxpr(remat)(V)
    )


class Marked(eqx.Module):
    def __call__(self, x):
        return checkpoint_name(jnp.sin(x), "wave") + jax.nn.relu(x)


def test_marks():
    out, log = px.ForwardHook(Marked(), px.ScaleHook(3.0), where="./wave")(V)
    assert_close(log["./wave"], 3 * jnp.sin(V))
    assert_close(out, 3 * jnp.sin(V) + jax.nn.relu(V))


def test_a_function_with_a_derivative_rule_by_its_name():
    out, log = px.ForwardHook(Marked(), px.ScaleHook(3.0), where="./relu")(V)
    assert_close(log["./relu"], 3 * jax.nn.relu(V))
    assert_close(out, jnp.sin(V) + 3 * jax.nn.relu(V))


class Splits(eqx.Module):
    def __call__(self, x):
        a, b = jnp.split(x, 2)
        return a * b


def test_several_results_are_a_tuple():
    out, log = px.ForwardHook(Splits(), where="./split")(V)
    assert_close(log["./split"][0], V[:1])
    assert_close(log["./split"][1], V[1:])
    out, _ = px.ForwardHook(Splits(), px.ScaleHook(2.0), where="./split")(V)
    assert_close(out, 4 * V[:1] * V[1:])


class Mixed(eqx.Module):
    linear: eqx.nn.Linear

    def __call__(self, x):
        return self.scaled(self.linear(x)) * jnp.sqrt(2.0)

    def scaled(self, x):
        return x * 3 * self.linear(x)

    @eqx.filter_jit
    def jitted(self, x):
        return self.scaled(x)


MIXED = Mixed(eqx.nn.Linear(2, 2, key=jr.key(7)))


def test_hooks_and_logs_of_other_sites_are_not_inside():
    hooks = {"linear": px.ScaleHook(1.0), "**": None, "./*": None}
    logs = {"linear": lambda x: jnp.sqrt(jnp.sum(x * x)), "./*": px.IdentityLog()}
    where = ["linear", "./mul", "./scaled"]
    out, log = px.ForwardHook(MIXED, hooks, logs, where=where)(V)
    assert [k for k in log if k.startswith(".")] == [
        "./mul",
        "./mul#1",
        "./scaled",
        "./mul#2",
    ]
    y = MIXED.linear(V)
    assert_close(log["./mul"], 3 * y)
    assert_close(log["./scaled"], 3 * y * MIXED.linear(y))
    assert_close(log["./mul#2"], out)
    assert_close(log["linear#1"], jnp.linalg.norm(MIXED.linear(y)))


def test_cotangents_of_sites_and_values_inside_of_one_module():
    hooked = px.BackwardHook(MIXED, where=["linear", "./scaled"]).init(V)
    log = eqx.filter_grad(lambda hooked: jnp.sum(hooked(V)))(hooked).log
    assert list(log) == ["linear", "linear#1", "./scaled"]
    assert_close(log["./scaled"], jnp.sqrt(2.0) * jnp.ones(2))
    y = MIXED.linear(V)
    assert_close(log["linear#1"], jnp.sqrt(2.0) * 3 * y)


def test_inside_of_a_jitted_method():
    hooked = px.ForwardHook(MIXED, where="./scaled", method="jitted")
    out, log = hooked(V)
    assert_close(log["./scaled"], V * 3 * MIXED.linear(V))
    assert_close(out, log["./scaled"])


def test_a_module_inside_of_one_of_its_own_class():
    class Node(eqx.Module):
        scale: float
        child: "Node | None" = None

        def __call__(self, x):
            x = jnp.tanh(self.scale * x)
            return x if self.child is None else self.child(x)

    model = Node(1.0, Node(2.0))
    _, log = px.ForwardHook(model, where=["./tanh", "child/tanh"])(V)
    assert list(log) == ["./tanh", "child/tanh"]
    assert_close(log["child/tanh"], jnp.tanh(2 * jnp.tanh(V)))


def test_a_function_around_a_module_with_values_inside():
    class Outer(eqx.Module):
        part: Weighted

        def __call__(self, x):
            return 3 * self.around(x)

        def around(self, x):
            return jnp.sin(self.part(2 * x)) + 1

    model = Outer(Weighted(jnp.array(0.7)))
    out, log = px.ForwardHook(model, where=["./around", "part/tanh"])(V)
    assert list(log) == ["part/tanh", "./around"]
    assert_close(log["part/tanh"], jnp.tanh(1.4 * V))
    assert_close(log["./around"], jnp.sin(jnp.tanh(1.4 * V)) + 1)


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


class Weighted(eqx.Module):
    weight: jax.Array

    def __call__(self, x):
        return jnp.tanh(self.weight * x)


def test_listing_names():
    normed = jax.vmap(BLOCK.norm)(X)
    rows = names_inside(BLOCK.attn.__call__, (normed,) * 3, {})
    names = [(row.name, row.index) for row in rows]
    assert len(set(names)) == len(names)
    for row in rows:
        where = f"./{row.name}#{row.index}"
        _, log = px.ForwardHook(BLOCK.attn, where=where)(*(normed,) * 3)
        (key,) = log
        assert key == (where if row.index else f"./{row.name}")
        leaves = jax.tree.leaves(log[key])
        assert [(x.shape, x.dtype) for x in leaves] == [
            (s.shape, s.dtype) for s in row.shapes
        ]
    expected = [
        ("_project", 2),
        ("div", 0),
        ("div", 1),
        ("softmax", 0),
        ("dot_product_attention_weights", 0),
        ("dot_product_attention", 0),
    ]
    assert [row for row in names if row in expected] == expected


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
