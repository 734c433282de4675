"""Two models that should compute the same: what is said of each call, and which are to
blame.
"""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close
from compared_models import Block, Gelu, Listed, replaced, Stacked, tokens, wrong_norm
from parts import Whole

import peex as px


X = tokens()


@pytest.fixture(scope="module")
def by_eps():
    """A scan over layers, next to a list of them, one with a wrong epsilon."""
    listed = Listed()
    wrong = eqx.tree_at(lambda m: m.blocks[2].norm2, listed, wrong_norm())
    return px.debug.compare(Stacked(listed), wrong, X)


def test_one_epsilon_makes_much_differ_and_one_to_blame(by_eps):
    assert by_eps.culprits == ["layers.norm2[2]"]
    differ = [row.key for row in by_eps.rows if row.differs]
    assert len(differ) >= 9 and differ[0] == by_eps.first.key == "layers.norm2[2]"
    assert [row.key for row in by_eps.rows if row.differs_locally] == by_eps.culprits
    assert max(row.local_error for row in by_eps.rows if row.key not in differ) == 0
    assert by_eps["layers.norm2[2]"].local_error == by_eps["layers.norm2[2]"].error
    assert by_eps["layers.norm2[3]"].local_error == 0 < by_eps["layers.norm2[3]"].error


def test_each_row_says_what_it_is_of(by_eps):
    row = by_eps["layers.attn.query[3]"]
    assert (row.other, row.how) == ("blocks.3.attn.query", "parameters")
    assert (row.class_name, row.layout) == ("Linear", (0, 1))
    # All norms have the same ones and zeros.
    assert (by_eps["layers.norm1[1]"].other) == "blocks.1.norm1"
    assert by_eps["layers.norm1[1]"].how == "key"
    assert (by_eps["layers[1]"].other, by_eps["layers[1]"].how) == ("blocks.1", "parts")
    assert by_eps["layers.up[2]"].input_error == by_eps["layers.norm2[2]"].error
    # In the order of execution: layer by layer.
    keys = [row.key for row in by_eps.rows]
    assert keys.index("layers.down[0]") < keys.index("layers.norm1[1]")
    assert keys[0] == "embed" and keys[-1] == "." and len(keys) == 42
    assert by_eps.unmatched == []


def test_parameters_of_a_stack(by_eps):
    rows = {row.key: row for row in by_eps.parameters}
    assert len(rows) == 2 + 4 * (4 + 10)
    row = rows["layers.up.weight[3]"]
    assert row.other == "blocks.3.up.weight" and row.error == 0
    assert rows["layers.norm2.bias[0]"].other == "blocks.0.norm2.bias"
    assert all(row.gradient_error is None for row in by_eps.parameters)


def test_shown(by_eps):
    shown = str(by_eps)
    assert "layers.norm2[2]" in shown and "blocks.2.norm2" in shown
    assert "to blame: layers.norm2[2]" in shown and "first to differ" in shown
    assert "backward" not in shown and "layout" not in shown
    assert repr(by_eps).endswith(", to blame: layers.norm2[2]>")
    listed = json.loads(json.dumps(by_eps.to_dict()))
    assert listed["culprits"] == ["layers.norm2[2]"] == [listed["first"]]
    assert listed["rows"][0]["key"] == "embed" and listed["rows"][0]["layout"] == [0, 1]
    with pytest.raises(KeyError, match=r"write 'layers.norm2\[1\]'"):
        by_eps["blocks.1.norm2"]
    with pytest.raises(KeyError, match=r"Nearest: 'layers.norm2\[3\]'"):
        by_eps["layers.norm2"]
    with pytest.raises(px.NotCloseError, match=r"16 rows differ.*: layers.norm2\[2\]"):
        by_eps.assert_close()


