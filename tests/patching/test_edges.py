"""Edges against gradients of a hand-written model."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from closeness import assert_close
from residual import gradient, layers_of, metric, models, twin, WHERE
from swept import inputs, LAYERS

import peex as px


SCANNED, UNROLLED = models()
CLEAN, CORRUPTED = inputs()
SENDERS = {name: WHERE[name] for name in ("embed", "attn", "out")}
RECEIVERS = {name: WHERE[name] for name in ("norm1", "norm2")}
AXES = {"embed": "pos _", "**": "layer pos _"}
# In a layer.
ORDER = ["norm1", "attn", "norm2", "out"]


def is_before(writer, reader):
    if writer[0] == "embed":
        return True
    return (writer[1], ORDER.index(writer[0])) < (reader[1], ORDER.index(reader[0]))


def edges(model=SCANNED, corrupted=CORRUPTED, **kwargs):
    default = {"senders": SENDERS, "receivers": RECEIVERS, "axes": AXES}
    return px.patching.edges(model, CLEAN, corrupted, metric, **default | kwargs)


@pytest.fixture(scope="module")
def by_hand():
    """From pairs of places to what the edge changes, by position."""
    writers = [(name, i) for name in SENDERS for i in layers_of(name)]
    readers = [(name, i) for name in RECEIVERS for i in layers_of(name)]

    @jax.jit
    def run():
        _, base = twin(SCANNED, CORRUPTED)
        _, given = twin(SCANNED, CLEAN)
        changes = {w: given[w] - base[w] for w in writers}
        return changes, {r: gradient(SCANNED, CORRUPTED, r) for r in readers}

    changes, grads = run()
    return {
        (w, r): (changes[w] * grads[r]).sum(-1) * float(is_before(w, r))
        for w in writers
        for r in readers
    }


def test_equal_gradients_by_hand(by_hand):
    found = edges()
    assert list(found) == [f"{w} -> {r}" for w in SENDERS for r in RECEIVERS]
    assert found.axes["embed -> norm1"] == ("reader_layer", "pos")
    assert found.axes["out -> norm2"] == ("writer_layer", "reader_layer", "pos")
    assert_close(found.corrupted, twin(SCANNED, CORRUPTED)[0])
    assert_close(found.clean, twin(SCANNED, CLEAN)[0])
    changes = found.changes()
    for (writer, i), (reader, j) in by_hand:
        mine = changes[f"{writer} -> {reader}"]
        mine = mine[j] if writer == "embed" else mine[i, j]
        assert_close(mine, by_hand[(writer, i), (reader, j)], 1e-5)


def test_scanned_equals_unrolled():
    scanned = edges()
    unrolled = edges(
        UNROLLED,
        senders=["embed", "layers.*.attn", "layers.*.out"],
        receivers=["layers.*.norm1:in", "layers.*.norm2:in"],
        axes="pos _",
    )
    assert len(unrolled) == (1 + 2 * LAYERS) * 2 * LAYERS
    for i in range(LAYERS):
        for j in range(LAYERS):
            mine = unrolled[f"layers.{i}.attn -> layers.{j}.norm2:in"]
            assert_close(mine, scanned["attn -> norm2"][i, j])
    assert_close(unrolled["embed -> layers.1.norm1:in"], scanned["embed -> norm1"][1])


@pytest.mark.parametrize("steps", [None, 2])
def test_add_up_to_what_the_reader_does(steps):
    found = edges(steps=steps).changes()
    whole = px.patching.attribution(
        SCANNED,
        CLEAN,
        CORRUPTED,
        metric,
        where=RECEIVERS,
        axes="layer pos _",
        steps=steps,
    ).changes()
    for reader in RECEIVERS:
        assert jnp.max(jnp.abs(whole[reader])) > 1e-2
        written = [found[f"{writer} -> {reader}"] for writer in ("attn", "out")]
        total = found[f"embed -> {reader}"] + sum(x.sum(0) for x in written)
        assert_close(total, whole[reader], 1e-5)


def test_summed_over_what_has_no_name():
    """Layers that are `_` are summed over, each edge in its order."""
    found = edges(axes={"embed": "_ _", "attn": "_ _ _", "**": "layer _ _"})
    whole = edges()
    assert found.axes["attn -> norm1"] == ("reader_layer",)
    expected = whole.changes()["attn -> norm1"].sum((0, 2))
    assert_close(found.changes()["attn -> norm1"], expected, 1e-5)


def test_noising_and_zeros():
    found = edges(direction="noising")
    assert found.base == "clean"
    other = px.patching.edges(
        SCANNED,
        CORRUPTED,
        CLEAN,
        metric,
        senders=SENDERS,
        receivers=RECEIVERS,
        axes=AXES,
    )
    assert_close(found["out -> norm2"], other["out -> norm2"])
    zeros = edges(source="zero").changes()
    _, base = twin(SCANNED, CORRUPTED)
    grad = gradient(SCANNED, CORRUPTED, ("norm2", 1))
    expected = (-base["embed", 0] * grad).sum(-1)
    assert_close(zeros["embed -> norm2"][1], expected, 1e-5)


class Heads(eqx.Module):
    """Writes a row for each head, which the stream gets the sum of."""

    weights: jax.Array
    read: eqx.nn.Identity
    each: eqx.nn.Identity
    end: eqx.nn.Identity

    def __call__(self, x):
        rows = self.each(jnp.tanh(jnp.einsum("hij,j->hi", self.weights, self.read(x))))
        return self.end(x + rows.sum(0))


def test_writers_of_one_site():
    weights = jax.random.normal(jax.random.key(0), (3, 4, 4))
    model = Heads(weights, *(eqx.nn.Identity() for _ in range(3)))
    clean, corrupted = jnp.arange(4.0), jnp.ones(4)
    loss = lambda y: jnp.sum(y**2)
    found = px.patching.edges(
        model,
        clean,
        corrupted,
        loss,
        senders=["read", "each"],
        receivers="end:in",
        axes={"each": "head _", "**": "_", "**:in": "_"},
    )
    assert found.axes == {"each -> end:in": ("writer_head",), "read -> end:in": ()}
    rows = lambda x: jnp.tanh(weights @ x)
    grad = 2 * (corrupted + rows(corrupted).sum(0))
    change = found.changes()
    expected = (rows(clean) - rows(corrupted)) @ grad
    assert_close(change["each -> end:in"], expected, 1e-5)
    assert_close(change["read -> end:in"], (clean - corrupted) @ grad, 1e-5)


def test_under_jit_and_vmap():
    run = lambda corrupted: edges(corrupted=corrupted)
    several = jnp.stack([CORRUPTED, 0.5 * CORRUPTED])
    found = jax.jit(jax.vmap(run))(several)
    for i, corrupted in enumerate(several):
        expected = run(corrupted)
        for key in expected:
            assert_close(found[key][i], expected[key], 1e-5)


def test_half_precision():
    """The rounding of the sums isn't taken for a sender that is missing."""
    cast = lambda x: x.astype(jnp.bfloat16) if eqx.is_inexact_array(x) else x
    found = px.patching.edges(
        jax.tree.map(cast, SCANNED),
        cast(CLEAN),
        cast(CORRUPTED),
        lambda out: metric(out.astype(jnp.float32)),
        senders=SENDERS,
        receivers=RECEIVERS,
        axes=AXES,
    )
    expected = edges()["attn -> norm2"]
    scale = jnp.max(jnp.abs(expected))
    assert_close(found["attn -> norm2"] / scale, expected / scale, 0.1)


