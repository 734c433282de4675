"""What `px.patching` hands back."""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close

import peex as px


def effects(base="corrupted"):
    return px.patching.Effects(
        {
            "layers": jnp.array([[1.0, 2.0, 3.0], [4.0, 2.0, 1.5]]),
            "head": jnp.array([1.0, -3.0]),
        },
        {"layers": ("layer", "pos"), "head": ("pos",)},
        jnp.array(3.0),
        jnp.array(1.0),
        base,
    )


def several():
    """Two metrics, one of them for each of two examples."""
    metric = lambda x: {"rank": x, "loss": jnp.stack([x, 2 * x], -1)}
    runs = metric(jnp.array(3)), metric(jnp.array(1))
    values = {"a": metric(jnp.array([1, 2, 3])), "b#1": metric(jnp.array([5]))}
    return px.patching.Effects(values, {"a": ("pos",), "b#1": ("site",)}, *runs)


def test_reads_as_a_mapping():
    e = effects()
    assert list(e) == ["layers", "head"] == list(e.keys())
    assert len(e) == 2 and "head" in e and "pos" not in e
    assert e["head"].shape == (2,) and e.axes["layers"] == ("layer", "pos")
    assert dict(e.items())["head"] is e["head"] is e.values()[1]
    with pytest.raises(KeyError, match="'layer' isn't a site .* Nearest: 'layers'"):
        e["layer"]


def test_is_a_pytree():
    e = effects()
    doubled = jax.jit(lambda e: jax.tree.map(lambda x: 2 * x, e))(e)
    assert list(doubled) == list(e) and doubled.axes == e.axes
    assert_close(doubled["head"], 2 * e["head"])
    assert_close(doubled.clean, jnp.array(6.0))
    assert eqx.tree_equal(e, effects()) and not eqx.tree_equal(e, effects("clean"))


def test_normalised():
    n = effects().normalised()
    assert_close(n["layers"], jnp.array([[0.0, 0.5, 1.0], [1.5, 0.5, 0.25]]))
    assert_close(n["head"], jnp.array([0.0, -2.0]))
    assert (n.clean, n.corrupted) == (1, 0)
    assert_close(jax.jit(lambda e: e.normalised())(effects())["head"], n["head"])
    assert eqx.tree_equal(n.normalised(), n)


def test_normalised_for_each_metric_and_example():
    n = several().normalised()
    assert n["a"]["loss"].dtype == n["a"]["rank"].dtype == jnp.float32
    assert_close(n["a"]["loss"], jnp.array([[0.0, 0.0], [0.5, 0.5], [1.0, 1.0]]))
    assert_close(n["b#1"]["rank"], jnp.array([2.0]))
    assert_close(n.clean["loss"], jnp.ones(2))


@pytest.mark.parametrize("base, center", [("corrupted", 1.0), ("clean", 3.0)])
def test_changes(base, center):
    e = effects(base)
    assert_close(e.changes()["layers"], e["layers"] - center)
    assert_close(e.changes().clean, e.clean - center)
    assert_close(e.changes().normalised()["head"], e.normalised()["head"])


def test_nothing_to_normalise_by():
    e = px.patching.Effects({}, {}, jnp.array(2), jnp.array(2))
    with pytest.raises(
        px.PeexError,
        match="'metric' is 2 in the clean and in the corrupted run.*effects.changes",
    ):
        e.normalised()
    runs = {"x": jnp.array([1.0, 2.0])}, {"x": jnp.array([2.0, 2.0])}
    with pytest.raises(px.PeexError, match=r"'x' at \(1,\) is 2.0 in the clean"):
        px.patching.Effects({}, {}, *runs).normalised()


def test_stack():
    layer = lambda i: {"loss": jnp.full((3, 2), i)}
    values = {f"layers.{i}": layer(i) for i in (0, 10, 1, 2)}
    clean = {"loss": jnp.zeros(2, int)}
    others = {"layers.0/relu": layer(7), "odd.0": layer(1), "odd.1": clean}
    axes = dict.fromkeys([*values, "layers.0/relu", "odd.0"], ("pos",)) | {"odd.1": ()}
    e = px.patching.Effects(values | others, axes, clean, clean)
    stacked = e.stack("layers.*")["loss"]
    assert stacked.shape == (4, 3, 2) and stacked[:, 0, 0].tolist() == [0, 1, 2, 10]
    assert e.stack("layers.*/relu")["loss"].shape == (1, 3, 2)
    with pytest.raises(
        px.SiteNotFoundError, match="'layer.*' matches none.* 'layers.0'"
    ):
        e.stack("layer.*")
    with pytest.raises(
        px.PeexError,
        match=r"'odd.0' and 'odd.1' can't be stacked: .* \[pos 3\], of the other \[\]",
    ):
        e.stack("odd.*")


def test_top():
    e = effects()
    assert e.top(3) == [
        ("head", {"pos": 1}, -3.0),
        ("layers", {"layer": 1, "pos": 0}, 4.0),
        ("layers", {"layer": 0, "pos": 2}, 3.0),
    ]
    assert effects("clean").top(2)[1] == ("layers", {"layer": 0, "pos": 0}, 1.0)
    assert e.normalised().top(1)[0].value == -2
    assert len(e.top(100)) == 8
    assert px.patching.Effects({}, {}, 1.0, 0.0).top() == []


