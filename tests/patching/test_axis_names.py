"""Names for axes, as in `"layer pos (head=9 _)"`."""

import numpy as np
import pytest

import peex as px
from peex._hooks.axis_names import AxisNames


@pytest.mark.parametrize(
    "text, names, shape, split",
    [
        ("layer pos _", ("layer", "pos", "_"), (30, 5, 576), (30, 5, 576)),
        ("layer _ (head=9 _)", ("layer", "_", "head", "_"), (3, 5, 18), (3, 5, 9, 2)),
        ("pos (head=9 d)", ("pos", "head", "d"), (5, 576), (5, 9, 64)),
        ("(d head=2)", ("d", "head"), (6,), (3, 2)),
        ("(a=2 b=3) c=4", ("a", "b", "c"), (6, 4), (2, 3, 4)),
        ("_ (_=2 _) _", ("_", "_", "_", "_"), (1, 4, 2), (1, 2, 2, 2)),
        ("a(b=2 c)d", ("a", "b", "c", "d"), (1, 0, 2), (1, 2, 0, 2)),
    ],
)
def test_split(text, names, shape, split):
    parsed = AxisNames.parse(text)
    assert parsed.names == names
    assert parsed.split(shape, "It") == split
    assert np.zeros(shape).reshape(split).ndim == len(names)
    assert hash(parsed) == hash(AxisNames.parse(text))


def test_the_last_axes():
    names = AxisNames.parse("(head=2 d)")
    assert names.split((7, 5, 6), "It", trailing=True) == (7, 5, 2, 3)
    assert names.split((6,), "It", trailing=True) == (2, 3)
    assert AxisNames.parse("_ pos (head=2 d) _").named == ("pos", "head", "d")


def test_the_order_is_that_of_heads():
    split = AxisNames.parse("(head=2 d)").split((6,), "It")
    assert np.arange(6).reshape(split)[1].tolist() == [3, 4, 5]


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "names no axis"),
        ("()", r"'\)' can't stand there"),
        ("a (b=2 c", "a parenthesis isn't closed"),
        ("a)", r"'\)' can't stand there"),
        ("((a=2 b) c)", r"'\(' can't stand there"),
        ("a a", "'a' is there twice"),
        ("a (a=2 _)", "'a' is there twice"),
        ("(a b)", r"of \(a b\) only one size may be left open"),
        ("(a=0 b)", "a size is 0"),
        ("... a", "'...' can't stand there"),
        ("a,b", "'a,b' can't stand there"),
        ("a -> b", "'->' can't stand there"),
        ("a 3", "'3' can't stand there"),
        ("(a=b c)", "'a=b' can't stand there"),
        ("(a = 2 c)", "'=' can't stand there"),
    ],
)
def test_refused(text, why):
    with pytest.raises(TypeError, match=why) as caught:
        AxisNames.parse(text)
    assert repr(text) in str(caught.value)
    assert 'as in "layer pos (head=9 _)"' in str(caught.value)


@pytest.mark.parametrize(
    "text, shape, trailing, message",
    [
        (
            "layer pos",
            (3, 5, 4),
            False,
            r"^The log has 3 axes, of shape \(3, 5, 4\), but 'layer pos' names 2\. "
            r'Write one name for each axis, `_` where it has none, as in "layer pos _"',
        ),
        ("a b c", (3, 5), False, r"has 2 axes.* names 3\. .*as in \"a b\""),
        ("a b c", (3, 5), True, r"Write at most one name for each axis"),
        ("a", (), False, r"has 0 axes, of shape \(\), but 'a' names 1"),
        (
            "_ (head=9 d)",
            (3, 64),
            False,
            r"but 9 does not divide 64, the length of the axis '\(head=9 d\)' of "
            r"'_ \(head=9 d\)'\. Write a divisor of 64, as `head` of \"\(head=8 d\)\"",
        ),
        ("(a=2 b=2)", (6,), False, "4 is not 6.*sizes whose product is 6"),
        ("a=2", (6,), False, "2 is not 6"),
    ],
)
def test_that_does_not_fit(text, shape, trailing, message):
    with pytest.raises(px.HookShapeError, match=message):
        AxisNames.parse(text).split(shape, "The log", trailing)