def test_picture(by_eps):
    ax = by_eps.plot()
    whole, local, tolerance = ax.get_lines()[:3]
    assert [line.get_label() for line in (whole, local)] == ["whole run", "local"]
    least = np.min(np.asarray(whole.get_ydata()))
    assert 0 < least < min(row.error for row in by_eps.rows if row.error)
    assert f"(0 at {least:.0e})" in ax.get_ylabel()
    assert_close(
        np.asarray(whole.get_ydata()),
        np.array([max(row.error, least) for row in by_eps.rows]),
    )
    assert np.sum(np.asarray(local.get_ydata()) > 1e-5) == 1
    assert set(tolerance.get_ydata()) == {1e-4}
    assert [text.get_text() for text in ax.texts] == ["layers.norm2[2]"]
    other = by_eps.plot(ax)
    assert other is ax


def test_several_faults_at_once():
    """Each is told from the others, as each call is given the model's own values."""
    block = Block(key=jax.random.key(0))
    value = block.attn.value
    wrong = replaced(
        block,
        norm1=wrong_norm(),
        attn__query=block.attn.key,
        attn__key=block.attn.query,
        attn__value=eqx.tree_at(lambda m: m.weight, value, value.weight.T),
        act=Gelu(approximate=True),
    )
    result = px.debug.compare(block, wrong, X)
    swapped = ["attn.query", "attn.key"]
    assert result.culprits == ["norm1", *swapped, "attn.value", "act"]
    # Their weights say which they are, and nothing is wrong with what they compute.
    assert result["attn.query"].other == "attn.key"
    assert result["attn.query"].how == "parameters"
    assert result["attn.query"].local_error == 0 < result["attn"].local_error
    assert "parameters are those of 'attn.key'" in result["attn.query"].note
    (transposed,) = (p for p in result.parameters if p.key == "attn.value.weight")
    assert (transposed.layout, transposed.error) == ((1, 0), 0.0)
    assert "parameter attn.value.weight: error 0, axes (1, 0)" in str(result)
    # As far as the exact one is from the approximate one, on what the model has there.
    hidden = jax.vmap(block.up)(jax.vmap(block.norm2)(X + _attended(block)))
    exact, approximate = (jax.nn.gelu(hidden, approximate=a) for a in (False, True))
    far = jnp.max(jnp.abs(exact - approximate)) / jnp.max(jnp.abs(exact))
    assert_close(result["act"].local_error, float(far), rtol=1e-3)


def _attended(block):
    return block.attn(jax.vmap(block.norm1)(X))


def test_code_between_the_parts():
    class Doubling(Block):
        def __call__(self, x):
            x = x + self.attn(jax.vmap(self.norm1)(x))
            hidden = self.act(2 * jax.vmap(self.up)(jax.vmap(self.norm2)(x)))
            return x + jax.vmap(self.down)(hidden)

    model, wrong = (cls(key=jax.random.key(0)) for cls in (Block, Doubling))
    result = px.debug.compare(model, wrong, X)
    assert result.culprits == ["."]
    assert result["."].note == "in what it gives to act"
    assert result.first.key == "act" and result["act"].local_error == 0
    # Without local errors: what differs although what it was given doesn't.
    result = px.debug.compare(model, wrong, X, local=False)
    assert result.culprits == ["."] and result["."].local_error is None


def test_with_itself_all_is_zero():
    block = Block(key=jax.random.key(0))
    result = px.debug.compare(block, block, X, grad=True)
    assert len(result.rows) == 10 and len(result.parameters) == 14
    for row in result.rows:
        assert row.key == row.other
        assert (row.error, row.local_error, row.cotangent_error) == (0, 0, 0)
    for row in result.parameters:
        assert (row.error, row.gradient_error) == (0, 0) and row.key == row.other
    assert result.first is None and not result.culprits and not result.unmatched
    assert "all within the tolerances" in str(result)
    result.assert_close()


