"""`px.report` on real models: shapes, axes, bytes and FLOPs worked out by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax import lax
from report_numbers import f32, key, product, shown

import peex as px


def test_mlp():
    mlp = eqx.nn.MLP(2, 3, 8, depth=1, key=key())
    report = px.report(mlp, jnp.ones(2))
    assert list(report) == list(report.entries) == ["layers.0", "layers.1"]
    first, second = report.entries.values()
    assert (first.key, first.site, first.number) == ("layers.0", "layers.0", 0)
    assert first.class_name == second.class_name == "Linear"
    # Arguments and keyword arguments; a `key=None` holds no array.
    assert shown(first.inputs) == [((2,), "float32")]
    assert first.inputs[0][0].shape == (2,)
    assert (first.outputs.shape, second.outputs.shape) == ((8,), (3,))
    assert first.axes == second.axes == ()
    assert (first.log_bytes, second.log_bytes) == (8 * 4, 3 * 4)
    assert (first.parameter_count, first.parameter_bytes) == (24, 96)
    assert (first.flops, second.flops) == (2 * 2 * 8 + 8, 2 * 8 * 3 + 3)
    assert first.when == second.when == "always"
    assert report.missing == {}
    assert report.log_bytes == 44
    # The activation, a ReLU, is between them.
    assert report.flops == first.flops + 8 + second.flops


class Block(eqx.Module):
    norm: eqx.nn.LayerNorm
    attn: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP

    def __init__(self, seed):
        self.norm = eqx.nn.LayerNorm(8)
        self.attn = eqx.nn.MultiheadAttention(2, 8, key=key(seed))
        self.mlp = eqx.nn.MLP(8, 8, 16, 1, key=key(seed))

    def __call__(self, x):
        h = jax.vmap(self.norm)(x)
        return x + jax.vmap(self.mlp)(x + self.attn(h, h, h))


class Transformer(eqx.Module):
    embed: eqx.nn.Embedding
    layers: list[Block]
    head: eqx.nn.Linear

    def __init__(self):
        self.embed = eqx.nn.Embedding(11, 8, key=key())
        self.layers = [Block(0), Block(1)]
        self.head = eqx.nn.Linear(8, 11, use_bias=False, key=key())

    def __call__(self, tokens):
        x = jax.vmap(self.embed)(tokens)
        for layer in self.layers:
            x = layer(x)
        return jax.vmap(self.head)(x)


TOKENS = jnp.arange(5)


def test_transformer():
    report = px.report(Transformer(), TOKENS)
    projections = [f"attn.{p}_proj" for p in ("query", "key", "value")]
    inside = [
        "norm",
        *projections,
        "attn.dropout",
        "attn.output_proj",
        *("mlp.layers.0", "mlp.layers.1"),
    ]
    assert list(report.entries) == [
        "embed",
        *(f"layers.{i}.{name}" for i in (0, 1) for name in inside),
        "head",
    ]
    for call in report.entries.values():
        # By token; the attention probabilities by head.
        size = 2 if call.key.endswith("dropout") else 5
        assert [tuple(axis) for axis in call.axes] == [("batch", size)]
    query = report["layers.1.attn.query_proj"]
    assert query.outputs.shape == (8,) and query.log.shape == (5, 8)
    assert query.flops == 5 * product(1, 8, 8)
    assert report["layers.0.attn.dropout"].log.shape == (2, 5, 5)
    # Four projections; scores and weighted values of two heads of four; the softmax
    # (scale, maximum, difference, exponential, sum, quotient, and two more of the
    # stabilisation) in proportion to the 2 * 5 * 5 scores.
    products = 4 * product(5, 8, 8) + 2 * 2 * product(5, 4, 5)
    attention = report["layers.0.attn"].flops
    assert products < attention < products + 10 * 2 * 5 * 5
    assert report["embed"].parameter_count == 11 * 8
    assert shown(report["embed"].inputs) == [((), "int32")]


def test_tree():
    report = px.report(Transformer(), TOKENS)
    (model,) = report.tree.children
    assert model.key == "." and model.class_name == "Transformer"
    assert [c.key for c in model.children] == ["embed", "layers.0", "layers.1", "head"]
    block = report["layers.1"]
    assert block is model.children[2]
    assert [c.key for c in block.children] == [
        "layers.1.norm",
        "layers.1.attn",
        "layers.1.mlp",
    ]
    # `entries` are leaf modules; the tree shows what is around them too.
    assert "layers.1" not in report.entries and "layers.1" in report
    assert block.log.shape == (5, 8) and block.axes == ()
    assert block.flops > sum(c.flops for c in block.children)
    assert model.flops == report.flops
    lines = str(report.tree).splitlines()
    assert lines[0] == ". (Transformer): i32[5] -> f32[5,11]"
    assert lines[2] == "  layers.0 (Block): f32[5,8] -> f32[5,8]"
    assert lines[3] == "    layers.0.norm (LayerNorm): f32[8] -> f32[8]  [batch 5]"
    assert str(block).splitlines()[0] == "layers.1 (Block): f32[5,8] -> f32[5,8]"
    assert len(lines) == len(list(report.tree)) == 1 + 2 * 11 + 2


def test_where_chooses_entries():
    report = px.report(Transformer(), TOKENS, where=["layers.*", "**.norm"])
    assert list(report.entries) == [
        "layers.0.norm",
        "layers.0",
        "layers.1.norm",
        "layers.1",
    ]
    assert "head" in report
    activation = px.report(Transformer(), TOKENS, where="**.activation")
    assert list(activation.entries) == [
        "layers.0.mlp.activation",
        "layers.1.mlp.activation",
    ]
    call = activation["layers.1.mlp.activation"]
    # `eqx.nn.MLP` maps its activation over neurons, inside of the map over tokens.
    assert [axis.size for axis in call.axes] == [5, 16]
    assert call.class_name == "function"
    with pytest.raises(px.SiteNotFoundError, match="`where='laers.0'` matches nothing"):
        px.report(Transformer(), TOKENS, where="laers.0")


def test_further_calls():
    linear = eqx.nn.Linear(3, 3, key=key())
    report = px.report(linear, f32(3), method=lambda m, x: m(m(m(x))))
    assert list(report.entries) == [".", ".#1", ".#2"]
    last = report[".#2"]
    assert (last.site, last.number) == (".", 2)
    # Each call needs all the parameters, of which the model has one set.
    assert last.parameter_count == 12
    assert sum(p.count for p in report.parameters) == 12
    assert report.flops == 3 * last.flops == 3 * (product(1, 3, 3) + 3)


class Normed(eqx.Module):
    linear: eqx.nn.Linear
    norm: eqx.nn.BatchNorm

    def __init__(self):
        self.linear = eqx.nn.Linear(3, 4, key=key())
        self.norm = eqx.nn.BatchNorm(4, axis_name="batch", mode="batch")

    def __call__(self, x, state):
        return self.norm(self.linear(x), state)


def test_batch_norm():
    model, state = eqx.nn.make_with_state(Normed)()

    def run(model, xs, state):
        one = lambda x, s: model(x, s)
        return jax.vmap(one, (0, None), (0, None), axis_name="batch")(xs, state)

    report = px.report(model, f32(7, 3), state, method=run)
    assert list(report.entries) == ["linear", "norm"]
    norm = report["norm"]
    # Of `(output, state)`, the output.
    assert norm.outputs.shape == (4,) and norm.log.shape == (7, 4)
    assert [tuple(axis) for axis in norm.axes] == [("batch", 7)]
    # Scale and shift; what it has counted and averaged is in the state.
    assert norm.parameter_count == 2 * 4
    # The state can still be used.
    (out, _), log = px.ForwardHook(model, method=run)(jnp.ones((7, 3)), state)
    assert log["norm"].shape == out.shape


class Autoregressive(eqx.Module):
    shared: eqx.nn.Shared
    body: eqx.nn.Linear

    def __init__(self):
        embed = eqx.nn.Embedding(11, 4, key=key())
        head = eqx.nn.Linear(4, 11, use_bias=False, key=key())
        where = lambda both: both[1].weight
        get = lambda both: both[0].weight
        self.shared = eqx.nn.Shared((embed, head), where, get)
        self.body = eqx.nn.Linear(4, 4, key=key())

    def __call__(self, token):
        embed, head = self.shared()
        return head(self.body(embed(token)))


@pytest.mark.parametrize("shapes", [False, True], ids=["arrays", "shapes"])
def test_tied_by_shared(shapes):
    model = eqx.filter_eval_shape(Autoregressive) if shapes else Autoregressive()
    report = px.report(model, jnp.array(3))
    embed, head = "shared.pytree.0", "shared.pytree.1"
    assert list(report.entries) == [embed, "body", head]
    assert report[embed].parameter_count == report[head].parameter_count == 44
    (tied,) = [p for p in report.parameters if len(p.uses) > 1]
    assert tied.uses == (f"{embed}.weight", f"{head}.weight")
    assert sum(p.count for p in report.parameters) == 44 + 16 + 4
    assert f"shared, counted once: {embed}.weight = {head}.weight" in str(report)


def test_of_a_size_that_no_machine_has():
    make = lambda key: eqx.nn.Linear(100_000, 100_000, key=key)
    linear = eqx.filter_eval_shape(make, key())
    call = px.report(linear, f32(100_000))["."]
    assert call.parameter_count == 100_000**2 + 100_000
    assert call.parameter_bytes == 4 * (100_000**2 + 100_000)
    assert call.flops == 2 * 100_000**2 + 100_000
    assert call.log_bytes == 400_000


def test_other_dtypes():
    linear = eqx.nn.Linear(3, 4, key=key())
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), linear)
    call = px.report(half, jax.ShapeDtypeStruct((3,), jnp.bfloat16))["."]
    assert shown(call.outputs) == [((4,), "bfloat16")]
    assert (call.log_bytes, call.parameter_bytes) == (8, 32)
    assert repr(call) == "<call .: bf16[3] -> bf16[4]>"


def test_inside_of_a_linear_solve():
    linear = eqx.nn.Linear(3, 3, use_bias=False, key=key())

    def run(model, x):
        solve = lambda matvec, b: model(b)
        return lax.custom_linear_solve(lambda v: v, x, solve)

    report = px.report(linear, f32(3), method=run)
    assert report["."].flops == report.flops == product(1, 3, 3)
    unused = lambda model, x: lax.custom_linear_solve(model, x, lambda matvec, b: b)
    report = px.report(linear, f32(3), method=unused, where=".")
    assert list(report.entries) == [] and report.missing["."].kind != "read"


def test_layers_that_are_stacked_in_the_forward_pass():
    class Stacked(eqx.Module):
        layers: list[eqx.nn.Linear]

        def __call__(self, x):
            stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *self.layers)
            return lax.scan(lambda x, layer: (layer(x), None), x, stacked)[0]

    report = px.report(
        Stacked([eqx.nn.Linear(3, 3, key=key(i)) for i in (0, 1)]), f32(3)
    )
    assert list(report.entries) == ["layers.*"]
    call = report["layers.*"]
    assert [tuple(axis) for axis in call.axes] == [("step", 2)]
    assert call.parameter_count == 2 * 12


class Stack(eqx.Module):
    layers: eqx.nn.Linear

    def __init__(self):
        make = lambda k: eqx.nn.Linear(4, 4, key=k)
        self.layers = eqx.filter_vmap(make)(jax.random.split(key(), 6))

    def __call__(self, x):
        dynamic, static = eqx.partition(self.layers, eqx.is_array)
        step = lambda x, d: (jax.vmap(eqx.combine(d, static))(x), None)
        return lax.scan(step, x, dynamic)[0]


def test_scan_over_layers():
    report = px.report(Stack(), f32(5, 4))
    call = report["layers"]
    assert [tuple(axis) for axis in call.axes] == [("step", 6), ("batch", 5)]
    assert call.outputs.shape == (4,) and call.log.shape == (6, 5, 4)
    assert call.log_bytes == 6 * 5 * 4 * 4
    assert call.parameter_count == 6 * (16 + 4)
    assert call.flops == 6 * 5 * (product(1, 4, 4) + 4)


def test_cond():
    class Branch(eqx.Module):
        yes: eqx.nn.Linear
        no: eqx.nn.Linear
        both: eqx.nn.Linear

        def __call__(self, x):
            yes = lambda x: self.both(self.yes(x))
            no = lambda x: self.both(self.no(x))
            return lax.cond(x[0] > 0, yes, no, x)

    linear = lambda width, seed: eqx.nn.Linear(width, 4, key=key(seed))
    model = Branch(linear(4, 0), linear(4, 1), linear(4, 2))
    report = px.report(model, f32(4))
    assert {k: c.when for k, c in report.entries.items()} == {
        "no": "conditional",
        "both": "always",
        "yes": "conditional",
    }
    each = product(1, 4, 4) + 4
    assert [c.flops for c in report.entries.values()] == [each] * 3
    # The predicate, and one of the branches.
    assert report.flops == 1 + 2 * each
    assert [c.key for c in report["."].children] == ["no", "both", "yes"]


def test_while():
    linear = eqx.nn.Linear(4, 4, key=key())

    def run(model, x):
        return lax.while_loop(lambda x: x[0] < 9, lambda x: model(x), x)

    report = px.report(linear, f32(4), method=run)
    call = report["."]
    assert call.when == "last of many" and call.axes == ()
    assert call.log.shape == (4,)
    assert call.flops == product(1, 4, 4) + 4
    batched = lambda model, xs: jax.vmap(lambda x: run(model, x))(xs)
    call = px.report(linear, f32(5, 4), method=batched)["."]
    assert call.when == "last of many"
    assert [tuple(axis) for axis in call.axes] == [("batch", 5)]


def test_gru_over_time():
    cell = eqx.nn.GRUCell(3, 4, key=key())

    def run(cell, xs):
        step = lambda h, x: (cell(x, h), None)
        return lax.scan(step, jnp.zeros(4), xs)[0]

    report = px.report(cell, f32(10, 3), method=run)
    call = report["."]
    assert [tuple(axis) for axis in call.axes] == [("step", 10)]
    assert shown(call.inputs) == [((3,), "float32"), ((4,), "float32")]
    assert call.log.shape == (10, 4)
    # Weights of three gates, from the input and from the state; biases of the gates,
    # and of the candidate's state.
    assert call.parameter_count == 12 * 3 + 12 * 4 + 12 + 4
    products = product(1, 3, 12) + product(1, 4, 12)
    assert 10 * products < call.flops < 10 * (products + 20 * 12)
