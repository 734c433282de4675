"""A log as a file of safetensors: what comes back is the same; others can read it."""

import collections
import json
import sys
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from logged import record
from safetensors.numpy import load_file, save_file

import peex as px


class Pair(NamedTuple):
    first: Any
    second: Any


class Marked(eqx.Module):
    value: Any
    unit: str = eqx.field(static=True)


def back(log, tmp_path):
    path = tmp_path / "log.safetensors"
    log.save(path)
    return px.Log.load(path)


def types_of(log):
    return [(x.dtype, x.shape) for x in jax.tree.leaves((dict(log), log.counts))]


@pytest.mark.parametrize(
    "log_fn", [px.IdentityLog(), px.MeanStdLog()], ids=["values", "statistics"]
)
def test_round_trip(log_fn, tmp_path):
    log = record(log_fn)
    found = back(log, tmp_path)
    assert found == log and isinstance(found, px.Log)
    # What equality doesn't look at.
    assert list(found) == list(log) == ["twice", "twice#1", "cell", "odd"]
    assert found.axes == log.axes and len(found.axes["odd"]) == 2
    assert found.axes["odd"][0].loop == log.axes["odd"][0].loop != ""
    assert jax.tree.structure(found) == jax.tree.structure(log)
    assert types_of(found) == types_of(log)
    assert found.counts["odd"].dtype == jnp.int32
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(found))


def test_of_a_backward_hook(tmp_path):
    linear = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    log = px.BackwardHook(linear, log_fn=lambda x: x >= 0).init(jnp.ones(2)).log
    found = back(log, tmp_path)
    assert found == log and found["."].dtype == bool


@pytest.mark.parametrize(
    "entry",
    [
        jnp.array([1.5, jnp.nan, -jnp.inf], jnp.bfloat16),
        jnp.array([0.5, 3.0], jnp.float8_e4m3fn),
        jnp.array([-8, 7], jnp.int4),
        jnp.array([[1 + 2j]]),
        np.array([2.0**60, 1e-300]),
        np.array([1 + 2j], np.complex128),
        np.arange(6, dtype=np.int8).reshape(2, 3).T,
        jnp.array([True, False]),
        jnp.uint32(2**32 - 1),
        jnp.zeros((0, 3)),
        np.float32(0.5),
        jax.random.split(jax.random.key(3, impl="rbg"), 2),
        [None, 1, 2.5, True, ()],
        {"b": jnp.ones(1), "a": {1: jnp.ones(2), 0.5: ({},)}, "": None},
        Pair(jnp.ones(2), Marked({"x": jnp.ones(1)}, "mV")),
    ],
    ids=[
        *("bfloat16", "float8", "int4", "complex", "float64", "complex128"),
        *("transposed", "bool", "uint32", "empty", "scalar", "keys", "numbers"),
        *("dicts", "records"),
    ],
)
def test_kinds_of_entries(entry, tmp_path):
    log = px.Log({"a": entry})
    found = back(log, tmp_path)
    assert jax.tree.structure(found) == jax.tree.structure(log)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(log), strict=True):
        assert getattr(x, "dtype", type(x)) == getattr(y, "dtype", type(y))
        if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()
        assert np.shape(x) == np.shape(y)


def test_odd_keys(tmp_path):
    names = ["z", "a b", "é.ü", 'q"\\', "", "__metadata__", "a/b", "cell#1", "x:in"]
    log = px.Log({name: jnp.array([i]) for i, name in enumerate(names)})
    assert list(back(log, tmp_path)) == names and back(log, tmp_path) == log
    # Two that have one name in the file.
    log = px.Log({"a": {"b": jnp.ones(2)}, "a/b": jnp.zeros(1)})
    assert back(log, tmp_path) == log
    assert back(px.Log(), tmp_path) == px.Log()


def test_others_can_read_and_write_it(tmp_path):
    path = tmp_path / "log.safetensors"
    log = record(px.MeanStdLog())
    log.save(path)
    found = load_file(path)
    assert set(found) == {
        *(f"{key}/{name}" for key in log for name in ("mean", "std")),
        "odd:count",
    }
    np.testing.assert_array_equal(found["cell/std"], log["cell"].std)
    save_file({"b": np.ones(2, np.float32), "a": np.zeros(1)}, path)
    log = px.Log.load(str(path))
    assert set(log) == {"a", "b"} and log.axes == {} and log.counts == {}
    assert isinstance(log["b"], jax.Array)


def test_of_another_run_as_a_source(tmp_path):
    linear = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    output, log = px.ForwardHook(linear)(jnp.ones(2))
    hook = px.PatchHook(back(log, tmp_path))
    assert jnp.array_equal(px.ForwardHook(linear, hook)(jnp.zeros(2))[0], output)


def test_what_a_file_cannot_hold(tmp_path):
    class Local(NamedTuple):
        x: Any

    cases = [
        (collections.OrderedDict(a=jnp.ones(1)), r"'a', a OrderedDict: a file holds "),
        (jnp.tanh, r"'a', a .*: a file holds arrays, in dicts, lists, tuples, named t"),
        (Local(jnp.ones(1)), r"'a', a .*Local: a file names a class by its module, wh"),
        (Marked(jnp.ones(1), (1,)), r"'a': the static field 'unit' of its Marked is "),
    ]
    for entry, match in cases:
        match = rf"^`log\.save\(\.\.\.\)` can't write {match}"
        with pytest.raises(px.LogValueError, match=match):
            px.Log({"a": entry}).save(tmp_path / "x")
    match = (
        r"writes dicts whose keys are texts or numbers, but 'a' has the key \(1,\)\."
    )
    with pytest.raises(px.LogValueError, match=match):
        px.Log({"a": {(1,): jnp.ones(1)}}).save(tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_class_that_is_not_there(tmp_path, monkeypatch):
    path = tmp_path / "log.safetensors"
    px.Log({"a": Pair(jnp.ones(1), None)}).save(path)
    match = (
        r"^The entry 'a' of the file is a Pair with the fields first, second, but "
        rf"`{__name__}\.Pair` isn't there, or is another one\. Import its module first,"
    )
    monkeypatch.setattr(sys.modules[__name__], "Pair", print)
    with pytest.raises(px.LogValueError, match=match):
        px.Log.load(path)


def test_a_later_version(tmp_path):
    path = tmp_path / "log.safetensors"
    save_file({"a": np.ones(1)}, path, {"peex.Log": json.dumps({"version": 2})})
    match = r"written by a later version of peex: version 2 .* this one knows 1\. Inst"
    with pytest.raises(px.LogValueError, match=match):
        px.Log.load(path)


def test_without_safetensors(monkeypatch):
    for name in ("safetensors", "safetensors.numpy"):
        monkeypatch.setitem(sys.modules, name, None)
    install = (
        r'needs safetensors\. Install it with `pip install "peex\[safetensors\]"`\.$'
    )
    with pytest.raises(ImportError, match=rf"^`log\.save` {install}"):
        px.Log().save("x")
    with pytest.raises(ImportError, match=rf"^`px\.Log\.load` {install}"):
        px.Log.load("x")
