"""How reports are asked for, looked into, and shown: as text, with and without rich, as
HTML, as dicts; and what is different between two.
"""

import builtins
import html.parser
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from parts import Half
from report_numbers import f32, key, product

import peex as px


# Asked for and looked into


def test_keyword_arguments():
    dropout = eqx.nn.Dropout(0.5)
    call = px.report(dropout, f32(3), key=key())["."]
    (x,), kwargs = call.inputs
    assert x.shape == (3,) and kwargs["key"].dtype == key().dtype
    assert repr(call) == "<call .: f32[3], key<fry>[] -> f32[3]>"


def test_methods():
    class Model(eqx.Module):
        linear: eqx.nn.Linear

        def encode(self, x):
            return self.linear(x)

    model = Model(eqx.nn.Linear(2, 3, key=key()))
    report = px.report(model, f32(2), method="encode")
    assert list(report.entries) == ["linear"]
    # What is entered is the call of the model.
    assert [c.key for c in report.tree.children] == ["."]
    report = px.report(model, f32(2), method=lambda m, x: m.encode(x), where=".:encode")
    assert list(report.entries) == [".:encode"]
    with pytest.raises(TypeError, match="a Model, has no method 'decode'. Give"):
        px.report(model, f32(2), method="decode")


def test_of_wrapped_models():
    # Wrappers carry no prefix, and are what they wrap.
    linear = eqx.nn.Linear(2, 3, key=key())
    for wrapped in (eqx.filter_jit(linear), px.ForwardHook(linear, px.ZeroHook())):
        assert list(px.report(wrapped, f32(2)).entries) == ["."]
    call = px.report(eqx.filter_vmap(linear), f32(5, 2))["."]
    assert [tuple(axis) for axis in call.axes] == [("batch", 5)]
    assert call.parameter_count == 9


def test_under_jit():
    # With tracers, only their shapes are looked at.
    linear = eqx.nn.Linear(2, 3, key=key())
    found = []

    @eqx.filter_jit
    def run(linear, x):
        found.append(px.report(linear, x))
        return linear(x)

    run(linear, jnp.ones(2))
    assert found[0]["."].flops == product(1, 2, 3) + 3


def test_key_errors():
    linear, other = (eqx.nn.Linear(2, 2, key=key()) for _ in range(2))
    report = px.report(Half(linear, other), f32(2))
    with pytest.raises(
        KeyError, match="'usd' isn't a call of this report. Nearest: 'us"
    ):
        report["usd"]
    with pytest.raises(KeyError, match="'unused' has no call: it is never called"):
        report["unused"]


# Shown


def mlp(width=8, depth=1):
    return eqx.nn.MLP(2, 3, width, depth, key=jax.random.key(0))


X = jnp.ones((5, 2))


def batched(model, xs):
    return jax.vmap(model)(xs)


def report(model):
    return px.report(model, X, method=batched)


PLAIN = """
site      class   input -> output   axes     params    log  FLOPs
-----------------------------------------------------------------
layers.0  Linear  f32[2] -> f32[8]  batch 5      24  160 B    200
layers.1  Linear  f32[8] -> f32[3]  batch 5      27   60 B    255
-----------------------------------------------------------------
2 calls, log 220 B, 495 FLOPs
51 parameters, 204 B
"""


@pytest.fixture
def without_rich(monkeypatch):
    real = builtins.__import__

    def no_rich(name, *args, **kwargs):
        if name.split(".")[0] == "rich":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_rich)


def test_plain_text(without_rich):
    assert str(report(mlp())) == PLAIN.strip()


def test_by_rich():
    pytest.importorskip("rich")
    shown = str(report(mlp()))
    assert "─" in shown
    cells = [line.split() for line in PLAIN.splitlines() if line.startswith("layers")]
    rows = [line.split() for line in shown.splitlines() if "layers" in line]
    assert rows == cells
    assert shown.endswith("51 parameters, 204 B")


def long():
    class Layer(eqx.Module):
        a_projection_with_a_long_name: eqx.nn.Linear

        def __call__(self, x):
            return jax.vmap(self.a_projection_with_a_long_name)(x)

    class Model(eqx.Module):
        encoder_with_a_long_name: list[Layer]

        def __call__(self, x):
            for layer in self.encoder_with_a_long_name:
                x = layer(x)
            return x

    model = Model([Layer(eqx.nn.Linear(2048, 2048, key=jax.random.key(0)))] * 2)
    return px.report(eqx.filter_vmap(model), jnp.ones((9, 1024, 2048)))


