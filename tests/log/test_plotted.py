"""What is drawn of an entry of a log."""

import sys

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from closeness import assert_close
from logged import record

import peex as px
from peex._log import Axis


STEPS = (Axis("step", 4, "m.py:1"),)


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_steps_go_to_the_right():
    values = jnp.arange(-2.0, 10.0).reshape(4, 3)
    (cell,) = px.Log({"cell#1": values}, axes={"cell#1": STEPS}).plot("cell#1")
    (image,) = cell.images
    assert_close(np.asarray(image.get_array()), np.asarray(values.T, float))
    assert image.get_clim() == (-9.0, 9.0)  # zero in the middle
    assert (cell.get_title(), cell.get_xlabel(), cell.get_ylabel()) == (
        *("cell#1", "step", "index"),
    )
    (cell,) = px.Log({"a": jnp.abs(values)}).plot("a")
    assert cell.images[0].get_array().shape == (4, 3)
    assert cell.images[0].get_clim() == (0.0, 9.0)
    assert cell.get_xlabel() == cell.get_ylabel() == "index"


def test_lines_on_axes_that_are_given():
    _, ax = plt.subplots()
    values = jnp.array([1.0, jnp.nan, 2.0, 3.0])
    log = px.Log({"a": values, "$b": values > 1}, axes={"a": STEPS})
    assert log.plot("a", ax) == [ax] and log.plot("$b", ax) == [ax]
    assert_close(ax.lines[0].get_ydata(), np.asarray(values, float))
    assert ax.lines[1].get_ydata().tolist() == [0, 0, 1, 1]
    ax.figure.canvas.draw()  # a dollar sign is one


def test_each_array_of_an_entry():
    values = jnp.array([[1 + 1j, jnp.inf], [0, 2j]])
    cells = px.Log({"a": (jnp.ones(()), {"x": values, "y": jnp.zeros((2, 2))})}).plot(
        "a"
    )
    assert [cell.get_title() for cell in cells] == ["a/1/x", "a/1/y"]
    shown = cells[0].images[0].get_array()
    assert_close(shown.filled(0), np.array([[2**0.5, 0], [0, 2]]))
    assert shown.mask.tolist() == [[False, True], [False, False]]
    cells[0].figure.canvas.draw()


def test_a_batch_axis_has_to_go():
    log = record(px.IdentityLog())
    match = (
        r"^`log\.plot` draws arrays with one or two axes, but 'cell' is f32\[4,2,3\]\. "
        r"Choose a place along the others, or reduce them, as in `log\.map\(lambda x: "
        r"x\[:, 0\]\)\.plot\('cell'\)`\.$"
    )
    with pytest.raises(px.LogShapeError, match=match):
        log.plot("cell")
    # What the message says to write.
    (cell,) = log.select("cell").map(lambda x: x[:, 0]).plot("cell")
    assert cell.images[0].get_array().shape == (3, 4) and cell.get_xlabel() == "step"
    with pytest.raises(
        px.LogShapeError, match=r"lambda x: x\[:, 0, 0\]\)\.plot\('a'\)"
    ):
        px.Log({"a": jnp.ones((4, 2, 3, 3))}, axes={"a": STEPS}).plot("a")


def test_nothing_that_can_be_drawn(monkeypatch):
    log = px.Log({"a": jnp.ones(()), "b": None, "c": (jnp.ones(1), jnp.ones(2))})
    with pytest.raises(
        px.LogShapeError, match=r"but 'a' is f32\[\]\. Print it instead"
    ):
        log.plot("a")
    match = (
        r"^There is nothing to plot of 'b': it logged no arrays\. Record some, as by"
    )
    with pytest.raises(px.LogShapeError, match=match):
        log.plot("b")
    with pytest.raises(KeyError, match=r"'d' is not in the log\. Nearest: "):
        log.plot("d")
    _, ax = plt.subplots()
    match = r"^`log\.plot\('c'\)` draws 2 arrays, 'c/0', 'c/1', each on axes of its own"
    with pytest.raises(ValueError, match=match):
        log.plot("c", ax)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    match = r'^`log\.plot` needs matplotlib\. .* `pip install "peex\[experiments\]"`\.$'
    with pytest.raises(ImportError, match=match):
        log.plot("c")
