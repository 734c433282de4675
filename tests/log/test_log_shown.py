"""How logs are shown: shapes alone, as a table, as HTML, and inside of wrappers."""

import html.parser
import textwrap

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parts import Outer, Seq, Whole

import peex as px
from peex._log import statistics


def linear(seed, size=2):
    return eqx.nn.Linear(size, size, key=jax.random.key(seed))


def shown(text):
    return textwrap.dedent(text).strip()


LOG = px.Log(
    {
        "first": jnp.array([1.0, 2.0, 3.0, 6.0]),
        "bad": jnp.array([[1.0, jnp.nan], [-jnp.inf, 3.0]], jnp.bfloat16),
        "pair": (jnp.array([50256, 3]), {"b": jnp.array([True, False, True, True])}),
        "complex": jnp.array(3 + 4j, jnp.complex64),
        "key": jax.random.key(0),
        "none": None,
        "empty": jnp.zeros((0, 2)),
    }
)
TABLE = """
key       shape        mean        std   min    max  non-finite
---------------------------------------------------------------
first     f32[4]          3      1.871     1      6           0
bad       bf16[2,2]       2          1     1      3           2
pair/0    i32[2]   2.513e+04  2.513e+04     3  50256           0
pair/1/b  bool[4]      0.75      0.433     0      1           0
complex   c64[]           5          0     5      5           0
key       key<fry>[]
none      -
empty     f32[0,2]                                            0
---------------------------------------------------------------
7 entries
"""
REPR = """
Log({
  'first': f32[4],
  'bad': bf16[2,2],
  'pair': (i32[2], {'b': bool[4]}),
  'complex': c64[],
  'key': key<fry>[],
  'none': None,
  'empty': f32[0,2]
})
"""


def cells(text):
    return [line.split() for line in text.strip().splitlines()]


def test_table():
    # (Numbers, apart from the widths of columns.)
    rule = lambda line: line[0].startswith("---")
    found, expected = cells(str(LOG)), cells(TABLE)
    assert [x for x in found if not rule(x)] == [x for x in expected if not rule(x)]
    assert f"{LOG}" == str(LOG)


def test_repr():
    assert repr(LOG) == shown(REPR) == eqx.tree_pformat(LOG)
    assert repr(px.Log()) == "Log({})"
    _, log = px.ForwardHook(linear(0))(jnp.ones(2))
    assert repr(log) == "Log({'.': f32[2]})"
    assert repr(jax.tree.map(np.asarray, log)) == "Log({'.': f32[2](numpy)})"
    assert str([log]) == "[Log({'.': f32[2]})]"


def test_counts():
    log = px.Log({"a": jnp.ones(2), "b": jnp.ones(2)}, {"b": jnp.array([1, 0, 1])})
    assert repr(log) == "Log({'a': f32[2], 'b': f32[2]}, counts={'b': i32[3]})"
    assert [line[-1] for line in cells(str(log))[2:4]] == ["0", "2x"]
    assert cells(str(log))[0][-1] == "ran"


def test_integers_of_a_backward_log():
    hooked = px.BackwardHook(linear(0), log_fn=lambda x: (x, x > 0)).init(jnp.ones(2))
    grads = eqx.filter_grad(lambda h: jnp.sum(h(jnp.ones(2))))(hooked)
    assert repr(grads.log) == "Log({'.': (f32[2], bool[2])})"
    assert cells(str(grads.log))[2:4] == [
        ["./0", "f32[2]", "1", "0", "1", "1", "0"],
        ["./1", "bool[2]", "1", "0", "1", "1", "0"],
    ]


def test_a_sum_of_integers_that_is_too_long_is_shown():
    hooked = px.BackwardHook(linear(0), log_fn=lambda x: x > 0).init(jnp.ones(2))
    log = jax.tree.map(lambda x: x + 1e9, hooked.log)
    with pytest.raises(px.LogValueError):
        log["."]
    assert repr(log) == "Log({'.': bool[2]})"
    assert cells(str(log))[2] == [".", "bool[2]"]


