"""The trained spelling-to-phoneme model of the PyPI package `g2p-en`, in Equinox.

A GRU reads the letters of a word. A second GRU starts from the state this leaves, and
writes the pronunciation one ARPAbet phoneme at a time:

```python
model = load()
decode(model(encode("photograph")))  # ['F', 'OW1', 'T', 'AH0', 'G', 'R', 'AE2', 'F']
```

The parameters (float32) are those that `g2p-en` ships. Its code is not imported, as
that would download the data sets it also uses.
"""

import importlib.metadata
from string import ascii_letters, ascii_lowercase

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray


GRAPHEMES = ["<pad>", "<unk>", "</s>", *ascii_lowercase]
PHONEMES = """
    <pad> <unk> <s> </s>
    AA0 AA1 AA2 AE0 AE1 AE2 AH0 AH1 AH2 AO0 AO1 AO2 AW0 AW1 AW2 AY0 AY1 AY2
    B CH D DH EH0 EH1 EH2 ER0 ER1 ER2 EY0 EY1 EY2 F G HH IH0 IH1 IH2 IY0 IY1 IY2
    JH K L M N NG OW0 OW1 OW2 OY0 OY1 OY2 P R S SH T TH UH0 UH1 UH2 UW UW0 UW1 UW2
    V W Y Z ZH
""".split()  # noqa: SIM905
START = PHONEMES.index("<s>")


class Encoder(eqx.Module):
    """Reads the letters of a word with a GRU."""

    embedding: eqx.nn.Embedding
    cell: eqx.nn.GRUCell

    def __init__(self, embedding_size: int, hidden_size: int, *, key: PRNGKeyArray):
        """**Arguments:**

        - `embedding_size`: The size of the vector that represents each letter.
        - `hidden_size`: The size of the GRU's state.
        - `key`: A `jax.random.PRNGKey` for initialisation. (Keyword only argument.)
        """
        ekey, ckey = jr.split(key)
        self.embedding = eqx.nn.Embedding(len(GRAPHEMES), embedding_size, key=ekey)
        self.cell = eqx.nn.GRUCell(embedding_size, hidden_size, key=ckey)

    def __call__(self, letters: Int[Array, "letters"]) -> Float[Array, "hidden"]:
        """**Arguments:**

        - `letters`: The ids of the letters, as returned by `encode`.

        **Returns:**

        The state of the GRU after the last letter.
        """

        def step(state, letter):
            return self.cell(self.embedding(letter), state), None

        init = jnp.zeros(self.cell.hidden_size, self.cell.weight_hh.dtype)
        state, _ = jax.lax.scan(step, init, letters)
        return state


class Decoder(eqx.Module):
    """Writes phonemes with a GRU. Each step reads the likeliest phoneme of the last."""

    embedding: eqx.nn.Embedding
    cell: eqx.nn.GRUCell
    output: eqx.nn.Linear

    def __init__(self, embedding_size: int, hidden_size: int, *, key: PRNGKeyArray):
        """**Arguments:** as for `Encoder`."""
        ekey, ckey, okey = jr.split(key, 3)
        self.embedding = eqx.nn.Embedding(len(PHONEMES), embedding_size, key=ekey)
        self.cell = eqx.nn.GRUCell(embedding_size, hidden_size, key=ckey)
        self.output = eqx.nn.Linear(hidden_size, len(PHONEMES), key=okey)

    def __call__(
        self, state: Float[Array, "hidden"], *, steps: int = 20
    ) -> Float[Array, "steps phonemes"]:
        """**Arguments:**

        - `state`: The state to start from, as returned by `Encoder`.
        - `steps`: The number of phonemes to write. (Keyword only argument.)

        **Returns:**

        The logits of every step, including those that follow `</s>`.
        """

        def step(carry, _):
            state, phoneme = carry
            state = self.cell(self.embedding(phoneme), state)
            logits = self.output(state)
            return (state, jnp.argmax(logits)), logits

        _, logits = jax.lax.scan(step, (state, jnp.array(START)), length=steps)
        return logits


