"""Activation patching at every place, against a loop over hand-written patches."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import parts
import pytest
import swept
from closeness import assert_close
from swept import HEADS, LAYERS, TOKENS, WHERE

import peex as px


SCANNED, UNROLLED = swept.models()
CLEAN, CORRUPTED = swept.inputs()


def metric(logits):
    return logits[0] - logits[1]


def sweep(model=SCANNED, metric=metric, **kwargs):
    default = {"where": WHERE, "axes": "layer pos _", "progress": False}
    return px.patching.sweep(model, CLEAN, CORRUPTED, metric, **default | kwargs)


def looped(name, indices, layers=range(LAYERS), width=1, **kwargs):
    """The metric with a value replaced at each layer and index: `[layers, indices]`."""
    source, base = kwargs.get("source", CLEAN), kwargs.get("base", CORRUPTED)
    _, values = swept.twin(SCANNED, source) if source is not None else (None, None)
    values = values or {name: [jnp.zeros_like(base)] * LAYERS}
    run = lambda at: metric(swept.twin(SCANNED, base, (name, *at, values))[0])
    rows = [[run((range(i, i + width), at)) for at in indices] for i in layers]
    return jnp.array(rows)


POSITIONS = [np.s_[pos] for pos in range(TOKENS)]
HALF = swept.WIDTH // HEADS
BY_HEAD = [np.s_[:, h * HALF : (h + 1) * HALF] for h in range(HEADS)]


def test_all_sites_equal_a_loop_over_patches():
    effects = sweep()
    assert list(effects) == ["z", "attn", "mlp", "resid"]
    assert set(effects.axes.values()) == {("layer", "pos")}
    for name in WHERE:
        assert_close(effects[name], looped(name, POSITIONS))
    assert_close(effects.clean, metric(swept.twin(SCANNED, CLEAN)[0]))
    assert_close(effects.corrupted, metric(swept.twin(SCANNED, CORRUPTED)[0]))
    # The last layer at the last token is all that the output is made of.
    assert_close(effects.normalised()["resid"][-1, -1], jnp.array(1.0), rtol=1e-5)
    assert effects.base == "corrupted"


def test_heads():
    effects = sweep(where={"z": WHERE["z"]}, axes=f"layer _ (head={HEADS} _)")
    assert effects.axes == {"z": ("layer", "head")}
    assert_close(effects["z"], looped("z", BY_HEAD))


def test_axes_of_each_site():
    axes = {"z": f"layer _ (head={HEADS} _)", "**": "_ pos _"}
    effects = sweep(where={"z": WHERE["z"], "mlp": "layers.mlp"}, axes=axes)
    assert effects.axes == {"z": ("layer", "head"), "mlp": ("pos",)}
    assert_close(effects["z"], looped("z", BY_HEAD))
    every = looped("mlp", POSITIONS, layers=[0], width=LAYERS)[0]
    assert_close(effects["mlp"], every)


def test_unrolled_equals_scanned():
    scanned = sweep()
    where = {
        name: pattern.replace("layers", "layers.*") for name, pattern in WHERE.items()
    }
    unrolled = sweep(UNROLLED, where=where, axes="pos _")
    for name in WHERE:
        assert_close(unrolled.stack(f"{name}.*"), scanned[name])
    assert_close(unrolled.clean, scanned.clean)


def test_noising():
    effects = sweep(direction="noising")
    expected = looped("attn", POSITIONS, source=CORRUPTED, base=CLEAN)
    assert_close(effects["attn"], expected)
    assert effects.base == "clean"
    assert_close(effects.normalised()["resid"][-1, -1], jnp.array(0.0), atol=1e-5)


def test_zeros():
    effects = sweep(source="zero")
    assert_close(effects["attn"], looped("attn", POSITIONS, source=None))


def test_means_over_positions():
    effects = sweep(source="mean", axes="layer _ _")
    _, values = swept.twin(SCANNED, CLEAN)
    means = {"mlp": [jnp.broadcast_to(v.mean(0), v.shape) for v in values["mlp"]]}
    run = lambda i: swept.twin(SCANNED, CORRUPTED, ("mlp", [i], np.s_[:], means))[0]
    assert_close(effects["mlp"], jnp.stack([metric(run(i)) for i in range(LAYERS)]))


def batched(model, xs):
    return jax.vmap(model)(xs)


def each(logits):
    return logits[:, 0] - logits[:, 1]


def test_a_metric_of_each_example():
    clean, corrupted = swept.inputs(2)
    kwargs = {"where": "layers.mlp", "axes": "layer _ pos _", "method": batched}
    effects = px.patching.sweep(SCANNED, clean, corrupted, each, **kwargs)
    assert effects["layers.mlp"].shape == (LAYERS, TOKENS, 2)
    for i in range(2):
        expected = looped("mlp", POSITIONS, source=clean[i], base=corrupted[i])
        assert_close(effects["layers.mlp"][..., i], expected)
    assert effects.clean.shape == (2,)
    means = px.patching.sweep(SCANNED, clean, corrupted, each, source="mean", **kwargs)
    log = px.ForwardHook(SCANNED, where="layers.mlp", method=batched)(clean)[1]
    mean = jnp.broadcast_to(
        log["layers.mlp"].mean(1, keepdims=True), log["layers.mlp"].shape
    )
    own = px.patching.sweep(
        SCANNED, clean, corrupted, each, source=px.Log({"layers.mlp": mean}), **kwargs
    )
    assert_close(means["layers.mlp"], own["layers.mlp"])


def test_runs_rewired_by_a_log_of_ones_own():
    xs = swept.inputs(4)[0]
    log = px.ForwardHook(SCANNED, where="layers.mlp", method=batched)(xs)[1]
    a, b, c, _ = jnp.moveaxis(log["layers.mlp"], 1, 0)
    # Of another float dtype, as saved ones may be.
    mine = jnp.stack([a, 0.5 * b, 0 * c, a], axis=1)
    effects = px.patching.sweep(
        SCANNED,
        xs,
        xs,
        each,
        where="layers.mlp",
        axes="layer _ _ _",
        method=batched,
        source=px.Log({"layers.mlp": np.asarray(mine, np.float64)}),
    )
    for i in range(4):
        new = {"mlp": list(mine[:, i])}
        run = lambda layer: swept.twin(SCANNED, xs[i], ("mlp", [layer], np.s_[:], new))  # noqa: B023
        expected = jnp.stack([metric(run(layer)[0]) for layer in range(LAYERS)])
        assert_close(effects["layers.mlp"][:, i], expected)
    assert_close(effects["layers.mlp"][:, 0], jnp.full(LAYERS, effects.clean[0]))


def several(logits):
    return {"best": jnp.argmax(logits), "margin": metric(logits), "all": logits}


def test_several_metrics():
    effects = sweep(metric=several)
    assert effects["z"]["all"].shape == (LAYERS, TOKENS, 3)
    assert effects["z"]["best"].dtype == effects.clean["best"].dtype == jnp.int32
    assert_close(effects["z"]["margin"], sweep()["z"])


@pytest.mark.parametrize("windows", [2, {"layer": 2}], ids=["int", "dict"])
def test_windows_of_layers(windows):
    effects = sweep(windows=windows, where={"mlp": "layers.mlp"})
    expected = looped("mlp", POSITIONS, layers=range(LAYERS - 1), width=2)
    assert_close(effects["mlp"], expected)


def test_windows_of_positions():
    effects = sweep(windows={"pos": 3}, where={"mlp": "layers.mlp"})
    expected = looped("mlp", [np.s_[i : i + 3] for i in range(TOKENS - 2)])
    assert_close(effects["mlp"], expected)


@pytest.mark.parametrize("batch_size", [1, 5, 12, 100])
def test_chunks(batch_size):
    # 12 places: alone, in 3 chunks of 4, and all at once.
    effects = sweep(where={"mlp": "layers.mlp"}, batch_size=batch_size)
    assert_close(effects["mlp"], looped("mlp", POSITIONS))


def test_the_last_chunk_is_padded():
    # 7 places in 3 chunks of 3.
    cell = jnp.linspace(0.5, 2.0, 7)
    model = parts.Whole(eqx.nn.Lambda(jnp.tanh), lambda fn, x: fn(x * cell))
    clean, corrupted = jnp.ones(7), jnp.zeros(7)
    effects = px.patching.sweep(
        model, clean, corrupted, jnp.sum, where="part", axes="unit", batch_size=3
    )
    assert_close(effects["part"], jnp.tanh(cell))


def test_windows_of_both():
    mlp = {"where": {"mlp": "layers.mlp"}, "windows": {"layer": 2, "pos": 3}}
    slices = [np.s_[i : i + 3] for i in range(TOKENS - 2)]
    expected = looped("mlp", slices, layers=range(LAYERS - 1), width=2)
    assert_close(sweep(**mlp)["mlp"], expected)
    heads = {"where": {"z": WHERE["z"]}, "axes": f"layer _ (head={HEADS} _)"}
    both = looped("z", [np.s_[:, :]], layers=range(LAYERS - 1), width=2)
    assert_close(sweep(windows={"layer": 2, "head": HEADS}, **heads)["z"], both)


def test_windows_over_layers_in_a_list():
    kwargs = {"where": "layers.*.mlp", "axes": "pos _", "windows": {"layers.*.mlp": 2}}
    effects = sweep(UNROLLED, **kwargs)
    expected = looped("mlp", POSITIONS, layers=range(LAYERS - 1), width=2)
    assert list(effects) == [f"layers.{i}.mlp" for i in range(LAYERS - 1)]
    assert_close(effects.stack("layers.*.mlp"), expected)
    small = sweep(UNROLLED, batch_size=2, **kwargs)
    assert_close(small.stack("layers.*.mlp"), expected)
    both = kwargs["windows"] | {"pos": TOKENS}
    whole = sweep(UNROLLED, **kwargs | {"windows": both})
    assert_close(
        whole.stack("layers.*.mlp"),
        looped("mlp", [np.s_[:]], layers=range(LAYERS - 1), width=2),
    )
