"""`examples/induction.py`: its scores, and its sweep next to heads replaced by hand."""

import induction
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close
from pictures import check_picture


SIZES = {"vocab": 8, "width": 8, "heads": 2, "length": 10}


def test_blocks_are_repeated():
    tokens = induction.repeated(jax.random.key(0), 7, 10, jnp.array(4)).tolist()
    assert tokens[4:] == tokens[:6]
    assert len(set(tokens[:4])) == 4


def test_log_likelihood_by_hand():
    model = induction.Transformer(8, 8, 2, 5, key=jax.random.key(0))
    tokens = jnp.array([3, 1, 3, 1, 3])
    probabilities = np.asarray(jax.nn.softmax(model(tokens)))
    expected = np.mean([np.log(probabilities[i - 1, tokens[i]]) for i in (3, 4)])
    found = induction.log_likelihood(model, tokens, jnp.array(2))
    assert_close(found, jnp.float32(expected), rtol=1e-5)


def test_scores():
    # Of head 1 all attention is on the token before, of head 0 on the token itself.
    pattern = jnp.stack([jnp.eye(6), jnp.eye(6, k=-1)])[None, None]
    assert induction.score(pattern, 1, 0).tolist() == [[0, 1]]
    assert induction.score(pattern, 0, 3).tolist() == [[1, 0]]
    # From position 3 on, two back: 0.5 at position 4 alone.
    pattern = jnp.zeros((1, 1, 1, 6, 6)).at[..., 4, 2].set(0.5).at[..., 2, 0].set(1)
    assert_close(induction.score(pattern, 2, 3), jnp.array([[0.5 / 3]]))


def forward(model, tokens, heads=None):
    """The logits, what each head gives, and the patterns; `heads` are used instead
    where they are given and not NaN.
    """
    x, given, patterns = jax.vmap(model.embedding)(tokens), [], []
    for i in range(2):
        layer = jax.tree.map(lambda a, i=i: a[i], model.layers)
        attn, normed = layer.attn, jax.vmap(layer.norm)(x)
        placed = normed + model.positions
        zs = []
        for head in range(attn.heads):
            mine = slice(4 * head, 4 * head + 4)
            q, k = (placed @ w.weight[mine].T for w in (attn.q_proj, attn.k_proj))
            scores = q @ k.T / 2
            masked = jnp.where(jnp.tril(jnp.ones_like(scores)) > 0, scores, -jnp.inf)
            patterns.append(jax.nn.softmax(masked))
            zs.append(patterns[-1] @ (normed @ attn.v_proj.weight[mine].T))
        given.append(jnp.concatenate(zs, axis=1))
        z = given[-1]
        z = z if heads is None else jnp.where(jnp.isnan(heads[i]), z, heads[i])
        x = x + z @ attn.o_proj.weight.T
    logits = jax.vmap(model.norm)(x) @ model.unembedding.weight.T
    return logits, jnp.stack(given), jnp.stack(patterns)


def test_a_head_alone_by_hand(tmp_path, monkeypatch):
    # What the script trains, and what it runs that on.
    seen, sweep = {}, induction.px.patching.sweep

    def untrained(model, *args, **kwargs):
        seen.update(model=model)
        return model, [1.0]

    def spied(model, clean, corrupted, *args, **kwargs):
        seen.update(clean=clean, corrupted=corrupted)
        return sweep(model, clean, corrupted, *args, **kwargs)

    monkeypatch.setattr(induction, "fit", untrained)
    monkeypatch.setattr(induction.px.patching, "sweep", spied)
    result = induction.main(**SIZES, batch=3, out=tmp_path / "x.png")

    model, clean, corrupted = seen["model"], seen["clean"], seen["corrupted"]
    assert jnp.array_equal(clean[:, 5:], clean[:, :5])
    assert jnp.array_equal(clean[:, 5:], corrupted[:, 5:])
    assert not jnp.array_equal(clean, corrupted)

    def likelihood(logits, tokens):
        logits = jax.nn.log_softmax(logits)
        return jnp.mean(jnp.stack([logits[i - 1, tokens[i]] for i in range(6, 10)]))

    runs = [forward(model, tokens) for tokens in clean]
    best = sum(likelihood(r[0], t) for r, t in zip(runs, clean, strict=True))
    none = sum(likelihood(forward(model, t)[0], t) for t in corrupted)
    for layer, head in ((0, 1), (1, 0)):
        mine = (jnp.arange(8) // 4 == head) & (jnp.arange(2) == layer)[:, None, None]
        put_in = [jnp.where(mine, heads, jnp.nan) for _, heads, _ in runs]
        pairs = zip(corrupted, put_in, strict=True)
        alone = sum(likelihood(forward(model, t, z)[0], t) for t, z in pairs)
        expected = (alone - none) / (best - none)
        assert_close(result.recovered[layer, head], expected, rtol=1e-3)

    pattern = jnp.mean(jnp.stack([r[2] for r in runs]), axis=0)  # over examples
    to_next = jnp.mean(jnp.diagonal(pattern, -4, 1, 2)[:, 1:], axis=1)
    assert_close(result.induction.ravel(), to_next, rtol=1e-4)
    to_previous = jnp.mean(jnp.diagonal(pattern, -1, 1, 2), axis=1)
    assert_close(result.previous.ravel(), to_previous, rtol=1e-4)


@pytest.mark.usefixtures("standard_promotion")  # Optax promotes dtypes
def test_whole_script(tmp_path, capsys):
    out = tmp_path / "x.png"
    result = induction.main(**SIZES, batch=4, steps=4, out=out)
    assert len(result.losses) == 4
    assert result.losses[0] == pytest.approx(np.log(8), rel=0.5)
    check_picture(out)
    printed = capsys.readouterr().out
    assert "Correlation of the first two" in printed
    assert f"Saved the picture as {out}" in printed