@pytest.mark.parametrize("rich", [True, False])
def test_width(rich, request):
    if rich:
        pytest.importorskip("rich")
    else:
        request.getfixturevalue("without_rich")
    found = long()
    shown = str(found)
    assert max(len(line) for line in shown.splitlines()) <= 100
    # Nothing is cut off.
    text = "".join(c for c in shown if not c.isspace())
    for name in found.entries:
        tail = name.rpartition(".")[2]
        assert name in text or tail in text
    assert "4.20M" in shown and "75.5 MB" in shown
    assert max(len(line) for line in str(px.sites(mlp())).splitlines()) <= 100


def test_short():
    assert repr(report(mlp())) == "<Report: 2 calls>"
    model = mlp()
    other = px.report(model, jnp.ones(2), method=lambda m, x: m.layers[0](x))
    assert repr(other) == "<Report: 1 call, 1 missing>"


class Cells(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.cells = [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] == "td":
            self.cells.append(data)


def test_html():
    parser = Cells()
    parser.feed(report(mlp())._repr_html_())
    assert parser.open == []
    assert parser.cells[:4] == ["layers.0", "Linear", "f32[2] -> f32[8]", "batch 5"]
    assert len(parser.cells) == 14


def test_dict():
    found = report(mlp()).to_dict()
    assert json.loads(json.dumps(found)) == found
    assert found["entries"] == ["layers.0", "layers.1"]
    assert (found["flops"], found["log_bytes"]) == (495, 220)
    model, first, _ = found["calls"]
    assert model["children"] == ["layers.0", "layers.1"]
    assert first == {
        "key": "layers.0",
        "site": "layers.0",
        "number": 0,
        "class": "Linear",
        "inputs": [{"shape": [2], "dtype": "float32"}],
        "outputs": [{"shape": [8], "dtype": "float32"}],
        "axes": [["batch", 5]],
        "when": "always",
        "parameters": 24,
        "own_parameters": 24,
        "parameter_bytes": 96,
        "log_bytes": 160,
        "flops": 200,
        "line": None,
        "children": [],
    }
    assert found["parameters"][0] == {
        "uses": ["layers.0.weight"],
        "shape": [8, 2],
        "dtype": "float32",
    }


def test_no_difference():
    found = report(mlp()).diff(report(mlp()))
    assert not found
    assert str(found) == "no difference"


def test_difference_of_shapes():
    found = report(mlp(8)).diff(report(mlp(16)))
    assert found and found.added == () and found.removed == {}
    assert found.changed == {
        "layers.0": {
            "outputs": ("f32[8]", "f32[16]"),
            "parameters": ("24 (96 B)", "48 (192 B)"),
            "flops": ("200", "400"),
        },
        "layers.1": {
            "inputs": ("f32[8]", "f32[16]"),
            "parameters": ("27 (108 B)", "51 (204 B)"),
            "flops": ("255", "495"),
        },
    }
    assert "~ layers.0: outputs f32[8] => f32[16]" in str(found).splitlines()


def test_difference_of_calls():
    one, two = report(mlp(8, 1)), report(mlp(8, 2))
    found = one.diff(two)
    assert found.added == ("layers.2",)
    assert "+ layers.2" in str(found).splitlines()
    back = two.diff(one)
    assert back.removed == {"layers.2": ""}
    assert "- layers.2" in str(back).splitlines()


def test_difference_that_has_a_reason():
    model = mlp()
    skips = px.report(model, jnp.ones(2), method=lambda m, x: m.layers[0](x))
    whole = px.report(model, jnp.ones(2))
    assert whole.diff(skips).removed == {"layers.1": skips.missing["layers.1"].why}


def test_difference_of_dtypes_and_axes():
    half = jax.tree.map(
        lambda x: x.astype(jnp.bfloat16), eqx.filter(mlp(), eqx.is_array)
    )
    half = eqx.combine(half, mlp())
    one = px.report(mlp(), jnp.ones(2))
    changes = one.diff(px.report(half, jnp.ones(2, jnp.bfloat16))).changed["layers.0"]
    assert changes["outputs"] == ("f32[8]", "bf16[8]")
    assert changes["parameters"] == ("24 (96 B)", "24 (48 B)")
    assert one.diff(report(mlp())).changed["layers.0"]["axes"] == ("none", "batch 5")


def test_treescope():
    treescope = pytest.importorskip("treescope")
    _, log = px.ForwardHook(mlp())(jnp.ones(2))
    for shown, name in ((log, "Log({"), (report(mlp()), "Report(")):
        text = treescope.render_to_text(shown)
        assert text.startswith(name)
        assert "'layers.0':" in text
    counted = px.Log({"a": jnp.ones(2)}, {"a": jnp.array(1)})
    assert "counts=" in treescope.render_to_text(counted)
