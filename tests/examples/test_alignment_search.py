"""`examples/alignment_search.py`: its examples and interchanges next to what is written
by hand, and the whole script, for a few steps.
"""

import alignment_search
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close
from pictures import check_picture


def test_examples_are_what_they_say():
    tokens, equal = alignment_search.make_examples(jax.random.key(0), 3, 400)
    assert tokens.shape == (400, 4) and set(tokens.ravel().tolist()) == {0, 1, 2}
    pairs = np.asarray(tokens).reshape(400, 2, 2)
    assert np.array_equal(equal, pairs[..., 0] == pairs[..., 1])
    assert 0.4 < np.mean(equal) < 0.6
    assert 0.4 < np.mean(equal[:, 0] == equal[:, 1]) < 0.6


def states(model, tokens, change=lambda state, step: state):
    state, found = jnp.zeros(model.cell.hidden_size), []
    for i, token in enumerate(tokens):
        state = change(model.cell(jax.nn.one_hot(token, model.symbols), state), i)
        found.append(state)
    return found


def test_interchange_by_hand():
    model = alignment_search.Parity(4, 6, key=jax.random.key(0))
    key = jax.random.key(2)
    base, source = (
        alignment_search.make_examples(k, 4, 5) for k in jax.random.split(key)
    )
    for site in (0, 3):
        hooked = alignment_search.wrap(model, jnp.array(site), 2, jax.random.key(1))
        basis = np.linalg.qr(np.asarray(hooked.hook_fn.hook.weight))[0]
        assert basis.shape == (6, 2)
        logits, right = alignment_search.interchange(hooked, key, 5)
        for i in range(5):
            given = states(model, source.tokens[i])[site]

            def change(state, step, given=given, site=site, basis=basis):
                moved = basis @ (basis.T @ (given - state))
                return state + moved if step == site else state

            state = states(model, base.tokens[i], change)[-1]
            assert_close(logits[i], model.output(state), rtol=1e-4)
            assert right[i] == (source.equal[i, 0] == base.equal[i, 1])


@pytest.mark.usefixtures("standard_promotion")  # Optax promotes dtypes
def test_whole_script(tmp_path, capsys):
    out = tmp_path / "x.png"
    result = alignment_search.main(
        seeds=2, width=5, steps=3, search_steps=2, batch=4, tests=16, out=out
    )
    assert result.networks.shape == (2,)
    assert result.random.shape == result.trained.shape == (2, 4)
    check_picture(out)
    printed = capsys.readouterr().out
    assert "chance is 0.5." in printed and f"Saved the picture as {out}" in printed