def test_traced():
    found = []

    @jax.jit
    def run(log):
        found.append((repr(log), str(log)))
        return log

    run(LOG.select(["first", "pair"]))
    ((text, table),) = found
    assert text == "Log({'first': f32[4], 'pair': (i32[2], {'b': bool[4]})})"
    assert cells(table)[0] == ["key", "shape"]
    assert cells(table)[2:5] == [
        ["first", "f32[4]"],
        ["pair/0", "i32[2]"],
        ["pair/1/b", "bool[4]"],
    ]
    # What is known there is shown whole.
    jax.jit(lambda x: found.append(str(LOG)))(1)
    assert found[1] == str(LOG)


def test_what_cannot_be_looked_at():
    log = px.Log({"a": jnp.ones(2)})
    log["a"].delete()
    assert repr(log) == "Log({'a': f32[2]})" and cells(str(log))[2] == ["a", "f32[2]"]
    shapes = jax.eval_shape(lambda: px.Log({"a": jnp.ones(2)}))
    assert cells(str(shapes))[2] == ["a", "f32[2]"]
    placeholders = jax.tree.map(lambda _: 0, log)
    assert cells(str(placeholders))[2] == ["a", "int"]
    assert repr(placeholders) == "Log({'a': 0})"


# Large ones


def vit(depth, log_fn):
    """The keys of a model of many blocks, and a log of these."""
    names = ("norm1", "attn.query", "attn.key", "attn.output", "norm2", "mlp.layers.0")
    keys = [f"blocks.{i}.{name}" for i in range(depth) for name in names]
    return px.Log({key: log_fn(i) for i, key in enumerate([*keys, "norm", "head"])})


def test_siblings_are_folded():
    log = vit(30, lambda i: jnp.array([1.0, i]))
    assert len(log) == 182
    first, rule, *rows, rule2, total, note = str(log).splitlines()
    assert [row.split()[:3] for row in rows] == [
        ["blocks.{0..29}.norm1", "x30", "f32[2]"],
        ["blocks.{0..29}.attn.query", "x30", "f32[2]"],
        ["blocks.{0..29}.attn.key", "x30", "f32[2]"],
        ["blocks.{0..29}.attn.output", "x30", "f32[2]"],
        ["blocks.{0..29}.norm2", "x30", "f32[2]"],
        ["blocks.{0..29}.mlp.layers.0", "x30", "f32[2]"],
        ["norm", "f32[2]", "90.5"],
        ["head", "f32[2]", "91"],
    ]
    each = np.array([[1.0, 6 * i] for i in range(30)])
    numbers = [each.mean(), each.std(), 0, each.max()]
    assert rows[0].split()[3:] == [*(f"{x:.4g}" for x in numbers), "0"]
    assert total == "182 entries"
    assert note == "One row for 30: `log.stack('blocks.*.norm1')` has each."
    assert log.stack("blocks.*.norm1").tolist() == each.tolist()
    assert repr(log).splitlines()[2] == "  'blocks.{0..29}.attn.query': f32[2],"
    assert len(repr(log)) < 500


def test_two_logs_of_norms_are_short():
    logs = px.Logs(*(vit(30, lambda i: jnp.array(float(i))) for _ in range(2)))
    assert len(repr(logs)) < 1000 and len(str(logs)) < 3000
    assert str(logs) == f"backward:\n{logs.backward}\n\nforward:\n{logs.forward}"
    only = px.Logs(LOG, px.Log())
    assert str(only) == f"backward:\n{LOG}"
    assert str(px.Logs(px.Log(), px.Log())) == (
        "Logs(backward=Log({}), forward=Log({}))"
    )


def test_up_to_thirty_are_shown_each():
    assert len(str(vit(4, lambda i: jnp.ones(i + 1))).splitlines()) == 3 + 26 + 1


FOLDED = {
    "numbers that are missing": (
        [f"a.{i}" for i in (*range(9), 10, 11, 20)],
        ["a.{0..8,10,11,20}"],
    ),
    "calls": (["cell", *(f"cell#{i}" for i in range(1, 9))], ["cell", "cell#{1..8}"]),
    "two numbers": (
        [f"a.{i}.b.{j}.c" for i in range(4) for j in range(3)],
        ["a.{0..3}.b.{0..2}.c"],
    ),
    "not all of two": (
        ["a.0.b.0", "a.0.b.1", "a.1.b.0"],
        ["a.0.b.{0,1}", "a.1.b.0"],
    ),
    "inside": ([f"a.{i}/div#{i}" for i in (1, 2)], ["a.1/div#1", "a.2/div#2"]),
    "arguments": (["a.0:in", "a.1:in"], ["a.{0,1}:in"]),
    "numbers in names": (["conv1", "conv2", "a.1b"], ["conv1", "conv2", "a.1b"]),
    "of a list": (["0", "1.x", "10"], ["{0,10}", "1.x"]),
}


