"""`examples/steering.py` on a random model, next to generation without a cache."""

import equinox as eqx
import jax
import jax.numpy as jnp
import llama
import pytest
import smollm2
import steering
from closeness import assert_close
from pictures import check_picture


CONFIG = llama.Config(vocab=256, width=8, hidden=16, depth=3, heads=2, kv_heads=1)


@pytest.fixture(scope="module")
def model():
    model = llama.Llama(CONFIG, key=jax.random.key(0))
    # Else the token that was read is the likeliest.
    louder = lambda m: [m.layers.attn.o_proj.weight, m.layers.mlp.down_proj.weight]
    return eqx.tree_at(louder, model, replace_fn=lambda w: 6 * w)


def streams(model, tokens, change=lambda x, layer: x):
    """What each layer returns, as `change` leaves it."""
    x, found = jax.vmap(model.embedding)(tokens), []
    arrays, static = eqx.partition(model.layers, eqx.is_array)
    for i in range(model.config.depth):
        block = eqx.combine(jax.tree.map(lambda a, i=i: a[i], arrays), static)
        x = change(block(x, 0), i)
        found.append(x)
    return found


def by_hand(model, prompt, vectors, layer, strength, steps):
    tokens = prompt.tolist()
    for _ in range(len(steps) + 1 - len(prompt)):
        read = steps[: len(tokens)][:, None].astype(jnp.float32)

        def change(x, i, read=read):
            return x + strength * read * vectors[i] if i == layer else x

        x = streams(model, jnp.array(tokens), change)[-1][-1]
        tokens.append(int(jnp.argmax(model.norm(x) @ model.embedding.weight.T)))
    return tokens[len(prompt) :]


def test_vectors_are_added_at_one_layer_and_some_tokens(model):
    prompt = jnp.array([3, 1, 4, 1])
    vectors = jax.random.normal(jax.random.key(1), (3, 8))
    steps = jnp.array([0, 1, 0, 1, 0, 1], bool)
    found = set()
    for layer, strength in ((0, 8.0), (2, 8.0), (0, 0.0)):
        at = jnp.array(layer), jnp.array(strength)
        written = steering.steered(model, prompt, vectors, *at, steps).tolist()
        assert written == by_hand(model, prompt, vectors, layer, strength, steps)
        found.add(tuple(written))
    assert len(found) == 3  # the vectors do something


def test_means(model):
    sentences = [jnp.array([1, 2, 3]), jnp.array([5, 4])]
    found = steering.means(model, sentences)
    one, other = (jnp.stack(streams(model, tokens)) for tokens in sentences)
    expected = (jnp.mean(one[:, 1:], axis=1) + other[:, 1]) / 2
    assert_close(found, expected, rtol=1e-5)


def test_share_of_french_words():
    assert steering.french("Le chat est 1 cat, sur la table!") == 4 / 7
    assert steering.french("The cat is on the table") == 0
    assert steering.french("... 12") == 0


def test_whole_script(model, tmp_path, capsys):
    out = tmp_path / "x.png"
    result = steering.main(
        model,
        smollm2.Tokenizer(smollm2.LETTERS, []),
        prompts=("ab", "cde"),
        pair=(("abc", "ad"), ("bc", "de")),
        layer=1,
        layers=(0, 2),
        strengths=(0.5, 1.0, 2.0),
        new=4,
        out=out,
    )
    assert list(result.texts) == ["without", "at 1 tokens", "at all 4"]
    assert result.shares.shape == (2, 3)
    check_picture(out)
    printed = capsys.readouterr().out
    assert "Without (0% French words):\n    ab" in printed
    assert f"Saved the picture as {out}" in printed
