"""Dicts as `forward` and `backward` of `px.value_and_grad`, which choose sites."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from closeness import assert_close
from twin_models import MLP

import peex as px


MODEL = MLP(3, 4, 2, key=jr.key(0))
XS = jr.normal(jr.key(1), (5, 3))


def loss(model, xs):
    return jnp.mean(jax.vmap(model)(xs) ** 2)


def run(**kwargs):
    return px.value_and_grad(loss, **kwargs)(MODEL, XS)


def test_each_chooses_its_own_sites():
    (value, logs), grads = run(
        forward={"linear2:in": px.IdentityLog(), "linear1": px.NormLog()},
        backward={"linear2": px.IdentityLog()},
    )
    expected_value, expected = eqx.filter_value_and_grad(loss)(MODEL, XS)
    assert_close((value, grads), (expected_value, expected))
    assert list(logs.forward) == ["linear1", "linear2:in"]
    assert list(logs.backward) == ["linear2"]
    hidden = jax.nn.relu(jax.vmap(MODEL.linear1)(XS))
    assert_close(logs.forward["linear2:in"], hidden)
    assert_close(logs.backward["linear2"], 2 * jax.vmap(MODEL)(XS) / 10)


def test_one_of_them_is_no_dict():
    (_, logs), _ = run(forward={".": px.IdentityLog()})
    assert list(logs.forward) == ["."]
    assert set(logs.backward) == {"linear1", "linear2"}
    (_, logs), _ = run(forward=px.NormLog(), backward={"linear1:in": px.NormLog()})
    assert list(logs.backward) == ["linear1:in"]
    assert set(logs.forward) == {"linear1", "linear2"}
    (_, logs), _ = run(forward={"linear1:in": px.NormLog()}, backward=None)
    assert list(logs.forward) == ["linear1:in"] and list(logs.backward) == []


def test_none_is_no_log():
    logs_ = {"linear1": None, "linear*": px.NormLog()}
    (_, logs), _ = run(forward=logs_, backward=logs_)
    assert list(logs.forward) == list(logs.backward) == ["linear2"]
    (_, logs), _ = run(forward={}, backward={})
    assert list(logs.forward) == list(logs.backward) == []


def test_hooks_beside_them():
    double = {"linear2:in": px.ScaleHook(2.0)}
    (_, logs), grads = run(backward={"linear1": px.IdentityLog()}, hook_fn=double)
    (_, plain), expected = run(backward={"linear1": px.IdentityLog()})
    assert_close(logs.backward["linear1"], 2 * plain.backward["linear1"])
    assert_close(grads.linear2, expected.linear2)
    (_, logs), _ = run(backward={"linear1": px.IdentityLog()}, hook_fn=px.ZeroHook())
    np.testing.assert_array_equal(logs.backward["linear1"], 0)


def test_where_chooses_if_it_is_there():
    logs_ = {"linear1": px.NormLog()}
    (_, logs), _ = run(forward=logs_, where=["linear1", "linear2"])
    assert list(logs.forward) == ["linear1"]
    with pytest.raises(
        px.SiteNotFoundError, match="'linear1' of `log_fn` matches none"
    ):
        run(forward=logs_, where="linear2")


@pytest.mark.parametrize("which", ["forward", "backward"])
def test_a_pattern_that_never_fires(which):
    class Reads(eqx.Module):
        read: eqx.nn.Linear
        head: eqx.nn.Linear

        def __call__(self, x):
            return self.head(self.read.weight @ x)

    model = Reads(MODEL.linear1, MODEL.linear2)
    logs = {which: {"head": px.NormLog(), "read:in": px.NormLog()}}
    message = "`where='read:in'` was asked for, but nothing of it ran"
    with pytest.raises(px.SiteNotFiredError, match=message):
        px.value_and_grad(loss, **logs)(model, XS)
    with pytest.raises(px.SiteNotFoundError, match="'linear3:in'` matches nothing"):
        run(**{which: {"linear3:in": px.NormLog()}})