def test_stacked_next_to_listed():
    """As wide as there are layers: by its shape alone, a weight could be that of all
    layers, or of one.
    """
    keys = jax.random.split(jax.random.key(0), 4)
    stack = eqx.filter_vmap(lambda key: eqx.nn.Linear(4, 4, key=key))(keys)
    layers = [jax.tree.map(lambda x, i=i: x[i], stack) for i in range(4)]
    scanned = Whole(stack, _scanned)
    result = px.debug.compare(Whole(layers, _in_turn), scanned, X[0], grad=True)
    result.assert_close()
    assert result.unmatched == []
    pairs = [(row.key, row.other) for row in result.rows]
    assert pairs == [*((f"part.{i}", f"part[{i}]") for i in range(4)), (".", ".")]
    assert all(row.cotangent_error < 1e-5 for row in result.rows)
    rows = {row.key: row for row in result.parameters}
    assert rows["part.1.bias"].other == "part.bias[1]" and len(rows) == 8
    assert all(row.gradient_error < 1e-5 for row in rows.values())


def _in_turn(layers, x):
    for layer in layers:
        x = jnp.tanh(layer(x))
    return x


def _scanned(stack, x):
    return jax.lax.scan(lambda x, layer: (jnp.tanh(layer(x)), None), x, stack)[0]


def test_steps_of_a_loop_next_to_calls():
    """One layer, called at each step: its weights aren't those of four layers."""
    linear = eqx.nn.Linear(4, 4, key=jax.random.key(0))
    steps = lambda cell, x: jax.lax.scan(lambda x, _: (cell(x), None), x, length=4)[0]
    calls = lambda cell, x: cell(cell(cell(cell(x))))
    result = px.debug.compare(Whole(linear, steps), Whole(linear, calls), X[0])
    pairs = [(row.key, row.other, row.how) for row in result.rows[:2]]
    assert pairs == [
        ("part[0]", "part", "parameters"),
        ("part[1]", "part#1", "parameters"),
    ]
    assert [row.key for row in result.parameters] == ["part.weight", "part.bias"]
    result.assert_close()


def test_only_the_backward_pass_differs():
    class Stopping(Block):
        def __call__(self, x):
            attended = jax.lax.stop_gradient(self.attn(jax.vmap(self.norm1)(x)))
            x = x + attended
            hidden = self.act(jax.vmap(self.up)(jax.vmap(self.norm2)(x)))
            return x + jax.vmap(self.down)(hidden)

    model, other = (cls(key=jax.random.key(0)) for cls in (Block, Stopping))
    result = px.debug.compare(model, other, X, grad=True)
    differ = [row.key for row in result.rows if row.differs]
    assert differ == ["norm1", "attn.query", "attn.key", "attn.value", "attn"]
    assert result.first.key == "attn"  # the first in the backward pass
    assert all(row.error == 0 for row in result.rows) and result.culprits == []
    assert "gradients of 7 parameters differ" in str(result)
    with pytest.raises(px.NotCloseError, match="5 rows and 7 parameters differ"):
        result.assert_close()


def test_half_precision_by_its_own_rounding():
    """An error counts where it is larger than what rounding does to the model."""
    half = lambda x: x.astype(jnp.bfloat16) if eqx.is_inexact_array(x) else x
    first, last = (eqx.nn.Linear(4, 4, key=jax.random.key(i)) for i in range(2))
    make = lambda norm: jax.tree.map(half, Whole([first, norm, last], _mixed))
    model, wrong = make(eqx.nn.LayerNorm(4)), make(wrong_norm())
    result = px.debug.compare(model, wrong, X[0], truth="float32")
    assert result.culprits == ["part.1"]
    narrow, wide = _mixed(model.part, X[0]), _mixed(_wide(model.part), X[0])
    far = jnp.max(jnp.abs(narrow - wide)) / jnp.max(jnp.abs(wide))
    assert_close(result["."].rounding, float(far), rtol=1e-2)
    for row in result.rows[:-1]:  # the last is cast back
        assert row.tolerance == max(2 * 2.0**-7, 3 * row.rounding)


def _mixed(layers, x):
    x = x.astype(layers[0].weight.dtype)
    return (_in_turn(layers, x) + x).astype(jnp.float32)


def _wide(tree):
    wide = lambda x: x.astype(jnp.float32) if eqx.is_array(x) else x
    return jax.tree.map(wide, tree)
