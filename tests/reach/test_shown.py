"""How what `px.reach` found is shown, compared and handed on."""

import json
import re
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from recurrent import f32, GRU, LinearGRU, LinearLSTM, ThreeVanilla, TwoGRUs, WIDTH

import peex as px


H = f32(WIDTH)


@pytest.fixture(scope="module")
def two():
    return px.reach(TwoGRUs(), f32(2), H, H, state=(1, 2))


def test_table(two):
    lines = str(two).splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert lines[0].split() == ["array", "reaches", "by", "reason"]
    (row,) = [line for line in lines if "r1.weight_ih" in line and "dot" in line]
    assert "h1: direct; h2: through (r2.weight_ih)" in re.sub(" +", " ", row)
    assert "10 parameters, 8 temporal; links to states: 8 direct, 4 through" in str(two)
    assert "2 groups of states: {h1}, {h2}" in str(two)
    assert repr(two) == "<Reach: 8 of 10 parameters reach 2 states in 2 groups>"
    assert repr(two["r2.bias"]) == "<parameter r2.bias -> h2: direct>"
    assert "non_temporal" in repr(two["out.bias"])


def test_html(two):
    page = two._repr_html_()
    assert page.count("<tr>") == 1 + 10 + 2
    assert "h1: direct; h2: through (r2.weight_ih)" in page


def test_what_ends_where_is_in_the_table():
    step = lambda m, x, h: h + jnp.floor(m.cell(x, h))
    text = re.sub(r"\s+", " ", str(px.reach(GRU(), f32(2), H, method=step)))
    assert "no_derivative (floor" in text


def test_to_dict(two):
    made = json.loads(json.dumps(two.to_dict()))
    assert made["counts"] == two.counts and made["excluded"] == two.excluded
    assert [p["key"] for p in made["parameters"]] == list(two.parameters)
    assert made["parameters"][0]["states"]["h2"] == {
        "how": "through",
        "through": ["r2.weight_ih"],
    }
    assert made["groups"] == [
        {"states": ["h1"], "recurrent": True},
        {"states": ["h2"], "recurrent": True},
    ]


def test_counts(two):
    assert two.counts == {
        "parameters": 10,
        "temporal": 8,
        "excluded": 2,
        "states": 2,
        "groups": 2,
        "direct": 8,
        "through": 4,
        "both": 0,
        "value": 0,
    }
    matrix = two.matrix()
    assert matrix.shape == (10, 2) and (matrix == "through").sum() == 4


def test_diff():
    linear, lstm = px.reach(LinearGRU(), f32(2), H), LinearLSTM()
    assert not linear.diff(linear) and str(linear.diff(linear)) == "no difference"

    def without_reset(m, x, h):
        xh = jnp.concatenate([x, h])
        return jnp.tanh(m.Wh(xh)) + jnp.floor(m.Wz(xh))

    diff = linear.diff(px.reach(LinearGRU(), f32(2), H, method=without_reset))
    assert bool(diff) and diff.added == diff.removed == ()
    assert diff.changed["Wr.bias"] == {
        "h": ("through (Wh.weight)", ""),
        "reason": ("", "unused"),
    }
    assert diff.changed["Wz.weight"]["h"] == ("direct", "value")
    assert "~ Wr.bias: h through (Wh.weight) => none" in str(diff)
    other = linear.diff(px.reach(lstm, f32(2), H, H, state=(1, 2)))
    assert "Wo.weight" in other.added and "Wz.weight" in other.removed
    assert "+ Wo.weight" in str(other).splitlines()


def test_mermaid(two):
    lines = two.to_mermaid().splitlines()
    assert lines[0] == "flowchart LR"
    assert '    s0(("h1"))' in lines and '  p0["r1.weight_ih"]' in lines
    assert "  p0 --> s0" in lines and "  p0 ==> s1" in lines
    assert "  s0 ==> s1" in lines and "  s1 --> s0" not in lines
    assert not any("out." in line for line in lines)
    assert sum(line.startswith("  subgraph") for line in lines) == 2


def test_plot(two):
    plt = pytest.importorskip("matplotlib.pyplot")
    ax = two.plot()
    assert [t.get_text() for t in ax.get_xticklabels()] == ["h1", "h2"]
    rows = [t.get_text() for t in ax.get_yticklabels()]
    assert rows == [*two.parameters, *two.states]
    (image,) = ax.get_images()
    codes = image.get_array()
    assert codes.shape == (12, 2)
    assert codes[0, 0] != codes[0, 1] and codes[0, 0] == codes[4, 1]
    legend = [t.get_text() for t in ax.get_legend().get_texts()]
    assert legend == ["through", "both", "direct"]
    _, mine = plt.subplots()
    empty = px.reach(GRU(), f32(2), H, state=())
    assert empty.plot(mine) is mine
    plt.close("all")


def test_plot_without_matplotlib(two, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"`Reach.plot` needs matplotlib.*peex\["):
        two.plot()


def test_a_key_that_is_not_there(two):
    assert "r1.bias" in two and "r3.bias" not in two
    match = (
        "'r1.bais' isn't an array of the model or of the arguments. Nearest: 'r1.bias'"
    )
    with pytest.raises(KeyError, match=match):
        two["r1.bais"]


def test_three_cells_as_a_picture():
    reach = px.reach(ThreeVanilla(), f32(2), H, H, H, state=(1, 2, 3))
    assert reach.to_mermaid().count("subgraph") == 3


def test_equal_siblings_are_one_row():
    class Deep(eqx.Module):
        cell: eqx.nn.GRUCell
        mlp: eqx.nn.MLP

        def __call__(self, x, h):
            h = self.cell(x, h)
            return self.mlp(h), h

    mlp = eqx.nn.MLP(WIDTH, WIDTH, WIDTH, 19, key=jax.random.key(0))
    model = Deep(eqx.nn.GRUCell(2, WIDTH, key=jax.random.key(0)), mlp)
    reach = px.reach(model, f32(2), H, new_state=1)
    lines = str(reach).splitlines()
    assert len(lines) < 20 and all(len(line) <= 100 for line in lines)
    (row,) = [line for line in lines if "mlp.layers.{0..19}.bias x20" in line]
    assert "add in mlp.layers.*" in row and "non_temporal" in row
    assert any(line.strip().startswith("cell.bias_n") for line in lines)
