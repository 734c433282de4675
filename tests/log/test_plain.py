"""A log as plain Python, and as a data frame, next to NumPy."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close
from logged import record

import peex as px
from peex._log import Axis


@pytest.fixture(scope="module")
def log():
    return record(px.IdentityLog())


def test_as_for_json(log):
    found = log.to_dict()
    assert json.loads(json.dumps(found)) == found
    assert list(found["entries"]) == ["twice", "twice#1", "cell", "odd"]
    for key in log:
        assert found["entries"][key] == np.asarray(log[key]).tolist()
    assert found["counts"] == {"odd": [[0, 0], [1, 1], [0, 0], [1, 1]]}
    step, batch = found["axes"]["cell"]
    assert (step["kind"], step["size"]) == ("step", 4)
    assert step["loop"].startswith("logged.py:")
    assert batch == {"kind": "batch", "size": 2, "loop": None, "reverse": False}


def test_what_json_has_not():
    entries = {
        "record": px.MeanStd(jnp.array(1.5, jnp.bfloat16), (None, jnp.array([True]))),
        "module": px.SiteIndex("a", *jnp.arange(4)),
        "keys": {0: jax.random.key(3), 1: jnp.array([1 + 2j])},
        "own": [2, 0.5, "text", np.float32(0.25)],
    }
    found = px.Log(entries).to_dict()["entries"]
    assert json.loads(json.dumps(found)) == found
    assert found["record"] == {"mean": 1.5, "std": [None, [True]]}
    assert found["module"] == {"call": 0, "step": 1, "example": 2, "device": 3}
    assert found["keys"] == {"0": [0, 3], "1": {"real": [1.0], "imag": [2.0]}}
    assert found["own"] == [2, 0.5, "text", 0.25]


def test_a_row_for_each_step(log):
    frame = log.to_dataframe()
    assert list(frame.columns) == [
        *("key", "step", "shape", "dtype", "mean", "std", "min", "max"),
        *("nonfinite", "ran"),
    ]
    assert frame.key.tolist() == ["twice", "twice#1", *["cell"] * 4, *["odd"] * 4]
    assert frame.step.isna().tolist() == [True] * 2 + [False] * 8
    assert frame.step.tolist()[2:] == [0, 1, 2, 3] * 2
    assert frame.ran.isna().tolist() == [True] * 6 + [False] * 4
    assert frame.ran.tolist()[6:] == [0, 2, 0, 2]
    assert set(frame["shape"]) == {(2, 3)} and set(frame.dtype) == {"float32"}
    for i, row in enumerate(np.asarray(log["cell"], float), 2):
        numbers = [row.mean(), row.std(), row.min(), row.max()]
        assert_close(frame.iloc[i][["mean", "std", "min", "max"]].tolist(), numbers)


def test_other_rows(log):
    frame = log.to_dataframe(("batch", "step"))
    cell = frame[frame.key == "cell"]
    assert list(frame.columns)[:3] == ["key", "step", "batch"]
    assert cell.step.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert cell.batch.tolist() == [0, 1] * 4
    assert_close(cell["mean"].tolist(), np.mean(log["cell"], -1).ravel().tolist())
    assert frame[frame.key == "odd"].ran.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    whole = log.to_dataframe(())
    assert whole.key.tolist() == list(log) and "step" not in whole
    assert whole["shape"].tolist() == [(2, 3), (2, 3), (4, 2, 3), (4, 2, 3)]
    assert_close(whole["std"][2], np.std(np.asarray(log["cell"], float)))
    assert whole.ran[3] == 4


def test_parts_and_what_has_no_numbers():
    bad = jnp.array([1.0, jnp.nan, jnp.inf])
    entries = {"a": px.MeanStd(bad, None), "b": None, "c": jax.random.key(0)}
    frame = px.Log(entries | {"d": bad[1:]}).to_dataframe()
    assert frame.key.tolist() == ["a", "b", "c", "d"]
    assert frame.part.tolist() == ["mean", "", "", ""]
    assert frame["mean"].isna().tolist() == [False, True, True, True]
    assert frame["mean"][0] == 1 and frame["dtype"][2] == "key<fry>"
    assert frame.nonfinite.fillna(-1).tolist() == [2, -1, -1, 2]
    assert px.Log().to_dataframe().empty


def test_axes_of_a_transformation_around():
    axes = {"a": (Axis("step", 3, "m.py:1"), Axis("step", 2, "m.py:2"))}
    log = px.Log({"a": jnp.arange(24.0).reshape(4, 3, 2)}, axes=axes)
    frame = log.to_dataframe()
    assert frame.step.tolist() == [0, 0, 1, 1, 2, 2]
    assert frame["step#1"].tolist() == [0, 1] * 3
    assert_close(frame["mean"].tolist(), [9.0, 10.0, 11.0, 12.0, 13.0, 14.0])
    # Of other sizes they aren't there.
    shorter = px.Log({"a": jnp.ones(5)}, axes=axes).to_dataframe()
    assert shorter["shape"].tolist() == [(5,)]


CALLS = {
    "to_dict()": lambda log: log.to_dict(),
    "to_dataframe()": lambda log: log.to_dataframe(),
    "save(...)": lambda log: log.save("x.safetensors"),
    "plot('a')": lambda log: log.plot("a"),
}


@pytest.mark.parametrize("call", CALLS)
def test_numbers_that_are_not_known(call):
    def refused(log, match):
        said = rf"^`log\..*` needs the numbers of the log, but those of 'a' {match}"
        with pytest.raises(px.LogValueError, match=said) as error:
            CALLS[call](log)
        assert str(error.value).startswith(f"`log.{call}` needs")

    write = r"aren't known here: JAX is tracing\. Return the log from the function "
    match = write + r"that is transformed, and write `log\..*` outside of it\.$"
    jax.eval_shape(lambda log: refused(log, match), px.Log({"a": jnp.ones(2)}))
    shapes = px.Log({"a": jax.ShapeDtypeStruct((2,), jnp.float32)})
    refused(shapes, r"aren't known here: it is a shape alone\. Run the model, and wr")
    gone = jnp.ones(2) + 1
    gone.delete()
    match = r"aren't known here: its array was donated or deleted\. Write `log\..*` "
    refused(px.Log({"a": gone}), match + r"before, or don't donate the log\.$")


def test_misused(monkeypatch):
    log = px.Log({"a": jnp.ones(2)})
    match = (
        r"^`log\.to_dataframe\(rows=\.\.\.\)` takes the kinds of axes along which "
        r"there is a row each, of 'device', 'step', 'batch'; got 'layer'\. `rows=\(\)"
    )
    with pytest.raises(ValueError, match=match):
        log.to_dataframe("layer")
    match = (
        r"^`log\.to_dict\(\)` takes a log of arrays, but 'a/f' is of type .*Function"
    )
    with pytest.raises(px.LogValueError, match=match):
        px.Log({"a": {"f": jnp.tanh}}).to_dict()
    monkeypatch.setitem(sys.modules, "pandas", None)
    match = r'^`log\.to_dataframe` needs pandas.*`pip install "peex\[experiments\]"`\.$'
    with pytest.raises(ImportError, match=match):
        log.to_dataframe()
