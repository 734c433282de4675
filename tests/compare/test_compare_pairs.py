"""Which call of one model is which of the other, and in which layout: on calls that
nothing has run.
"""

import numpy as np
import pytest

import peex as px
from peex._compare.layouts import error, Layouts, moved, tolerance
from peex._compare.normal_keys import NormalKey
from peex._compare.pairing import Pairing
from peex._compare.rows import Compared, Limits
from peex._compare.same_arrays import SameArrays
from peex._compare.sides import AbstractSide, Replayed, Visit


RANDOM = np.random.default_rng(0)


class Side(AbstractSide):
    """Calls of given keys (of one at a step: a pair of these), outputs and weights."""

    def __init__(self, *calls, **weights):
        self.parameters = weights
        self.visits = []
        for call in calls:
            key, shape = call if isinstance(call, tuple) else (call, (3,))
            key, _, step = key.partition("@")
            name, _, number = key.partition("#")
            mine = tuple(n for n in weights if n.rpartition("_")[0] == name)
            inside = (c for c in calls if isinstance(c, str))
            leaf = name != "." and not any(c.startswith(f"{name}.") for c in inside)
            steps = (int(step),) if step else ()
            out = [np.zeros(shape)]
            call = name, int(number or 0), steps, "", leaf, out, None, name, mine
            self.visits.append(Visit(*call))

    def replay(self, given):
        """Each call returns what it did, and some more."""
        assert all(np.all(given[v].outputs[0] == v.outputs[0]) for v in self.visits)
        return {v: Replayed(None, [v.outputs[0] + self.more]) for v in self.visits}

    def backward(self, weights):
        raise NotImplementedError


def pairs(a, b, **match):
    found = Pairing(a, b, match.get("match", {})).pairs
    return [(pair.model.name, pair.other.name, pair.how) for pair in found]


def array(*shape):
    return RANDOM.normal(size=shape)


def test_by_parameters_in_any_layout():
    x, y = array(3, 4), array(3, 4)
    a = Side("p", "q", p_w=x, q_w=y)
    b = Side("r", "s", r_w=np.ascontiguousarray(y.T), s_w=x.reshape(2, 6))
    assert pairs(a, b) == [("p", "s", "parameters"), ("q", "r", "parameters")]


def test_not_by_a_small_part_of_the_parameters():
    """As an attention whose projections are one weight, but for the last."""
    x, y = array(4), array(5)
    a = Side("attn.out", "attn", **{"attn.out_w": y})
    b = Side("mixer", mixer_w=x, mixer_v=y)
    assert pairs(a, b) == [("attn.out", "mixer", "parameters")]
    b = Side("mixer", mixer_w=array(6), mixer_v=y)
    assert ("attn.out", "mixer", "parameters") not in pairs(a, b)


def test_what_shares_a_fingerprint_is_told_apart_by_its_values():
    """Size, sum and sum of squares of these are the same."""
    x, y = np.array([0.0, 3.0, 3.0]), np.array([1.0, 1.0, 4.0])
    assert (x.sum(), (x**2).sum()) == (y.sum(), (y**2).sum())
    same = SameArrays({"a": x}, {"b": y})
    assert same.others == {"a": ()} and same.unique() == {}
    same = SameArrays({"a": x, "c": y}, {"b": y[::-1].copy(), "d": x})
    assert same.unique() == {"a": "d", "c": "b"}


def test_equal_to_several_are_told_apart_by_keys():
    ones = np.ones(4)
    a = Side("l.0.n", "l.1.n", **{"l.0.n_w": ones, "l.1.n_w": ones})
    b = Side("b.1.n", "b.0.n", **{"b.0.n_w": ones, "b.1.n_w": ones})
    assert SameArrays(a.parameters, b.parameters).unique() == {}
    assert pairs(a, b) == [("l.0.n", "b.0.n", "key"), ("l.1.n", "b.1.n", "key")]


def test_of_other_precision():
    x = array(50, 40).astype(np.float32)
    same = SameArrays({"a": x}, {"b": x.T.astype(np.float16), "c": x + 1e-3})
    assert same.unique() == {"a": "b"}