class G2P(eqx.Module):
    """Converts the spelling of a word (graphemes) to its phonemes."""

    encoder: Encoder
    decoder: Decoder

    def __init__(self, embedding_size: int, hidden_size: int, *, key: PRNGKeyArray):
        """**Arguments:** as for `Encoder`; each size is that of both GRUs."""
        ekey, dkey = jr.split(key)
        self.encoder = Encoder(embedding_size, hidden_size, key=ekey)
        self.decoder = Decoder(embedding_size, hidden_size, key=dkey)

    def __call__(
        self, letters: Int[Array, "letters"], *, steps: int = 20
    ) -> Float[Array, "steps phonemes"]:
        """**Arguments:**

        - `letters`: The ids of the letters, as returned by `encode`.
        - `steps`: The number of phonemes to write. (Keyword only argument.)

        **Returns:**

        The logits of every step; see `decode`.
        """
        return self.decoder(self.encoder(letters), steps=steps)


def _load_cell(cell: eqx.nn.GRUCell, w_ih, w_hh, b_ih, b_hh) -> eqx.nn.GRUCell:
    # The checkpoint has PyTorch's layout, so two biases. Equinox has the same order of
    # gates (r, z, n) but one bias, plus the part of `b_hh` that the gate r multiplies.
    bias_n = b_hh[-cell.hidden_size :]
    bias = b_ih + b_hh.at[-cell.hidden_size :].set(0)
    return eqx.tree_at(
        lambda c: (c.weight_ih, c.weight_hh, c.bias, c.bias_n),
        cell,
        (w_ih, w_hh, bias, bias_n),
    )


def load() -> G2P:
    """Returns the trained model, with the parameters of the installed `g2p-en`."""
    try:
        package = importlib.metadata.distribution("g2p-en")
    except importlib.metadata.PackageNotFoundError as e:
        raise ModuleNotFoundError(
            "The trained parameters are part of the package `g2p-en`, which is not "
            'installed. Install it with: pip install -e ".[examples]"'
        ) from e
    with np.load(package.locate_file("g2p_en/checkpoint20.npz")) as checkpoint:
        p = {name: jnp.asarray(array) for name, array in checkpoint.items()}
    enc, dec = (
        [p[f"{part}_{name}"] for name in ("w_ih", "w_hh", "b_ih", "b_hh")]
        for part in ("enc", "dec")
    )
    hidden_size, embedding_size = p["enc_w_hh"].shape[1], p["enc_emb"].shape[1]
    # Every one of the initial parameters is replaced.
    model = G2P(embedding_size, hidden_size, key=jr.key(0))
    encoder = eqx.tree_at(
        lambda m: (m.embedding.weight, m.cell),
        model.encoder,
        (p["enc_emb"], _load_cell(model.encoder.cell, *enc)),
    )
    decoder = eqx.tree_at(
        lambda m: (m.embedding.weight, m.cell, m.output.weight, m.output.bias),
        model.decoder,
        (p["dec_emb"], _load_cell(model.decoder.cell, *dec), p["fc_w"], p["fc_b"]),
    )
    return eqx.tree_at(lambda m: (m.encoder, m.decoder), model, (encoder, decoder))


def encode(word: str) -> Int[Array, "letters"]:
    """Returns the ids of a word's letters, which may be upper case, and of `</s>`."""
    if not word:
        raise ValueError("Cannot encode an empty word.")
    if invalid := sorted(set(word) - set(ascii_letters)):
        raise ValueError(f"Words consist of letters a-z; {word!r} also has {invalid}.")
    return jnp.array([GRAPHEMES.index(token) for token in [*word.lower(), "</s>"]])


def decode(logits: Float[Array, "steps phonemes"]) -> list[str]:
    """Returns the likeliest phoneme of each step, up to (and without) `</s>`."""
    phonemes = [PHONEMES[i] for i in jnp.argmax(logits, axis=-1).tolist()]
    return phonemes[: phonemes.index("</s>")] if "</s>" in phonemes else phonemes