@pytest.mark.parametrize(
    "missing, before",
    [("embed", "none"), ("out", "'embed', 'attn'")],
)
def test_senders_that_do_not_add_up(missing, before):
    senders = {name: where for name, where in SENDERS.items() if name != missing}
    with pytest.raises(
        px.PeexError,
        match=r"^The senders don't add up to what the receiver 'norm[12]' "
        r"\(layer \d\) is given: what they lack is \d+% of how that differs between "
        rf"the runs\. Those before it: {before}. Add to `senders` what .*attribution",
    ):
        edges(senders=senders, axes=AXES if "embed" in senders else AXES["**"])


def test_nothing_before_a_receiver():
    with pytest.raises(px.PeexError, match=r"'norm1' \(layer 0\).* before it: none"):
        edges(senders={"out": WHERE["out"]}, axes=AXES["**"])


def test_what_does_not_differ_may_be_missing():
    """As positions, that are the same in both runs."""
    model = Heads(jnp.ones((2, 3, 3)), *(eqx.nn.Identity() for _ in range(3)))
    run = lambda model, x: model.end(model.read(x) + 5.0)
    found = px.patching.edges(
        model,
        jnp.ones(3),
        jnp.zeros(3),
        jnp.sum,
        method=run,
        senders="read",
        receivers="end:in",
        axes="i",
    )
    assert_close(found["read -> end:in"], jnp.full(3, 16.0))


def test_that_are_no_terms_of_a_sum():
    match = (
        r"^'head' has the axes \[_ 3\], but 'norm1' has the axes \[_ 6\]: what is "
        r"written is added .* terms of one sum, .*receivers='layers.\*.norm:in'`; and"
    )
    with pytest.raises(px.LogShapeError, match=match):
        edges(senders=SENDERS | {"head": "head"}, axes={"head": "_"} | AXES)
    # Named where all have it, the axis is known by that.
    axes = {"embed": "pos unit", "head": "pos", "**": "layer pos unit"}
    match = r"^'head' has the axes \[pos 3\], but 'norm1' has the axes \[pos 4"
    with pytest.raises(px.LogShapeError, match=match):
        edges(senders=SENDERS | {"head": "head"}, axes=axes)


def test_refused():
    match = r"^`px.patching.edges` takes the gradient of the metric"
    with pytest.raises(px.PeexError, match=match):
        px.patching.edges(
            SCANNED,
            CLEAN,
            CORRUPTED,
            lambda out: out,
            senders=SENDERS,
            receivers=RECEIVERS,
            axes=AXES,
        )
    with pytest.raises(px.SiteNotFoundError, match="pattern 'atn' of `axes`"):
        edges(axes=AXES | {"atn": "layer pos _"})
    with pytest.raises(px.PeexError, match="says nothing of the site 'norm1'"):
        edges(axes={"embed": "pos _", "attn": "layer pos _", "out": "layer pos _"})
    with pytest.raises(TypeError, match="`direction='back'` isn't known"):
        edges(direction="back")
    with pytest.raises(TypeError, match="goes from the inputs of one run"):
        edges(source="zero", steps=2)