def test_steps_of_a_stack_by_keys():
    a = Side("layers.norm@0", "layers.norm@1", "head")
    b = Side("blocks.0.norm", "blocks.1.norm", "lm_head")
    assert pairs(a, b) == [
        ("layers.norm[0]", "blocks.0.norm", "key"),
        ("layers.norm[1]", "blocks.1.norm", "key"),
        ("head", "lm_head", "key"),
    ]


def test_keys_are_alike_by_their_ends():
    key = lambda *names, n=(): NormalKey(names, n)
    attn = key("layers", "attn", "query")
    assert attn.likeness(attn) == 100
    near, far = key("blocks", "attn", "query"), key("blocks", "self", "query")
    assert 2 < attn.likeness(near) < 3 and 1 < attn.likeness(far) < 2
    assert attn.likeness(key("layers", "attn", "key")) == 0
    assert attn.likeness(key("layers", "attn", "query", n=(1,))) == 0


def test_order_among_what_is_left():
    a = Side("x", ("act", (8,)), "y", x_w=(x := array(5)), y_w=(y := array(6)))
    b = Side("1", ("2", (3,)), ("3", (2, 4)), ("4", (7,)), "5")
    b.parameters = {"1_w": x, "5_w": y}
    for visit in b.visits:
        visit.parameters = tuple(n for n in b.parameters if n[0] == visit.key)
    # Between the same neighbours, and of one size: a permutation of axes away.
    assert pairs(a, b) == [("x", "1", "parameters"), ("y", "5", "parameters")]
    a.visits[1].outputs = [np.zeros((4, 2))]
    assert ("act", "3", "order") in pairs(a, b)


def test_what_holds_others_by_its_parts():
    x, y = array(5), array(6)
    names = "net.one", "net.two", "net", "."
    a = Side(*names, **{"net.one_w": x, "net.two_w": y})
    b = Side("0.0", "0.1", "0", ".", **{"0.0_w": x, "0.1_w": y})
    assert pairs(a, b)[2:] == [("net", "0", "parts"), (".", ".", "parts")]


def test_given_patterns():
    a = Side("l.0.a", "l.0.b", "l.1.a", "l.1.b", ("c", (7,)))
    b = Side("m.1.x", "m.0.x", "m.0.y", "m.1.y", ("z", (7,)))
    match = {"l.*.a": "m.*.y", "l.*.b": "m.*.x"}
    found = pairs(a, b, match=match)
    assert found == [
        ("l.0.a", "m.0.y", "given"),
        ("l.0.b", "m.0.x", "given"),
        ("l.1.a", "m.1.y", "given"),
        ("l.1.b", "m.1.x", "given"),
        ("c", "z", "order"),
    ]
    # Of a stack, whose numbers are steps.
    stack = Side("l.a@0", "l.a@1")
    assert pairs(stack, b, match={"l.a": "m.*.y"}) == [
        ("l.a[0]", "m.0.y", "given"),
        ("l.a[1]", "m.1.y", "given"),
    ]
    named = Side("m.1.a", "m.0.a", "m.0.b")
    assert [pair[1] for pair in pairs(stack, named, match={"l.**": "m.**"})] == [
        "m.0.a",
        "m.1.a",
    ]
    # As many calls of one layer; other numbers, but as many.
    calls = Side("c", "c#1")
    assert pairs(stack, calls, match={"l.a": "c"})[1] == ("l.a[1]", "c#1", "given")
    later = pairs(stack, Side("m.1.z", "m.2.z"), match={"l.a": "m.*.z"})
    assert later[0] == ("l.a[0]", "m.1.z", "given")
    # A single step, and what isn't compared with anything.
    assert pairs(stack, b, match={"l.a[1]": "m.1.x", "l.a[0]": None}) == [
        ("l.a[1]", "m.1.x", "given")
    ]
    pairing = Pairing(stack, b, {"l.a": None})
    assert pairing.pairs == [] and pairing.unmatched()[0] == []


