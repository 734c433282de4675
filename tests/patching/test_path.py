"""Path patching against two runs by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from closeness import assert_close
from parts import Chain
from residual import layers_of, metric, models, twin, WHERE
from swept import HEADS, inputs, LAYERS, TOKENS, WIDTH

import peex as px


SCANNED, UNROLLED = models()
CLEAN, CORRUPTED = inputs()


def path(model=SCANNED, clean=CLEAN, corrupted=CORRUPTED, metric=metric, **kwargs):
    default = {
        "senders": {"attn": WHERE["attn"]},
        "receivers": {"norm2": WHERE["norm2"]},
        "axes": "layer pos _",
    }
    return px.patching.path(model, clean, corrupted, metric, **default | kwargs)


@jax.jit
def values_of(x):
    return twin(SCANNED, x)[1]


def by_hand(sender, at, receivers, freeze=(), base=CORRUPTED, given=CLEAN):
    """The metric of two runs, for a place (a name and a layer) and an index in it."""
    base_values, given_values = values_of(base), values_of(given)
    # First: what the receivers have.
    change = {
        place: lambda value, place=place: base_values[place]
        for name in freeze
        for place in [(name, i) for i in layers_of(name)]
    }
    put = lambda value: value.at[at].set(given_values[sender][at])
    frozen = change.get(sender, lambda value: value)
    change[sender] = lambda value: put(frozen(value))
    places = [(name, i) for name in receivers for i in layers_of(name)]
    for place in places:
        if place != sender:
            change.pop(place, None)
    _, received = twin(SCANNED, base, change)
    # Then: what comes of that.
    change = {
        place: lambda value, place=place: received[place]
        for place in places
        if place != sender
    }
    return twin(SCANNED, base, change)[0]


def check_all(found, name, receivers, freeze=(), at=lambda j: j, **runs):
    layers, places = found[name].shape

    @jax.jit
    def run():
        one = lambda i, j: by_hand((name, i), at(j), receivers, freeze, **runs)
        row = lambda i: jax.vmap(lambda j: one(i, j))(jnp.arange(places))
        return jnp.stack([row(i) for i in range(layers)])

    expected = run()
    assert_close(found[name], expected, 1e-5)
    return expected


@pytest.mark.parametrize("freeze", [(), ("attn",), ("attn", "out")])
def test_equals_two_runs_by_hand(freeze):
    where = [WHERE[name] for name in freeze] or None
    found = path(freeze=where)
    assert found.axes == {"attn": ("layer", "pos")} and found.base == "corrupted"
    expected = check_all(found, "attn", ["norm2"], freeze)
    assert jnp.std(expected) > 1e-3
    assert_close(found.clean, twin(SCANNED, CLEAN)[0])
    assert_close(found.corrupted, twin(SCANNED, CORRUPTED)[0])


def test_frozen_is_another_effect():
    free, frozen = path(), path(freeze="layers.attn")
    assert jnp.max(jnp.abs(free["attn"] - frozen["attn"])) > 1e-3
    # In the last layer there is nothing between.
    assert_close(free["attn"][-1], frozen["attn"][-1])


def test_scanned_equals_unrolled():
    unrolled = path(
        UNROLLED,
        senders="layers.*.attn",
        receivers="layers.*.norm2:in",
        freeze=["layers.*.attn", "layers.*.out"],
        axes="pos _",
    )
    scanned = path(freeze=["layers.attn", "layers.out"])
    assert_close(unrolled.stack("layers.*.attn"), scanned["attn"])


def test_one_receiver():
    """By way of one layer's input; later senders have no path there."""
    found = path(
        UNROLLED,
        senders="layers.*.attn",
        receivers="layers.1.norm2:in",
        freeze="layers.*.out",
        axes="pos _",
    ).stack("layers.*.attn")
    assert_close(found[2], jnp.full(TOKENS, twin(SCANNED, CORRUPTED)[0]))
    _, base = twin(SCANNED, CORRUPTED)
    _, given = twin(SCANNED, CLEAN)
    put = lambda v: v.at[3].set(given["attn", 0][3])
    keep = lambda place: lambda _: base[place]
    _, received = twin(
        SCANNED, CORRUPTED, {("attn", 0): put, ("out", 0): keep(("out", 0))}
    )
    patch = lambda _: received["norm2", 1]
    expected = twin(SCANNED, CORRUPTED, {("norm2", 1): patch})[0]
    assert_close(found[0, 3], expected)
    assert abs(expected - twin(SCANNED, CORRUPTED)[0]) > 1e-3


def test_the_whole_stream_is_activation_patching():
    """By way of all that is read next, nothing is lost."""
    found = path(
        UNROLLED, senders="layers.0", receivers="layers.1.norm1:in", axes="pos _"
    )
    # The input of layer 1 is also added to its output, so it isn't all: with the layer
    # itself as the receiver, it is.
    whole = path(UNROLLED, senders="layers.0", receivers="layers.1:in", axes="pos _")
    swept = px.patching.sweep(
        UNROLLED,
        CLEAN,
        CORRUPTED,
        metric,
        where="layers.0",
        axes="pos _",
        progress=False,
    )
    assert_close(whole["layers.0"], swept["layers.0"])
    assert jnp.max(jnp.abs(found["layers.0"] - swept["layers.0"])) > 1e-3


