"""What may be compared: with a log in the place of a model, in inference, on the same
inputs; and what is said where it can't be.
"""

import builtins
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close
from parts import Outer, Pair, Seq

import peex as px


X = jnp.array([0.5, -1.0, 2.0, 0.0])


def linear(seed=0, out=4):
    return eqx.nn.Linear(4, out, key=jax.random.key(seed))


MODEL = Pair(linear(0), linear(1))


@pytest.fixture(scope="module")
def logs():
    """Of another model, whose second layer is wrong."""
    wrong = eqx.tree_at(lambda m: m.second.weight, MODEL, 2 * MODEL.second.weight)
    loss = lambda model, x: jnp.sum(model(x) ** 2)
    where = ["**", "**:in"]
    run = px.value_and_grad(loss, forward=px.IdentityLog(), where=where)
    (_, logs), _ = eqx.filter_jit(run)(wrong, X)
    return logs


def test_a_mapping(logs):
    arrays = {key: np.asarray(x) for key, x in logs.forward.items()}
    result = px.debug.compare(MODEL, arrays, X)
    assert [row.key for row in result.rows] == ["first", "second", "."]
    assert all(row.local_error is None for row in result.rows)
    assert (result.culprits, result.parameters) == (["second"], [])
    assert result.first.key == "second" and result["second"].input_error == 0
    assert_close(result["second"].error, 0.5, rtol=0.2)
    # Without what was given: the first that differs.
    arrays = {key: arrays[key] for key in ("first", "second")}
    result = px.debug.compare(MODEL, arrays, X)
    assert result.culprits == ["second"] and result["second"].input_error is None


def test_a_log_of_steps():
    run = lambda model, x: jax.lax.scan(lambda x, _: (model(x), None), x, length=3)[0]
    _, log = px.ForwardHook(MODEL, where="**", method=run)(X)
    arrays = dict(log) | {"second": log["second"].at[1].add(1.0)}
    result = px.debug.compare(MODEL, arrays, X, method=run)
    assert result.culprits == ["second[1]"] and len(result.rows) == 9


def test_logs_of_both_passes(logs):
    loss = lambda model, x: jnp.sum(model(x) ** 2)
    result = px.debug.compare(MODEL, logs, X, method=loss, grad=True)
    assert all(row.cotangent_error > 1e-2 for row in result.rows)
    # The loss is a sum of squares.
    x, y = 2 * MODEL(X), logs.backward["second"]
    largest = max(jnp.max(jnp.abs(x)), jnp.max(jnp.abs(y)))
    far = float(jnp.max(jnp.abs(x - y)) / largest)
    assert_close(result["second"].cotangent_error, far, rtol=1e-4)
    with pytest.raises(px.PeexError, match=r"logs of a loss, but .* returns f32\[4\]"):
        px.debug.compare(MODEL, logs, X, grad=True)


def test_a_log_has_no_backward_pass(logs):
    expected = r"needs the backward pass.*Give `px.Logs\(backward=..., forward=...\)`"
    with pytest.raises(px.PeexError, match=expected):
        px.debug.compare(MODEL, logs.forward, X, grad=True)


def test_a_file(logs, tmp_path):
    save = pytest.importorskip("safetensors.numpy").save_file
    path = tmp_path / "log.safetensors"
    save({key: np.asarray(x) for key, x in logs.forward.items()}, path)
    for given in (path, str(path)):
        assert px.debug.compare(MODEL, given, X).culprits == ["second"]


def test_a_saved_log_keeps_its_steps(tmp_path):
    """So that a stack can be compared with layers in a list."""
    pytest.importorskip("safetensors")
    layers = [linear(0), linear(1)]
    stack = jax.tree.map(lambda *x: jnp.stack(x), *layers)
    run = lambda stack, x: jax.lax.scan(lambda x, f: (f(x), None), x, stack)[0]
    _, log = px.ForwardHook(stack, where=["**", "**:in"], method=run)(X)
    log.save(tmp_path / "log.safetensors")
    wrong = eqx.tree_at(lambda m: m.parts[1].bias, Seq(layers), jnp.ones(4))
    match = {"parts.*": "."}
    result = px.debug.compare(wrong, tmp_path / "log.safetensors", X, match=match)
    assert result.culprits == ["parts.1"]
    assert [row.other for row in result.rows] == [".[0]", ".[1]"]


