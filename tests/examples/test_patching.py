"""`examples/patching.py` on a random model, next to patches and gradients by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import llama
import numpy as np
import patching
import pytest
import smollm2
from closeness import assert_close
from pictures import check_picture


CONFIG = llama.Config(vocab=256, width=8, hidden=16, depth=2, heads=2, kv_heads=1)
PROMPTS, ANSWERS = ("abcd", "abed"), ("x", "y")
ZEROS = jnp.zeros((2, 4, 8))


@pytest.fixture(scope="module")
def model():
    return llama.Llama(CONFIG, key=jax.random.key(0))


@pytest.fixture(scope="module")
def tokenizer():
    return smollm2.Tokenizer(smollm2.LETTERS, [])


@pytest.fixture(scope="module")
def result(model, tokenizer, tmp_path_factory):
    out = tmp_path_factory.mktemp("pictures") / "x.png"
    result = patching.main(
        model, tokenizer, prompts=PROMPTS, answers=ANSWERS, batch_size=5, out=out
    )
    check_picture(out)
    check_picture(out.with_name("x_attribution.png"))
    return result


def logit_difference(model, tokens, offsets, heads):
    """Also what the layers return, after offsets are added to it, and what `o_proj` is
    given, which is set to `heads` where these aren't NaN.
    """
    without = eqx.tree_at(lambda m: m.attn.o_proj, model.layers, eqx.nn.Identity())
    x, outputs, given = jax.vmap(model.embedding)(tokens), [], []
    for i in range(CONFIG.depth):
        at_layer = lambda tree, i=i: jax.tree.map(
            lambda a: a[i] if eqx.is_array(a) else a, tree
        )
        block = at_layer(model.layers)
        z = at_layer(without).attn(jax.vmap(block.attn_norm)(x), 0)
        given.append(z)
        x = x + jax.vmap(block.attn.o_proj)(jnp.where(jnp.isnan(heads[i]), z, heads[i]))
        x = x + jax.vmap(block.mlp)(jax.vmap(block.mlp_norm)(x)) + offsets[i]
        outputs.append(x)
    logits = model.norm(x[-1]) @ model.embedding.weight.T
    difference = logits[ord("x")] - logits[ord("y")]
    return difference, (jnp.stack(outputs), jnp.stack(given))


@pytest.fixture(scope="module")
def by_hand(model):
    of = jax.jit(jax.value_and_grad(logit_difference, argnums=2, has_aux=True))
    return lambda tokens, offsets=ZEROS, heads=ZEROS * jnp.nan: of(
        model, tokens, offsets, heads
    )


@pytest.fixture(scope="module")
def runs(by_hand, tokenizer):
    """Of both prompts: the difference, the layers' outputs, the heads, and for the
    second the gradient at the layers' outputs.
    """
    (clean, (outputs, heads)), _ = by_hand(tokenizer.encode(PROMPTS[0]))
    (base, (others, _)), grads = by_hand(tokenizer.encode(PROMPTS[1]))
    return clean, base, outputs - others, heads, grads


def test_letters_are_tokens(tokenizer):
    assert tokenizer.encode("x")[0] == ord("x")


def test_residual_by_hand(by_hand, tokenizer, result, runs):
    clean, base, moved, _, _ = runs
    for layer, position in ((0, 2), (0, 3), (1, 3)):
        offsets = ZEROS.at[layer, position].set(moved[layer, position])
        (found, _), _ = by_hand(tokenizer.encode(PROMPTS[1]), offsets)
        expected = (found - base) / (clean - base)
        assert_close(result.swept["residual"][layer, position], expected, rtol=1e-4)
    # Behind the last layer, all is at the last token.
    assert_close(result.swept["residual"][1, 3], jnp.array(1.0), rtol=1e-4)
    assert_close(result.swept["residual"][1, :3], jnp.zeros(3), rtol=1e-5)


def test_heads_by_hand(by_hand, tokenizer, result, runs):
    clean, base, _, heads, _ = runs
    for layer, head in ((0, 1), (1, 0)):
        mine = (jnp.arange(8) // 4 == head) & (jnp.arange(2) == layer)[:, None, None]
        put_in = jnp.where(mine, heads, jnp.nan)
        (found, _), _ = by_hand(tokenizer.encode(PROMPTS[1]), heads=put_in)
        expected = (found - base) / (clean - base)
        assert_close(result.swept["heads"][layer, head], expected, rtol=1e-4)


def test_attribution_by_hand(result, runs):
    clean, base, moved, _, grads = runs
    expected = jnp.sum(moved * grads, axis=-1) / (clean - base)
    assert_close(result.attributed["residual"], expected, rtol=1e-4)


def test_correlation_by_hand(result):
    assert list(result.correlations) == list(result.swept)
    for site, found in result.correlations.items():
        x, y = (np.ravel(r[site]) for r in (result.swept, result.attributed))
        x, y = x - x.mean(), y - y.mean()
        assert found == pytest.approx(x @ y / np.sqrt((x @ x) * (y @ y)), abs=1e-4)


def test_what_is_printed(capsys):
    swept = patching.px.patching.Effects(
        {"mlp": jnp.array([[0.25, -0.5]])},
        {"mlp": ("layer", "pos")},
        clean=jnp.array(1.0),
        corrupted=jnp.array(0.0),
    )
    patching.show(
        patching.Result(swept, swept, {"mlp": 0.125}), swept, PROMPTS, ANSWERS
    )
    printed = capsys.readouterr().out
    assert "Logit of 'x' minus that of 'y':" in printed
    assert "  1.000  'abcd'" in printed and "  0.000  'abed'" in printed
    assert "mlp        layer 0, pos 1      -0.500  -0.500" in printed
    assert "mlp        0.1250" in printed