def test_map():
    e = several()
    one = e.map(lambda metric: metric["loss"].mean(-1))
    assert_close(one["a"], jnp.array([1.5, 3.0, 4.5]))
    assert_close(one.clean, jnp.array(4.5))
    assert one.axes == e.axes and one.top(1) == [("b#1", {"site": 0}, 7.5)]
    with pytest.raises(
        px.PeexError,
        match=r"makes \(2,\) of the metric at 'a': .* \('pos',\) of sizes \(3,\) have",
    ):
        e.map(lambda metric: metric["loss"].mean(0))


@pytest.mark.parametrize("method", ["top", "plot"])
def test_several_metrics_where_one_is_needed(method):
    with pytest.raises(
        px.PeexError,
        match=rf"`Effects.{method}` is for a metric that is one number, but this one "
        r"has 'loss' of shape \(2,\), 'rank' of shape \(\).*"
        rf"effects.map\(lambda metric: metric\['loss'\].mean\(-1\)\).{method}\(\)",
    ):
        getattr(several(), method)()


def test_shown():
    e = effects()
    assert repr(e) == "<Effects: layers [layer 2, pos 3], head [pos 2]>"
    many = px.patching.Effects(
        dict.fromkeys("abcde", jnp.ones(1)), dict.fromkeys("abcde", ("x",)), 1.0, 0.0
    )
    assert repr(many).endswith("c [x 1], and 2 more>")
    for shown in (str(e), e._repr_html_()):
        assert "layer 2, pos 3" in shown and "1.5" not in shown and "-3" in shown
        assert "clean: metric 3" in shown and "corrupted: metric 1" in shown
    assert "loss" in str(several()) and "clean: loss 3 to 6" in str(several())
    seen = []
    jax.jit(lambda e: seen.append(f"{e!r} {e}"))(e)
    assert seen[0].startswith(repr(e)) and "?" in seen[0]


def test_dataframe():
    pandas = pytest.importorskip("pandas")
    frame = effects().to_dataframe()
    assert list(frame) == ["site", "layer", "pos", "metric"] and len(frame) == 8
    row = frame[(frame.site == "layers") & (frame.layer == 1) & (frame.pos == 2)]
    assert row.metric.tolist() == [1.5]
    assert frame.layer.isna().tolist() == [False] * 6 + [True] * 2
    assert frame.groupby("site").metric.max().to_dict() == {"head": 1, "layers": 4}
    frame = several().to_dataframe()
    expected = ["site", "pos", "axis.site", "loss[0]", "loss[1]", "rank"]
    assert list(frame) == expected
    assert frame["loss[1]"].tolist() == [2, 4, 6, 10]
    assert frame["site"].tolist() == ["a", "a", "a", "b#1"]
    empty = px.patching.Effects({}, {}, 1.0, 0.0).to_dataframe()
    assert isinstance(empty, pandas.DataFrame) and len(empty) == 0


def test_plot():
    plt = pytest.importorskip("matplotlib.pyplot")
    tokens = ["$x$", " b", "c"]
    e = effects()
    one = px.patching.Effects({"layers": e["layers"]}, e.axes, e.clean, e.corrupted)
    (cell,) = one.plot(labels={"pos": tokens})
    (image,) = cell.images
    np.testing.assert_array_equal(image.get_array(), e["layers"])
    assert image.get_clim() == (-2, 4)  # the corrupted run, 1, is in the middle
    assert (cell.get_xlabel(), cell.get_ylabel()) == ("pos", "layer")
    assert [t.get_text() for t in cell.get_xticklabels()] == tokens
    assert cell.get_title() == "layers"
    cell.figure.canvas.draw()
    first, second = e.plot()
    assert first.images[0].get_clim() == second.images[0].get_clim() == (-3, 5)
    assert [t.get_text() for t in second.get_yticklabels()] == ["head"]
    plt.close("all")


def test_plot_of_many_sites():
    plt = pytest.importorskip("matplotlib.pyplot")
    keys = [f"layers.{i}" for i in range(100)]
    values = {key: jnp.arange(3.0) for key in keys} | {"nan": jnp.full(4, jnp.nan)}
    axes = dict.fromkeys(values, ("pos",))
    cells = px.patching.Effects(values, axes, 1.0, 0.0).plot()
    assert [cell.images[0].get_array().shape for cell in cells] == [(100, 3), (1, 4)]
    shown = [t.get_text() for t in cells[0].get_yticklabels()]
    assert shown == keys[::3]
    plt.close("all")


def test_plot_refused():
    e = effects()
    with pytest.raises(px.PeexError, match="'posn', which isn't .*Nearest: 'pos', 'l"):
        e.plot(labels={"posn": "abc"})
    with pytest.raises(
        px.PeexError, match="3 labels, but that axis of 'head' is 2 long"
    ):
        e.plot(labels={"pos": "abc"})
    cube = px.patching.Effects(
        {"z": jnp.ones((1, 1, 1))}, {"z": tuple("abc")}, 1.0, 0.0
    )
    with pytest.raises(
        px.PeexError, match="one or two swept axes, but 'z' has 3: a, b"
    ):
        cube.plot()
    with pytest.raises(px.PeexError, match="have no sites"):
        px.patching.Effects({}, {}, 1.0, 0.0).plot()


@pytest.mark.parametrize(
    "name, use",
    [
        ("matplotlib.pyplot", lambda e: e.plot()),
        ("pandas", lambda e: e.to_dataframe()),
    ],
)
def test_without_the_extra(monkeypatch, name, use):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r'pip install "peex\[experiments\]"'):
        use(effects())