def test_a_file_without_the_extra(monkeypatch):
    for name in ("safetensors", "safetensors.numpy"):
        monkeypatch.setitem(sys.modules, name, None)
    expected = r"Log.load` needs safetensors.*peex\[safetensors\]"
    with pytest.raises(ImportError, match=expected):
        px.debug.compare(MODEL, "log.safetensors", X)


def test_inputs_that_differ(logs):
    expected = (
        r"The inputs differ: args\[0\], float32\[4\], is 0.\d+ of the largest value "
        r"away .*`to_other` makes.*`match=\{'args\[0\]': None\}`"
    )
    with pytest.raises(px.NotCloseError, match=expected):
        px.debug.compare(MODEL, dict(logs.forward) | {".:in": X + 1}, X)
    with pytest.raises(px.NotCloseError, match=expected):
        px.debug.compare(MODEL, MODEL, X, to_other=lambda x: 2 * x)
    # Meant to differ; and of another layout, which is fine.
    match = {"args[0]": None}
    result = px.debug.compare(MODEL, MODEL, X, to_other=lambda x: 2 * x, match=match)
    assert result.culprits == [] and result.first.key == "first"
    batch = lambda model, x: jax.vmap(model)(x) if x.ndim == 2 else model(x)
    result = px.debug.compare(
        MODEL, MODEL, X, method=batch, to_other=lambda x: (x[None],)
    )
    result.assert_close()


def test_dropout_is_on():
    model = Seq([linear(), eqx.nn.Dropout(0.5)])
    expected = (
        r"The model isn't in inference mode: 'parts.1' \(Dropout\) has "
        r"`inference=False`.*`eqx.nn.inference_mode\(model\)`"
    )
    with pytest.raises(px.PeexError, match=expected):
        px.debug.compare(model, MODEL, X)
    with pytest.raises(px.PeexError, match=r"The other isn't in inference mode"):
        px.debug.compare(MODEL, model, X)
    fine = eqx.nn.inference_mode(model)
    never = eqx.tree_at(lambda m: m.parts[1], model, eqx.nn.Dropout(0.0))
    result = px.debug.compare(fine, never, X)
    assert result.culprits == [] and result.unmatched == []


def test_nothing_belongs_together():
    other = Outer(linear(3, 7))
    expected = (
        r"Nothing of the two models belongs together.*'first', 'second'.*the other "
        r"'inner'\. Say what belongs together.*`match="
    )
    with pytest.raises(px.SiteNotFoundError, match=expected):
        px.debug.compare(MODEL, other, X)


def test_only_calls_of_other_shapes_have_equal_parameters():
    batch = lambda model, x: jax.vmap(model)(x)
    xs = {"to_other": lambda x: (jnp.stack([x, x, x]),)}
    run = lambda model, x: batch(model, x) if x.ndim == 2 else model(x)
    expected = r"No permutation of axes aligns 'first', f32\[4\], with 'first' of the o"
    with pytest.raises(px.LogShapeError, match=expected):
        px.debug.compare(MODEL, MODEL, X, method=run, **xs)


def test_what_is_no_model(monkeypatch):
    with pytest.raises(TypeError, match=r"`other` is an Equinox module.*got 3"):
        px.debug.compare(MODEL, 3, X)

    class Torch:  # as PyTorch looks from here
        Module = type(MODEL)

    Torch.nn = Torch
    monkeypatch.setitem(sys.modules, "torch", Torch)
    with pytest.raises(TypeError, match=r"`model` is a module of PyTorch.*other way"):
        px.debug.compare(MODEL, MODEL, X)
    monkeypatch.undo()
    with pytest.raises(TypeError, match=r"`match` is a dict from patterns.*got 'a'"):
        px.debug.compare(MODEL, MODEL, X, match="a")
    with pytest.raises(ValueError, match=r"`truth` is the dtype.*got 'bfloat16'"):
        px.debug.compare(MODEL, MODEL, X, truth="bfloat16")


def test_nothing_to_differentiate():
    run = lambda model, x: model(x) if x.ndim == 1 else jnp.argmax(model(x[0]))
    other = {"to_other": lambda x: (x[None],)}
    expected = r"the model returns f32\[4\], and the other i32\[\], which have no float"
    with pytest.raises(px.PeexError, match=expected):
        px.debug.compare(MODEL, MODEL, X, method=run, grad=True, **other)


def test_picture_without_matplotlib(monkeypatch):
    from peex.debug import Comparison

    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"needs matplotlib.*peex\[experiments\]"):
        Comparison([], [], [], []).plot()