def test_a_pattern_that_matches_nothing():
    a, b = Side("layer.attn"), Side("block.attn")
    expected = r"'layer.atn' of `match` matches no call of the model.*'layer.attn'"
    with pytest.raises(px.SiteNotFoundError, match=expected):
        pairs(a, b, match={"layer.atn": "block.attn"})
    expected = r"'blk' of `match` matches no call of the other.*'block.attn'"
    with pytest.raises(px.SiteNotFoundError, match=expected):
        pairs(a, b, match={"layer.attn": "blk"})
    a = Side("l.a@0", "l.a@1", "l.b@0", "l.b@1")
    b = Side("m.0.x", "m.0.y", "m.0", "m.1.x", "m.1.y", "m.1")
    expected = (
        r"brings nothing together: .* 'l.a\[0\]', 'l.a\[1\]', 'l.b\[0\]', \.\.\. of the"
    )
    with pytest.raises(px.SiteNotFoundError, match=expected):
        pairs(a, b, match={"l.*": "m.*"})


@pytest.mark.parametrize("how", ["given", "key"])
def test_shapes_that_no_permutation_aligns(how):
    a, b = Side(("x.a", (3, 4))), Side(("x.a", (4, 5)))
    match = {"x.a": "x.a"} if how == "given" else {}
    expected = (
        r"No permutation of axes aligns 'x.a', f64\[3,4\], with 'x.a' of the other, "
        rf"f64\[4,5\] \(matched by {how}\).*`match=\{{'x.a': None\}}`"
    )
    with pytest.raises(px.LogShapeError, match=expected):
        pairs(a, b, match=match)
    assert pairs(a, Side(("x.a", (4, 3, 1)))) == [("x.a", "x.a", "key")]


def test_equal_parameters_but_other_shapes():
    x = array(5)
    a = Side(("e", (4,)), "o", e_w=x, o_w=(y := array(6)))
    b = Side(("f", (3, 4)), "o", f_w=x, o_w=y)
    pairing = Pairing(a, b, {})
    assert [pair.model.key for pair in pairing.pairs] == ["o"]
    assert [v.key for v in pairing.misfits] == ["e", "f"]


def test_the_layout_with_the_least_error():
    layouts = Layouts()
    x = array(3, 1, 4, 4)
    y = np.moveaxis(x[:, 0], 2, 0) + 1e-5
    layout, far = layouts.best(x, y)
    assert layout == (2, 0, 1) and far < 1e-4
    np.testing.assert_array_equal(moved(x, layout, y.shape), np.moveaxis(x[:, 0], 2, 0))
    # Of what has nothing in common, that of what had.
    assert layouts.best(x, array(4, 3, 4))[0] == (2, 0, 1)
    assert Layouts().best(array(4, 4), array(4, 4))[0] == (0, 1)
    assert layouts.best(x, array(3, 4)) is None
    assert Layouts().best(array(1), array())[0] == ()


@pytest.mark.parametrize(("own", "differs"), [(0.0, True), (1e-9, False)])
def test_what_is_rounding_alone_is_not_blamed(own, differs):
    """As the mean of what was normalised, which is zero but for rounding."""
    a, b = Side("mean"), Side("mean")
    for side, more in ((a, own), (b, 2e-9)):
        side.visits[0].outputs = [np.array([4e-9, -1e-9])]
        side.more = more
    limits = lambda pair: Limits(1e-4, 1e-5)
    (row,) = Compared(Pairing(a, b, {}).pairs, a, b, limits, True).rows
    assert row.error == 0 and row.local_error > 0.1
    assert row.differs_locally == differs
    assert Compared(Pairing(a, b, {}).pairs, a, b, limits, False).rows[0].note == ""


@pytest.mark.parametrize(
    ("x", "y", "far"),
    [
        ([1.0, -4.0], [1.0, -4.0], 0.0),
        ([1.0, -4.0], [1.5, -4.0], 0.125),
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([0.0, 0.0], [0.0, 1e-9], 1.0),
        ([-np.inf, np.nan, 1.0], [-np.inf, np.nan, 2.0], 0.5),
        ([-np.inf, 1.0], [np.inf, 1.0], np.inf),
        ([np.nan, 1.0], [0.0, 1.0], np.inf),
        ([], [], 0.0),
        ([2 + 2j], [2 - 1j], 3 / 8**0.5),
    ],
    ids=range(9),
)
def test_error(x, y, far):
    assert error(np.array(x), np.array(y)) == pytest.approx(far)


def test_tolerance_of_the_coarsest_dtype():
    assert tolerance("float32", "float64") == 1e-4
    assert tolerance("bfloat16", "float32") == 5e-2
    assert tolerance("int32") == 1e-4 == tolerance()
