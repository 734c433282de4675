"""Dicts that a loss is given, holds or sees in its model: as without hooks."""

import equinox as eqx
import jax.numpy as jnp
import pytest
from closeness import assert_close
from dicts import Each, folded, items, UNSORTED, X
from wrapped import linear

import peex as px


@pytest.mark.parametrize("forward", [None, px.IdentityLog()])
@pytest.mark.parametrize("name", [*UNSORTED, "sorted"])
def test_a_loss_is_given_the_very_arguments(name, forward):
    given = UNSORTED.get(name, lambda x: {"z": x, "a": 2 * x})(X)
    seen = []

    def loss(model, given, *, named):
        seen.append((given, named))
        return jnp.sum(model(folded(given)) - 2 * folded(named))

    step = px.value_and_grad(loss, forward=forward)
    expected = eqx.filter_value_and_grad(loss)(linear(), given, named=given)
    for _ in range(2):
        (value, _), grads = step(linear(), given, named=given)
        assert_close((value, grads), expected)
    assert all(a is given and b is given for a, b in seen)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_a_loss_that_holds_a_dict(jit):
    class Loss(eqx.Module):
        scales: dict

        def __call__(self, model, x):
            return jnp.sum(model(x) * folded(self.scales))

    loss = Loss({"z": X, "a": 2 * X})
    wrap = eqx.filter_jit if jit else lambda f: f
    expected = wrap(eqx.filter_value_and_grad(loss))(linear(), X)
    step = px.value_and_grad(loss)
    for _ in range(2):
        (value, _), grads = wrap(step)(linear(), X)
        assert_close((value, grads), expected)


def test_a_loss_sees_its_model_as_without_hooks():
    orders = []

    def loss(model, x):
        orders.append(list(model.layers))
        return jnp.sum(model(x))

    model = Each(dict(items()))
    expected = eqx.filter_value_and_grad(loss)(model, X)
    (value, _), grads = px.value_and_grad(loss)(model, X)
    assert_close((value, grads), expected)
    assert orders[0] == orders[1]


def test_init_sees_dicts_as_jit_does():
    seen = []

    def loss(model, given):
        seen.append(list(given))
        return jnp.sum(model(folded(given)))

    hooked = px.BackwardHook(linear(), method=loss)
    given = {"z": X, "a": 2 * X}
    eqx.filter_eval_shape(loss, linear(), given)
    hooked = hooked.init(given)
    assert seen[0] == seen[1] == ["a", "z"]
    hooked(given)
    assert seen[2] == ["z", "a"]
