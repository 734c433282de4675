"""Calls of other methods than `__call__`, and the parameters of modules themselves."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from closeness import assert_close
from jax import lax
from twin_case import linear

import peex as px


class Table(eqx.Module):
    """Isn't called itself."""

    weight: jax.Array

    def embed(self, i):
        return self.weight[i]

    def attend(self, x):
        return px.probe(self.weight @ x, "logits")


class Block(eqx.Module):
    scale: jax.Array
    lin: eqx.nn.Linear

    kind = eqx.nn.Linear  # no method

    @property
    def width(self):
        return len(self.scale)

    def gated(self, x):
        return self.scale * self._private(x)

    def _private(self, x):
        return jnp.tanh(self.lin(x))

    def __call__(self, x):
        assert type(self.lin) is not int and self.kind is eqx.nn.Linear
        return self.gated(x) + self.width


class Model(eqx.Module):
    table: Table
    blocks: list
    bias: jax.Array

    def encode(self, i):
        x = self.table.embed(i)
        for block in self.blocks:
            x = block(x)
        return x

    def __call__(self, i):
        return self.table.attend(self.encode(i)) + self.bias


MODEL = Model(
    Table(jr.normal(jr.key(0), (5, 4))),
    [Block(jnp.arange(4.0), linear(4, 4, i)) for i in range(2)],
    jnp.zeros(5),
)
I = jnp.array(2)
REPORT = px.report(MODEL, I)


def test_the_tree_has_all_public_methods():
    nested = lambda call: {call.key: [nested(child) for child in call.children]}
    blocks = [
        {f"blocks.{i}": [{f"blocks.{i}:gated": [{f"blocks.{i}.lin": []}]}]}
        for i in range(2)
    ]
    encode = {".:encode": [{"table:embed": []}, *blocks]}
    logits = {"table:attend": [{"./logits": []}]}
    assert [nested(c) for c in REPORT.tree.children] == [{".": [encode, logits]}]
    assert REPORT["table:attend"].class_name == "Table"
    assert REPORT["table:attend"].flops == 2 * 5 * 4


def test_entries_are_those_of_a_log():
    """A method that nobody asks for is no site, and no module to a probe in it."""
    for where in (None, "**", "table:attend", ["table:attend/logits", "blocks.0"]):
        report = px.report(MODEL, I, where=where)
        _, log = px.ForwardHook(MODEL, where=where)(I)
        assert list(report) == list(log)
        assert not report.missing


def test_the_parameters_of_a_module_itself():
    places = lambda key: [p.uses[0] for p in REPORT[key].own_parameters]
    assert places(".") == ["bias"]
    assert places("blocks.1") == places("blocks.1:gated") == ["blocks.1.scale"]
    assert places("blocks.1.lin") == ["blocks.1.lin.weight", "blocks.1.lin.bias"]
    assert places("table:attend") == ["table.weight"]
    assert REPORT["blocks.1"].own_parameter_count == 4
    assert REPORT["blocks.1"].parameter_count == 24
    assert "24 (4 own)" in str(px.report(MODEL, I, where="blocks.1"))
    assert "own" not in str(REPORT)


def test_the_calls_of_a_parameter():
    """Those by which others call its module; its own methods are part of these."""
    assert REPORT.calls_of("table.weight") == ("table:embed", "table:attend")
    assert REPORT.owner("table.weight") == "."
    assert REPORT.calls_of("blocks.0.scale") == ("blocks.0",)
    assert REPORT.calls_of("blocks.0.lin.bias") == ("blocks.0.lin",)
    assert REPORT.calls_of("bias") == (".",)


def test_replaced_and_isolated():
    tree = px.trace(MODEL, I)
    out = tree.replace("table:attend", lambda x: jnp.sum(x) * jnp.ones(5))(I)
    assert_close(out, jnp.sum(MODEL.encode(I)) * jnp.ones(5))
    out = tree.replace("blocks.1:gated", jnp.sin)(I)
    x = MODEL.blocks[0](MODEL.table.embed(I))
    assert_close(out, MODEL.table.attend(jnp.sin(x) + 4))
    call = tree.isolate("table:attend", I)
    assert_close(call(), MODEL.table.attend(MODEL.encode(I)))
    assert call.module.weight is MODEL.table.weight


def test_of_a_model_that_is_run_by_a_function():
    def model(model, i):
        step = lambda x, _: (model.blocks[1](x), None)
        x, _ = lax.scan(step, model.encode(i), length=3)
        return model.table.attend(x)

    tree = px.trace(MODEL, I, method=model)
    keys = [call.key for call in tree.report.tree.children]
    assert keys == [".:encode", "blocks.1#1", "table:attend"]
    assert tree.report.owner("blocks.1.scale") == "."
    assert_close(tree(I), model(MODEL, I))


def test_methods_of_other_kinds():
    """One that Equinox has transformed is a call; one that no array goes into or comes
    out of isn't.
    """

    class Cell(eqx.Module):
        weight: jax.Array

        @eqx.filter_vmap(in_axes=(None, 0))
        def rows(self, x):
            return self.weight * x

        def is_large(self):
            return len(self.weight) > 2

    class Outer(eqx.Module):
        cell: Cell

        def __call__(self, x):
            return self.cell.rows(x) if self.cell.is_large() else x

    model, x = Outer(Cell(jnp.arange(3.0))), jr.normal(jr.key(1), (2, 3))
    tree = px.trace(model, x)
    assert [call.key for call in tree.report.tree] == [".", "cell:rows"]
    call = tree.isolate("cell:rows", x)
    assert call.module.weight is model.cell.weight
    assert_close(call(), model(x))


def test_layers_that_the_model_stacks():
    """The methods of such share one name, too."""

    class Stacked(eqx.Module):
        layers: list

        def __call__(self, x):
            layers = jax.tree.map(lambda *xs: jnp.stack(xs), *self.layers)
            return lax.scan(lambda x, layer: (layer(x), None), x, layers)[0]

    class Layer(eqx.Module):
        lin: eqx.nn.Linear

        def is_large(self):
            return False

        def act(self, x):
            return px.probe(jnp.tanh(self.lin(x)), "act")

        def __call__(self, x):
            return x if self.is_large() else self.act(x)

    model, x = Stacked([Layer(linear(4, 4, i)) for i in range(3)]), jnp.ones(4)
    tree = px.trace(model, x)
    inside = ["layers.*.lin", "layers.*/act"]
    keys = [call.key for call in tree.report.tree]
    assert keys == [".", "layers.*", "layers.*:act", *inside]
    assert list(tree.report) == list(px.ForwardHook(model)(x)[1]) == inside
    call = tree.isolate("layers.*:act", x)
    assert call.module.lin.weight.shape == (3, 4, 4)
    assert_close(call()[-1], model(x))
