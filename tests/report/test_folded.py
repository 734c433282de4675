"""Equal siblings as one line, the width of what is shown, and where lines break."""

import html.parser
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from recurrent import f32
from twin_case import linear

import peex as px
from peex._show.wrapped import wrapped


class Block(eqx.Module):
    norm: eqx.nn.LayerNorm
    mlp: eqx.nn.MLP

    def __call__(self, x):
        return x + self.mlp(self.norm(x))


class Stack(eqx.Module):
    blocks: list[Block]
    unused: list[eqx.nn.Linear]
    head: eqx.nn.Linear

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def stack(n):
    make = lambda width: eqx.nn.MLP(4, 4, width, 1, key=jax.random.key(0))
    # The last is wider than the others.
    blocks = [Block(eqx.nn.LayerNorm(4), make(8 + (i == n - 1))) for i in range(n)]
    return Stack(blocks, [linear(4, 4, i) for i in range(n)], linear(4, 2, 1))


X = f32(4)
TREE = px.trace(stack(30), X)
REPORT = TREE.report
FOLDED = """
. (Stack): f32[4] -> f32[2]
  blocks.{0..28} (Block) x29: f32[4] -> f32[4]
    blocks.{0..28}.norm (LayerNorm) x29: f32[4] -> f32[4]
    blocks.{0..28}.mlp (MLP) x29: f32[4] -> f32[4]
      blocks.{0..28}.mlp.layers.0 (Linear) x29: f32[4] -> f32[8]
      blocks.{0..28}.mlp.layers.1 (Linear) x29: f32[8] -> f32[4]
  blocks.29 (Block): f32[4] -> f32[4]
    blocks.29.norm (LayerNorm): f32[4] -> f32[4]
    blocks.29.mlp (MLP): f32[4] -> f32[4]
      blocks.29.mlp.layers.0 (Linear): f32[4] -> f32[9]
      blocks.29.mlp.layers.1 (Linear): f32[9] -> f32[4]
  head (Linear): f32[4] -> f32[2]
"""


def rows(text):
    """The rows of a table of text, the cells of one line each."""
    return [re.split(r" {2,}", line.strip()) for line in str(text).splitlines()]


def test_a_tree():
    assert str(TREE) == str(REPORT.tree) == FOLDED.strip()
    every = str(TREE.show(fold=False)).splitlines()
    assert len(every) == 2 + 30 * 5
    assert "  blocks.17 (Block): f32[4] -> f32[4]" in every
    # Few are all shown, unless it is asked for.
    small = px.trace(stack(3), X)
    assert len(str(small).splitlines()) == 2 + 3 * 5
    assert "blocks.{0,1} (Block) x2:" in str(small.show(fold=True))
    assert repr(small.show(fold=True)) == str(small.show(fold=True))


def test_calls_of_one_layer():
    lin = linear(4, 4, 0)

    def model(lin, x):
        for _ in range(40):
            x = lin(x)
        return x

    tree = px.trace(lin, X, method=model)
    assert str(tree) == ".#{0..39} (Linear) x40: f32[4] -> f32[4]"
    both = px.trace([lin, lin], X, method=lambda two, x: two[1](two[0](x)))
    assert str(both.show(fold=True)) == "{0,1} (Linear) x2: f32[4] -> f32[4]"


def test_a_table():
    shown = rows(REPORT)
    (norm,) = [row for row in shown if row[0].startswith("blocks.{0..29}.norm")]
    assert norm[0] == "blocks.{0..29}.norm x30" and norm[1] == "LayerNorm"
    names = [row[0] for row in shown]
    assert "blocks.{0..28}.mlp.layers.0 x29" in names
    assert "blocks.29.mlp.layers.0" in names
    text = str(REPORT)
    assert "missing: unused.{0..29} x30 (Linear): it is never called" in text
    assert "91 calls, " in text  # all are counted
    every = rows(REPORT.show(fold=False))
    assert [row[0] for row in every if len(row) == 6] == list(REPORT)
    assert str(REPORT.show(fold=False)).count("missing: unused.") == 30
    sites = str(px.sites(stack(30)))
    assert "blocks.{0..29}.norm x30" in sites and len(sites.splitlines()) < 30


def test_reach():
    reach = px.reach(stack(12), X, state=None)
    text = str(reach)
    assert "blocks.{0..11}.norm.weight x12" in text
    assert "mul in blocks.*.norm" in text
    assert text.count("norm.weight") == 1
    assert str(reach.show(fold=False)).count("norm.weight") >= 12


class Texts(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.texts = [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_html():
    def texts(shown):
        parser = Texts()
        parser.feed(shown._repr_html_())
        assert parser.open == []
        return parser.texts

    assert "blocks.{0..29}.norm x30" in texts(REPORT)
    assert "blocks.17.norm" in texts(REPORT.show(fold=False))
    assert texts(TREE) == [line.strip() for line in FOLDED.strip().splitlines()]
    assert len(texts(TREE.show(fold=False))) == 2 + 30 * 5


def test_the_width_is_the_terminals(monkeypatch):
    widest = lambda text: max(map(len, str(text).splitlines()))
    shown = REPORT, TREE, px.sites(stack(3)), px.reach(stack(3), X, state=None)
    for width in (60, 80):
        monkeypatch.setenv("COLUMNS", str(width))
        for each in shown:
            assert widest(each) <= width
            assert widest(each.show(width=100)) <= 100
    monkeypatch.setenv("COLUMNS", "100")
    assert 80 < widest(shown[-1].show(fold=False)) <= 100


def test_rich_has_its_own_width():
    console = pytest.importorskip("rich.console")
    made = console.Console(width=70)
    with made.capture() as capture:
        made.print(REPORT, TREE)
    text = capture.get()
    assert max(map(len, text.splitlines())) <= 70
    assert "blocks.{0..28} (Block) x29: f32[4] -> f32[4]" in text


def test_words_are_whole():
    key = "encoder.blocks.{0..29}.attention.output_projection"
    assert wrapped(key, 30) == [
        "encoder.blocks.{0..29}.",
        "attention.output_projection",
    ]
    # What is wider than there is room for isn't broken either.
    assert wrapped(key, 12)[-1] == "output_projection"
    assert wrapped("step 3 (model.py:12)", 13) == ["step 3", "(model.py:12)"]
    assert wrapped("a:attend/softmax", 9) == ["a:attend/", "softmax"]
    assert wrapped("", 9) == [""]
    text = "  ".join(["0.25", "layers.0.norm", "x"])
    assert wrapped(text, 21, "  ", "    ") == ["  0.25  layers.0.norm", "    x"]


def test_keys_are_whole_in_narrow_tables(monkeypatch):
    class Model(eqx.Module):
        encoder_with_a_long_name: list[eqx.nn.Linear]

        def __call__(self, x):
            return self.encoder_with_a_long_name[0](x)

    report = px.report(Model([linear(4, 4, 0)]), jnp.ones(4))
    for plain in (False, True):
        if plain:
            monkeypatch.setitem(__import__("sys").modules, "rich", None)
        first = [row[0] for row in rows(report.show(width=40))]
        assert "encoder_with_a_long_name." in first or (
            "encoder_with_a_long_name.0" in first
        )