@pytest.mark.parametrize("case", FOLDED)
def test_names_of_rows(case):
    keys, expected = FOLDED[case]
    others = [f"other{i}" for i in range(31)]
    log = px.Log(dict.fromkeys([*keys, *others], 1.0))
    names = [row.split()[0] for row in str(log).splitlines()[2:]]
    assert names[: len(expected)] == expected
    assert names[len(expected)] == "other0"


def test_of_other_shapes_are_other_rows():
    log = px.Log({f"a.{i}": jnp.zeros(1 + i // 20) for i in range(40)})
    rows = [row.split()[:3] for row in str(log).splitlines()[2:4]]
    assert rows == [["a.{0..19}", "x20", "f32[1]"], ["a.{20..39}", "x20", "f32[2]"]]


# Statistics


def test_statistics_by_pieces(monkeypatch):
    monkeypatch.setattr(statistics, "_PIECE", 7)
    arrays = [
        np.random.default_rng(i).normal(10 * i, 1 + i, (5, i)).astype(np.float32)
        for i in (1, 4, 0, 6)
    ]
    arrays[1][0, :2] = np.nan, np.inf
    found = statistics.statistics(arrays)
    whole = np.concatenate([x.ravel() for x in arrays]).astype(np.float64)
    good = whole[np.isfinite(whole)]
    assert (found.count, found.bad) == (good.size, 2) == (53, 2)
    assert (found.low, found.high) == (good.min(), good.max())
    np.testing.assert_allclose([found.mean, found.std], [good.mean(), good.std()])


def test_large_numbers():
    log = px.Log({"a": np.array([1e300, -1e300]), "b": np.array([2**40, 1])})
    assert cells(str(log))[2][4:] == ["-1e+300", "1e+300", "0"]
    assert cells(str(log))[3][4:] == ["1", "1099511627776", "0"]


# Elsewhere


class Cells(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.cells = [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] in ("td", "p"):
            self.cells.append(data)


def test_html():
    parser = Cells()
    parser.feed(LOG._repr_html_())
    assert parser.open == []
    assert parser.cells[:7] == ["first", "f32[4]", "3", "1.871", "1", "6", "0"]
    parser = Cells()
    parser.feed(px.Logs(LOG.select("none"), px.Log())._repr_html_())
    assert parser.cells == ["backward", "none", "-"]


def test_wrappers():
    model = Outer(linear(0))
    _, log = px.ForwardHook(model)(jnp.ones(2))
    found = repr(px.ForwardHook(model, px.PatchHook(log)))
    hook = "PatchHook(source_log=Log(1 entry))"
    expected = f"ForwardHook(model={model},hook_fn={hook},log_fn=IdentityLog())"
    assert "".join(found.split()) == "".join(expected.split())
    hooked = px.BackwardHook(Seq([linear(0), linear(1)]))
    assert "plan" not in repr(hooked) and "log=None" in repr(hooked)
    hooked = hooked.init(jnp.ones(2))
    assert "\n  log=Log(2 entries)\n)" in repr(hooked)
    nested = repr(px.BackwardHook(px.ForwardHook(model)))
    assert "model=ForwardHook(" in nested and "plan" not in nested


def test_the_plan_is_still_compared():
    # Hidden in `repr` alone: it is what tells two wrappers apart.
    model = Seq([linear(0), linear(1)])
    first, other = (px.ForwardHook(model, where=f"parts.{i}") for i in (0, 1))
    assert jax.tree.structure(first) != jax.tree.structure(other)


def test_scanned():
    run = lambda cell, x: jax.lax.scan(lambda x, _: (cell(x), None), x, length=3)[0]
    _, log = px.ForwardHook(Whole(linear(0), run))(jnp.ones(2))
    values = np.asarray(log["part"], np.float64)
    row = cells(str(log))[2]
    assert row[:2] == ["part", "f32[3,2]"]
    assert row[2:] == [
        *(f"{x:.4g}" for x in (values.mean(), values.std(), values.min())),
        f"{values.max():.4g}",
        "0",
    ]
