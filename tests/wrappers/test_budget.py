"""`ForwardHook(..., max_bytes=...)`: raises before anything runs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax import lax

import peex as px


def mlp():
    return eqx.nn.MLP(2, 3, 8, depth=2, key=jax.random.key(0))


X = jnp.ones(2)
# Of three layers: 8, 8 and 3 numbers.
TOTAL = 4 * (8 + 8 + 3)


def test_within():
    out, log = px.ForwardHook(mlp(), max_bytes=TOTAL)(X)
    assert jnp.array_equal(out, mlp()(X))
    assert sum(x.nbytes for x in jax.tree.leaves(log)) == TOTAL


def test_over():
    hooked = px.ForwardHook(mlp(), max_bytes=TOTAL - 1)
    match = (
        r"^The log of this call would take 76 B \(76 bytes\), more than "
        r"`max_bytes=75`\. Nothing has run\. The largest of its 3 entries: "
        r"'layers\.0' 32 B, f32\[8\]; 'layers\.1' 32 B, f32\[8\]; 'layers\.2' 12 B, "
        r"f32\[3\]\. Choose fewer sites with `where`, or record less of each, as in "
        r"`log_fn=px\.MeanStdLog\(\)`\."
    )
    for call in (hooked, eqx.filter_jit(hooked), eqx.filter_checkpoint(hooked)):
        with pytest.raises(px.LogTooLargeError, match=match):
            call(X)
    with pytest.raises(px.LogTooLargeError, match=match):
        eqx.filter_eval_shape(hooked, X)
    with pytest.raises(px.LogTooLargeError, match=match):
        eqx.filter_grad(lambda h: jnp.sum(h(X)[0]))(hooked)


def test_nothing_runs():
    ran = []

    def run(model, x):
        jax.debug.callback(lambda: ran.append(1))
        return model(x)

    with pytest.raises(px.LogTooLargeError):
        px.ForwardHook(mlp(), method=run, max_bytes=0)(X)
    jax.effects_barrier()
    assert ran == []
    px.ForwardHook(mlp(), method=run, max_bytes=TOTAL)(X)
    jax.effects_barrier()
    assert ran == [1]


def test_of_a_size_that_no_machine_has():
    def run(model, x):
        return lax.scan(lambda x, _: (model(x), None), x, length=10**12)[0]

    cell = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    with pytest.raises(
        px.LogTooLargeError, match=r"8\.00 TB .* f32\[1000000000000,2\]"
    ):
        px.ForwardHook(cell, method=run, max_bytes=10**9)(X)


def test_what_is_logged_counts():
    # Not what flows.
    means = px.ForwardHook(mlp(), log_fn=px.MeanLog(), max_bytes=3 * 4)
    assert len(means(X)[1]) == 3
    px.ForwardHook(mlp(), where="layers.2", max_bytes=12)(X)
    px.ForwardHook(mlp(), log_fn=None, max_bytes=0)(X)


def test_counts_count():
    # How often a site in a branch ran is logged as well, as an int32.
    def run(model, x):
        return lax.cond(x[0] > 0, lambda x: model(x), lambda x: jnp.zeros(3), x)

    def hooked(max_bytes):
        linear = eqx.nn.Linear(2, 3, key=jax.random.key(0))
        return px.ForwardHook(linear, method=run, max_bytes=max_bytes)

    hooked(3 * 4 + 4)(X)
    with pytest.raises(px.LogTooLargeError, match="would take 16 B"):
        hooked(3 * 4 + 3)(X)


def test_outside_vmap_is_per_example():
    jax.vmap(px.ForwardHook(mlp(), max_bytes=TOTAL))(jnp.ones((5, 2)))
    inside = px.ForwardHook(eqx.filter_vmap(mlp()), max_bytes=TOTAL)
    with pytest.raises(px.LogTooLargeError, match="would take 380 B"):
        inside(jnp.ones((5, 2)))


def test_the_state_is_used_once():
    model, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(
        3, axis_name="batch", mode="batch"
    )

    def run(model, xs, state):
        one = lambda x, s: model(x, s)
        return jax.vmap(one, (0, None), (0, None), axis_name="batch")(xs, state)

    hooked = px.ForwardHook(model, method=run, max_bytes=1000)
    (out, state), _ = hooked(jnp.ones((5, 3)), state)
    hooked(jnp.ones((5, 3)), state)


def test_a_budget_is_a_number():
    with pytest.raises(TypeError, match="`max_bytes=-1` is how many bytes a log may"):
        px.ForwardHook(mlp(), max_bytes=-1)
