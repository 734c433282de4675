"""Compares `examples/g2p.py` with a NumPy version of what `g2p-en` computes."""

import ast
import importlib.metadata
import importlib.util
import pathlib
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest


def _installed(name):
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


needs_parameters = pytest.mark.skipif(
    not _installed("g2p-en"),
    reason="needs the examples extra: pip install -e '.[examples]'",
)


@pytest.fixture(scope="module")
def g2p():
    path = pathlib.Path(__file__).parents[1] / "examples" / "g2p.py"
    spec = importlib.util.spec_from_file_location("examples_g2p", path)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)
        # Importing the package would download data sets; this makes it an error.
        patch.setitem(sys.modules, "g2p_en", None)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def model(g2p):
    return g2p.load()


@pytest.fixture(scope="module")
def checkpoint():
    package = importlib.metadata.distribution("g2p-en")
    with np.load(package.locate_file("g2p_en/checkpoint20.npz")) as arrays:
        return {name: array.astype(np.float64) for name, array in arrays.items()}


class Oracle:
    """The formulas of PyTorch's GRU, on the checkpoint's own arrays, in float64."""

    def __init__(self, checkpoint):
        self.p = checkpoint

    def step(self, part, token, state):
        w_ih, w_hh, b_ih, b_hh = (
            self.p[f"{part}_{name}"] for name in ("w_ih", "w_hh", "b_ih", "b_hh")
        )
        from_input = w_ih @ self.p[f"{part}_emb"][token] + b_ih
        from_state = w_hh @ state + b_hh
        input_r, input_z, input_n = np.split(from_input, 3)
        state_r, state_z, state_n = np.split(from_state, 3)
        r = 1 / (1 + np.exp(-(input_r + state_r)))
        z = 1 / (1 + np.exp(-(input_z + state_z)))
        n = np.tanh(input_n + r * state_n)
        return (1 - z) * n + z * state

    def encode(self, word):
        state = np.zeros(self.p["enc_w_hh"].shape[1])
        for letter in word:
            state = self.step("enc", ord(letter) - ord("a") + 3, state)
        return self.step("enc", 2, state)

    def __call__(self, word, steps=20):
        state, phoneme, logits = self.encode(word), 2, []
        for _ in range(steps):
            state = self.step("dec", phoneme, state)
            logits.append(self.p["fc_w"] @ state + self.p["fc_b"])
            phoneme = int(np.argmax(logits[-1]))
        return np.stack(logits)


PRONUNCIATIONS = {
    # This one is also in the README of `g2p-en`.
    "activationist": "AE2 K T IH0 V EY1 SH AH0 N IH0 S T",
    "photograph": "F OW1 T AH0 G R AE2 F",
    "photography": "F AH0 T AA1 G R AH0 F IY0",
    "equinox": "IY1 K W AH0 N AA2 K S",
    "a": "AA1",
    # Reaches the limit of 20 phonemes.
    "pneumonoultramicroscopicsilicovolcanoconiosis": (
        "N IY2 M OW0 JH AE2 N K OW0 S EH2 R AH0 L AH0 N EY1 S IY0 OW0"
    ),
}


@needs_parameters
@pytest.mark.parametrize("word", PRONUNCIATIONS)
def test_matches_package(g2p, model, checkpoint, word):
    oracle = Oracle(checkpoint)
    expected = oracle(word)
    letters = g2p.encode(word)

    state = model.encoder(letters)
    np.testing.assert_allclose(state, oracle.encode(word), rtol=1e-4, atol=1e-4)
    logits = model(letters)
    assert logits.shape == (20, len(g2p.PHONEMES))
    assert logits.dtype == jnp.float32
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)

    ids = np.argmax(expected, axis=-1).tolist()
    ids = ids[: ids.index(3)] if 3 in ids else ids
    phonemes = PRONUNCIATIONS[word].split()
    assert [g2p.PHONEMES[i] for i in ids] == phonemes
    assert g2p.decode(logits) == phonemes


@needs_parameters
def test_jit_and_steps(g2p, model, checkpoint):
    letters = g2p.encode("photograph")
    logits = eqx.filter_jit(model)(letters, steps=5)
    expected = Oracle(checkpoint)("photograph", steps=5)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    assert g2p.decode(logits) == ["F", "OW1", "T", "AH0", "G"]


@needs_parameters
@pytest.mark.filterwarnings("ignore:.*invalid escape sequence")  # In the package.
def test_phonemes(g2p):
    package = importlib.metadata.distribution("g2p-en")
    source = pathlib.Path(package.locate_file("g2p_en/g2p.py")).read_text("utf-8")
    [assigned] = [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "self.phonemes"
    ]
    constants = [n.value for n in ast.walk(assigned) if isinstance(n, ast.Constant)]
    assert constants == g2p.PHONEMES


@needs_parameters
def test_parameters(model, checkpoint):
    arrays = jax.tree.leaves(eqx.filter(model, eqx.is_array))
    assert all(array.dtype == jnp.float32 for array in arrays)
    # Equinox merges two of each GRU's biases, for the gates r and z.
    merged = 2 * 2 * model.encoder.cell.hidden_size
    size = sum(array.size for array in checkpoint.values())
    assert sum(array.size for array in arrays) == size - merged


def test_encode(g2p):
    assert g2p.encode("az").tolist() == [3, 28, 2]
    assert g2p.encode("Equinox").tolist() == g2p.encode("equinox").tolist()
    assert jnp.issubdtype(g2p.encode("a").dtype, jnp.integer)


def test_encode_empty(g2p):
    with pytest.raises(ValueError, match="empty word"):
        g2p.encode("")


# The last is the Kelvin sign, whose lower case is the letter k.
@pytest.mark.parametrize("word", ["two words", "don't", "b4", "na\u00efve", "\u212a"])
def test_encode_not_letters(g2p, word):
    with pytest.raises(ValueError, match="consist of letters a-z"):
        g2p.encode(word)


def test_decode(g2p):
    ids = jnp.array([g2p.PHONEMES.index(p) for p in ["HH", "AY1", "</s>", "K"]])
    logits = jax.nn.one_hot(ids, len(g2p.PHONEMES))
    assert g2p.decode(logits) == ["HH", "AY1"]
    assert g2p.decode(logits[:2]) == ["HH", "AY1"]
    assert g2p.decode(logits[2:]) == []


def test_package_missing(g2p, monkeypatch):
    def distribution(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    with pytest.raises(ModuleNotFoundError, match=r'pip install -e "\.\[examples\]"'):
        g2p.load()
