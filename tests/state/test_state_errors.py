"""What is said of a state that doesn't fit its model."""

import jax
import jax.numpy as jnp
import pytest

import peex as px


def exported():
    tree = {"ema": {"mean": px.StateEntry(jnp.zeros(2))}, "n": px.StateEntry(0)}
    return px.export_state(tree)


def test_missing():
    bare, state = exported()
    del state["ema.mean"]
    with pytest.raises(px.PeexError) as error:
        px.import_state(bare, state)
    assert str(error.value) == (
        "The state has no value for 'ema.mean', which the model needs. It has: 'n'. To "
        "change some values only, write `px.update_state(state, {path: value})`, which "
        "keeps the others."
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"ema.maen": 1}, "'ema.maen'. The paths that it has: 'ema.mean', 'n'. Leave"),
        ({"x": 1, "y": 2, "z": 3}, "'x' (and 2 more). The paths that it has: 'ema.me"),
    ],
    ids=["one", "three"],
)
def test_unknown(more, said):
    bare, state = exported()
    with pytest.raises(px.PeexError) as error:
        px.import_state(bare, state | more)
    assert str(error.value).startswith(
        f"The model has no place for the state's entry {said}"
    )
    assert "write `px.import_state(model, state, eqx_state)`." in str(error.value)


def test_unknown_in_an_update():
    _, state = exported()
    with pytest.raises(px.PeexError) as error:
        px.update_state(state, {"ema.var": jnp.zeros(2)})
    assert str(error.value) == (
        "The state has no entry 'ema.var', so it can't be updated. Nearest: 'ema.mean'"
        ", 'n'. What is state is marked in the model, by `px.StateEntry(...)`, before "
        "`px.export_state`."
    )


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (jnp.zeros(3), r"float32\[3\]"),
        (jnp.zeros(2, jnp.int32), r"int32\[2\]"),
        ((jnp.zeros(2),), r"float32\[2\] in PyTreeDef\(\(\*,\)\)"),
        (None, r"nothing in PyTreeDef\(None\)"),
        ("text", "a str"),
    ],
    ids=["shape", "dtype", "structure", "none", "no_array"],
)
def test_misshapen(value, got):
    bare, state = exported()
    message = (
        rf"^The state's value for 'ema.mean' is {got}, but float32\[2\] was exported "
        r"from the model. Give one like that; if the model is to hold another, change "
        r"it after `px.import_state`.$"
    )
    with pytest.raises(px.PeexError, match=message):
        px.import_state(bare, state | {"ema.mean": value})
    message = (
        rf"^The state's entry 'ema.mean' holds float32\[2\]; it can't become {got}. "
        r"Give a value of that structure, shape and dtype, as by "
        r"`new.astype\(old.dtype\)`.$"
    )
    with pytest.raises(px.PeexError, match=message):
        px.update_state(state, {"ema.mean": value})


def test_a_batch_is_misshapen_in_an_update_alone():
    bare, state = exported()
    batch = jnp.zeros((5, 2))
    tree = px.import_state(bare, state | {"ema.mean": batch})
    assert tree["ema"]["mean"].value is batch
    with pytest.raises(px.PeexError, match=r"can't become float32\[5, 2\]"):
        px.update_state(state, {"ema.mean": batch})


@pytest.mark.parametrize(
    "mark", [px.StateEntry(jnp.zeros(2)), px.StateKey("b")], ids=["entry", "key"]
)
def test_nested(mark):
    with pytest.raises(px.PeexError) as error:
        px.export_state({"a": [px.StateEntry({"sums": (jnp.zeros(1), mark)})]})
    assert str(error.value) == (
        "The state entry 'a.0' holds another one, in its value['sums'][1]. Mark the "
        "whole value once, or each part of it: "
        "`{'a': px.StateEntry(a), 'b': px.StateEntry(b)}`."
    )


def test_exported_twice():
    bare, _ = exported()
    message = (
        r"^'ema.mean' is the key of an entry that was exported before, "
        r"StateKey\('ema.mean'\). Put the state back first: "
        r"`model = px.import_state\(bare, state\)`.$"
    )
    with pytest.raises(px.PeexError, match=message):
        px.export_state(bare)


def test_an_entry_is_no_key():
    entry = px.StateEntry(jnp.zeros(2))
    with pytest.raises(TypeError, match=r"wasn't exported. Write `model, state = px."):
        {"a": 1}[entry]
    # JAX needs no hash of it.
    out = jax.jit(lambda entry: entry)(entry)
    assert type(out) is px.StateEntry
