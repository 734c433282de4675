"""`examples/llama.py` next to its formulas in NumPy, and what its sites are called."""

import pathlib
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import llama
import llama_twin
import numpy as np
import pytest
import smollm2
from closeness import assert_close

import peex as px


CONFIG = llama.Config(vocab=11, width=8, hidden=16, depth=3, heads=4, kv_heads=2)
TOKENS = jnp.array([3, 1, 4, 1, 5])


@pytest.fixture(scope="module")
def arrays():
    return llama_twin.random_arrays(CONFIG, np.random.default_rng(0))


@pytest.fixture(scope="module")
def model(arrays):
    return smollm2.fill(CONFIG, arrays)


def test_logits(model, arrays):
    expected = llama_twin.logits(CONFIG, arrays, TOKENS.tolist())
    logits = eqx.filter_jit(model)(TOKENS)
    assert logits.dtype == jnp.float32
    assert_close(np.asarray(logits), expected, rtol=1e-4)


def test_a_cache_changes_nothing(model):
    expected = eqx.filter_jit(model)(TOKENS)
    run = eqx.filter_jit(lambda *args: model(*args))
    first, cache = run(TOKENS[:2], 0, llama.empty_cache(model, 7))
    second, _ = run(TOKENS[2:], 2, cache)
    assert_close(jnp.concatenate([first, second]), expected, rtol=1e-5)


def test_generates_the_likeliest_tokens(model, arrays):
    written = eqx.filter_jit(llama.generate)(model, TOKENS, 4).tolist()
    expected = TOKENS.tolist()
    for _ in range(4):
        expected.append(int(llama_twin.logits(CONFIG, arrays, expected)[-1].argmax()))
    assert written == expected
    assert len(set(written[5:])) > 1  # one and the same token would prove little


def test_sites_are_laid_out_alike(model):
    names = {
        "resid": "layers",
        "mid": "layers/add",
        "after": "layers/add#1",
        "attn": "layers.attn",
        "mlp": "layers.mlp",
        "o": "layers.attn.o_proj",
        "z": "layers.attn.o_proj:in",
        "pattern": "layers.attn/softmax",
    }
    _, log = eqx.filter_jit(px.ForwardHook(model, where=names))(TOKENS)
    pattern = log["pattern"]
    assert pattern.shape == (3, 4, 5, 5)  # layers, heads, queries, keys
    assert_close(jnp.sum(pattern, axis=-1), jnp.ones((3, 4, 5)), rtol=1e-5)
    assert not jnp.any(jnp.triu(pattern, 1))
    assert all(log[name].shape == (3, 5, 8) for name in names if name != "pattern")
    assert_close(log["after"], log["resid"])
    assert_close(log["mid"] + log["mlp"], log["resid"], rtol=1e-5)


def test_random_parameters_run():
    model = llama.Llama(CONFIG, key=jax.random.key(0))
    stacked = model.layers.attn.q_proj.weight
    assert stacked.shape == (3, 8, 8)
    assert not jnp.array_equal(stacked[0], stacked[1])
    assert bool(jnp.all(jnp.isfinite(model(TOKENS))))


def test_docstring():
    [block] = re.findall(r"```python\n(.*?)```", llama.__doc__, re.DOTALL)
    namespace = dict(vars(llama))
    exec(block, namespace)
    shapes = re.findall(r"^(\w+) = .*# shape (.*)$", block, re.MULTILINE)
    assert shapes == [("logits", "(5, 11)"), ("tokens", "(15,)")]
    for name, shape in shapes:
        assert str(namespace[name].shape) == shape


def test_knows_nothing_of_peex():
    for module in (llama, smollm2):
        source = pathlib.Path(module.__file__).read_text()
        assert "peex" not in source and "px." not in source
