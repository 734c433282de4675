"""Equinox's own layers, wrapped: against the model unwrapped."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from closeness import assert_close
from wrapped import check, linear, same

import peex as px


KEY = jax.random.key(0)
X = jnp.array([0.5, -1.0])
XS = jnp.stack([X, 2 * X, -3 * X])


def test_sequential():
    model = eqx.nn.Sequential([linear(), eqx.nn.Lambda(jax.nn.relu), linear(1)])
    log = check(model, X, keys=["layers.0", "layers.1", "layers.2"])
    assert_close(log["layers.1"], jax.nn.relu(linear()(X)))
    check(model, X, where="**", keys=["layers.0", "layers.1", "layers.2", "."])


def batch_norm(mode):
    norm = eqx.nn.BatchNorm(2, axis_name="batch", mode=mode)
    return eqx.nn.make_with_state(eqx.nn.Sequential)(
        [linear(), norm, eqx.nn.Lambda(jnp.tanh), linear(1)]
    )


def run(model, xs, state):
    call = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
    return call(xs, state)


@pytest.mark.parametrize("mode", ["batch", "ema"])
@pytest.mark.parametrize("inference", [False, True])
def test_stateful_layers(mode, inference):
    model, state = batch_norm(mode)
    if inference:
        state = run(model, XS, state)[1]  # its statistics must be there
        model = eqx.nn.inference_mode(model)
    out, new_state = run(model, XS, state)
    hooked = px.ForwardHook(model, method=run)
    (got, got_state), log = hooked(XS, state)
    same(got, out)
    same(got_state, new_state)
    assert list(log) == [f"layers.{i}" for i in range(4)]
    # The value is the output alone, without the state.
    a = jax.vmap(model.layers[0])(XS)
    assert_close(log["layers.0"], a)
    assert_close(log["layers.1"], run(model.layers[1], a, state)[0], rtol=1e-5)
    # As a function around the wrapper, with the batch axis of the caller.
    (got, log2), _ = hooked_outside(model, XS, state)
    same(got, out)
    same(dict(log2), dict(log))

    backward = px.BackwardHook(model, method=run).init(XS, state)
    loss = lambda h, *args: jnp.sum(jnp.sin(h(*args)[0]))
    grads = eqx.filter_grad(loss)(backward, XS, state)
    plain = eqx.filter_grad(lambda m: jnp.sum(jnp.sin(run(m, XS, state)[0])))(model)
    same(grads.model, plain)
    assert_close(
        grads.log["layers.0"].sum(0), plain.layers[0].bias, rtol=1e-5, atol=1e-6
    )


def hooked_outside(model, xs, state):
    def call(x, state):
        (out, state), log = px.ForwardHook(model)(x, state)
        return (out, log), state

    return jax.vmap(call, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(
        xs, state
    )


def test_edit_of_a_stateful_layer():
    model, state = batch_norm("batch")
    hooked = px.ForwardHook(model, px.ZeroHook(), where="layers.1", method=run)
    (out, new_state), log = hooked(XS, state)
    same(new_state, run(model, XS, state)[1])
    assert_close(out, jnp.stack([linear(1).bias] * 3))
    assert not np.any(log["layers.1"])


class Spectral(eqx.Module):
    norm: eqx.nn.SpectralNorm

    def __call__(self, x, state):
        return self.norm(x, state)


def test_spectral_norm():
    norm = eqx.nn.make_with_state(eqx.nn.SpectralNorm)
    layer, state = norm(layer=linear(), weight_name="weight", key=KEY)
    check(Spectral(layer), X, state, keys=["norm.layer"])
    log = check(Spectral(layer), X, state, where="norm", keys=["norm"])
    assert_close(log["norm"], layer(X, state)[0])
    assert log["norm"].shape == (2,)


def test_weight_norm():
    model = eqx.nn.WeightNorm(linear())
    log = check(model, X, where="**", keys=["layer", "."])
    # The layer runs with the normalised weight.
    assert_close(log["layer"], model(X))


class LanguageModel(eqx.Module):
    shared: eqx.nn.Shared

    def __init__(self):
        embedding = eqx.nn.Embedding(5, 2, key=KEY)
        head = eqx.nn.Linear(2, 5, use_bias=False, key=KEY)
        where = lambda pair: pair[1].weight
        get = lambda pair: pair[0].weight
        self.shared = eqx.nn.Shared((embedding, head), where, get)

    def __call__(self, token):
        embedding, head = self.shared()
        return head(jnp.tanh(embedding(token)))


def test_shared():
    model = LanguageModel()
    token = jnp.array(3)
    weight = model.shared.pytree[0].weight
    keys = ["shared.pytree.0", "shared.pytree.1"]
    log = check(model, token, where=keys, keys=keys)
    np.testing.assert_array_equal(log[keys[0]], weight[3])
    assert_close(log[keys[1]], weight @ jnp.tanh(weight[3]))
    check(model, token, keys=keys)


class Dropouts(eqx.Module):
    first: eqx.nn.Dropout
    second: eqx.nn.Dropout

    def __call__(self, x, *, key, inference=None):
        key1, key2 = jax.random.split(key)
        x = self.first(x, key=key1, inference=inference)
        return self.second(x, key=key2, inference=inference)


def test_dropout():
    model = Dropouts(eqx.nn.Dropout(0.5), eqx.nn.Dropout(0.3))
    x = jnp.arange(1.0, 20.0)
    log = check(model, x, key=KEY, keys=["first", "second"])
    dropped = model.first(x, key=jax.random.split(KEY)[0])
    np.testing.assert_array_equal(log["first"], dropped)
    check(model, x, key=KEY, inference=True, keys=["first", "second"])
    still = check(eqx.nn.inference_mode(model), x, key=KEY, keys=["first", "second"])
    # Set on the wrapper, it is the model's.
    hooked = eqx.nn.inference_mode(px.ForwardHook(model))
    assert hooked(x, key=KEY)[1] == still
    assert jnp.array_equal(still["second"], x)


def test_attention():
    attention = eqx.nn.MultiheadAttention(2, 4, key=KEY)
    xs = jax.random.normal(KEY, (5, 4))
    names = ("query_proj", "key_proj", "value_proj", "output_proj")
    keys = [names[0], names[1], names[2], "dropout", names[3]]
    log = check(attention, xs, xs, xs, mask=jnp.tril(jnp.ones((5, 5), bool)))
    assert set(log) >= set(names)
    assert [k for k in log if k in names] == [k for k in keys if k in names]
    for name in names[:3]:
        layer = getattr(attention, name)
        assert_close(log[name], jax.vmap(layer)(xs), rtol=1e-5)
    out = attention(xs, xs, xs, mask=jnp.tril(jnp.ones((5, 5), bool)))
    assert_close(log[names[3]], out, rtol=1e-5)


def test_mlp():
    mlp = eqx.nn.MLP(2, 2, 4, 2, activation=jnp.tanh, key=KEY)
    check(mlp, X, keys=["layers.0", "layers.1", "layers.2"])
    mlp = eqx.nn.MLP(2, 2, 4, 1, activation=eqx.nn.PReLU(0.1), key=KEY)
    # A callable for each neuron, which Equinox maps over.
    log = check(mlp, X)
    assert "activation" in log
    a = mlp.layers[0](X)
    assert_close(log["activation"], jnp.where(a > 0, a, 0.1 * a))


def test_convolution_and_pooling():
    model = eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(1, 2, 3, key=KEY),
            eqx.nn.Lambda(eqx.nn.PReLU()),
            eqx.nn.MaxPool2d(2),
            eqx.nn.GroupNorm(1, 2),
            eqx.nn.Lambda(jnp.ravel),
            eqx.nn.Identity(),
        ]
    )
    x = jax.random.normal(KEY, (1, 6, 6))
    # `Lambda` isn't a leaf here: a module is inside.
    names = ("0", "1.fn", "2", "3", "4", "5")
    check(model, x, keys=[f"layers.{name}" for name in names])


def test_ensemble():
    # Members stacked along the first axis, each called on the same input.
    make = lambda key: eqx.nn.MLP(2, 2, 3, 1, key=key)
    model = eqx.filter_vmap(make)(jax.random.split(KEY, 4))

    def call(model, x):
        return eqx.filter_vmap(lambda m, x: m(x), in_axes=(eqx.if_array(0), None))(
            model, x
        )

    (out, log) = px.ForwardHook(model, method=call)(X)
    same(out, call(model, X))
    assert log["layers.0"].shape == (4, 3)
    wrapped = px.ForwardHook(model)
    out2, log2 = eqx.filter_vmap(lambda h, x: h(x), in_axes=(eqx.if_array(0), None))(
        wrapped, X
    )
    same(out2, out)
    same(dict(log2), dict(log))


# Arguments and outputs


class Options(eqx.Module):
    lin: eqx.nn.Linear

    def __call__(self, mode, x, n, /, *, scale, fn=jnp.tanh, extra=None):
        assert mode == "double" and type(n) is int and extra is None
        for _ in range(n):
            x = fn(scale * self.lin(x))
        return {"double": 2 * x}[mode]


class Calls(eqx.Module):
    options: Options

    def __call__(self, x):
        return self.options("double", x, 2, scale=0.5)


@pytest.mark.parametrize("pre_hook", [False, True])
def test_arguments_that_are_no_arrays(pre_hook):
    model = Calls(Options(linear()))
    where = ["options", "options.lin"]
    out, log = px.ForwardHook(model, where=where, pre_hook=pre_hook)(X)
    same(out, model(X))
    if pre_hook:
        same(log["options"], (None, X, None))
    hooked = px.BackwardHook(model, where=where, pre_hook=pre_hook).init(X)
    same(hooked(X), model(X))
    # And given to the wrapper itself.
    out, _ = px.ForwardHook(model.options, pre_hook=pre_hook)("double", X, 2, scale=0.5)
    same(out, model(X))
    hooked = px.BackwardHook(model.options).init("double", X, 2, scale=0.5)
    same(hooked("double", X, 2, scale=0.5), out)


class KeywordOnly(eqx.Module):
    lin: eqx.nn.Linear

    def __call__(self, *, x):
        return self.lin(x=x)


def test_keyword_only_calls():
    check(KeywordOnly(linear()), x=X, keys=["lin"])
    _, log = px.ForwardHook(KeywordOnly(linear()), pre_hook=True)(x=X)
    assert log["lin"] == ()
    hooked = px.ForwardHook(KeywordOnly(linear()), pre_hook=True, with_kwargs=True)
    _, log = hooked(x=X)
    same(log["lin"], ((), {"x": X}))


class Named(NamedTuple):
    mean: Any
    info: Any


@jtu.register_dataclass
@dataclasses.dataclass
class Data:
    mean: Any
    std: Any
    name: str = dataclasses.field(metadata={"static": True}, default="data")


class Structured(eqx.Module):
    kind: Any = eqx.field(static=True)

    def __call__(self, x):
        return self.kind(2 * x, x**2)


@pytest.mark.parametrize("kind", [Named, Data, lambda a, b: [a, {"b": (b,)}]])
def test_structured_outputs(kind):
    model = Structured(kind)
    log = check(model, X, keys=["."])
    same(log["."], model(X))
    hook = lambda value: jtu.tree_map(jnp.negative, value)
    out, _ = px.ForwardHook(model, hook)(X)
    same(out, jtu.tree_map(jnp.negative, model(X)))