def test_heads():
    found = path(
        senders={"z": WHERE["z"]},
        freeze="layers.attn.o:in",
        axes=f"layer _ (head={HEADS} _)",
    )
    size = WIDTH // HEADS
    at = lambda head: (slice(None), head * size + jnp.arange(size))
    check_all(found, "z", ["norm2"], ["z"], at)


def test_a_receiver_that_sends():
    """It isn't its own receiver."""
    found = path(receivers={"attn": WHERE["attn"]})
    assert_close(found["attn"][-1], jnp.full(TOKENS, twin(SCANNED, CORRUPTED)[0]))
    check_all(found, "attn", ["attn"])


def test_receivers_are_not_frozen():
    found = path(freeze=["layers.norm2:in", "layers.attn"])
    assert_close(found["attn"], path(freeze="layers.attn")["attn"])


def test_noising_and_sources():
    found = path(direction="noising")
    assert found.base == "clean"
    check_all(found, "attn", ["norm2"], base=CLEAN, given=CORRUPTED)
    zero = path(source="zero")
    log = px.Log({"attn": jnp.zeros((LAYERS, TOKENS, WIDTH))})
    assert_close(path(source=log)["attn"], zero["attn"])
    assert jnp.max(jnp.abs(path()["attn"] - zero["attn"])) > 1e-3


@pytest.mark.parametrize("batch_size", [1, 5, 100])
def test_some_at_a_time(batch_size):
    found = path(batch_size=batch_size, freeze="layers.attn")
    assert_close(found["attn"], path(freeze="layers.attn")["attn"])


def test_any_metric():
    found = path(metric=lambda out: {"all": out, "best": jnp.argmax(out)})
    assert found["attn"]["all"].shape == (LAYERS, TOKENS, 3)
    assert_close(jax.vmap(jax.vmap(metric))(found["attn"]["all"]), path()["attn"])
    assert found["attn"]["best"].dtype == found.clean["best"].dtype


def test_calls_of_one_layer():
    model = Chain(eqx.nn.Linear(3, 3, key=jax.random.key(0)))
    clean, corrupted = jnp.arange(3.0), jnp.ones(3)
    found = path(
        model,
        clean,
        corrupted,
        jnp.sum,
        senders="cell",
        receivers={"last": "cell:in#2"},
        axes="i",
    )
    assert list(found) == ["cell", "cell#1", "cell#2"]
    base = jnp.sum(model(corrupted))
    # The last call itself is behind what it is given.
    assert_close(found["cell#2"], jnp.full(3, base))
    first = model.cell(corrupted).at[1].set(model.cell(clean)[1])
    expected = jnp.sum(jnp.tanh(model.cell(jnp.tanh(model.cell(jnp.tanh(first))))))
    assert_close(found["cell"][1], expected)


def test_under_jit_and_vmap():
    run = lambda corrupted: path(corrupted=corrupted, freeze="layers.attn")["attn"]
    several = jnp.stack([CORRUPTED, 0.5 * CORRUPTED])
    found = jax.jit(jax.vmap(run))(several)
    for i, corrupted in enumerate(several):
        assert_close(found[i], run(corrupted))


def test_a_receiver_before_its_sender():
    match = (
        r"^The receiver 'layers.0.norm2:in' runs before all of the senders "
        r"\('layers.1.attn', 'layers.2.attn'\), so no path leads there\. Choose "
        r"receivers that come later, as the arguments of a later layer: "
        r"`receivers='layers.3:in'`"
    )
    with pytest.raises(px.PeexError, match=match):
        path(
            UNROLLED,
            senders=["layers.1.attn", "layers.2.attn"],
            receivers=["layers.2.norm2:in", "layers.0.norm2:in"],
            axes="pos _",
        )
    with pytest.raises(px.PeexError, match="The receiver 'embed' runs before all of"):
        path(receivers="embed")
    # At another step of the loop it is after it.
    path(senders={"out": WHERE["out"]}, receivers=WHERE["norm1"])


def test_refused():
    with pytest.raises(px.HookShapeError, match="'layer pos' names 2"):
        path(axes="layer pos")
    with pytest.raises(px.PeexError, match="'_ _ _' names no axis of the site 'attn'"):
        path(axes="_ _ _")
    with pytest.raises(px.SiteNotFoundError, match="`where='atn'` matches nothing"):
        path(freeze="atn")
    with pytest.raises(px.LogShapeError, match=r"f32\[3,3,6\] in the corrupted one"):
        path(corrupted=CORRUPTED[:-1])
    with pytest.raises(TypeError, match="`batch_size=0` is how many places"):
        path(batch_size=0)
    with pytest.raises(TypeError, match="`direction='back'` isn't known"):
        path(direction="back")
    with pytest.raises(TypeError, match="`source='dirty'` isn't known"):
        path(source="dirty")
