"""Values inside of a forward pass, by the names that people write."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from parts import Whole
from twin_case import linear

import peex as px


X = jnp.array([0.5, -1.0, 2.0])


def operators(m, x):
    """Written with operators and primitives, none of which is called by such a name."""
    y = lax.logistic(lax.dot_general(m.weight, x, (((1,), (0,)), ((), ()))))
    z = lax.max(y, lax.sub(x, y))
    z = lax.sub(z, y)
    return lax.select_n(z > 0.1, lax.neg(z), lax.div(z, 1 + lax.exp(x)))


def expected(m, x):
    y = jax.nn.sigmoid(m.weight @ x)
    larger = jnp.maximum(y, x - y)
    z = larger - y
    quotient = z / (1 + jnp.exp(x))
    return {
        "sigmoid": [y],
        "matmul": [m.weight @ x],
        "einsum": [m.weight @ x],
        "maximum": [larger],
        "subtract": [x - y, z],
        "greater": [z > 0.1],
        "where": [jnp.where(z > 0.1, quotient, -z)],
        "negative": [-z],
        "divide": [quotient],
        "true_divide": [quotient],
    }


LIN = linear(3, 3, 0)


def names(key, n):
    return [key if i == 0 else f"{key}#{i}" for i in range(n)]


@pytest.mark.parametrize("jit", [lambda f: f, eqx.filter_jit], ids=["eager", "jit"])
@pytest.mark.parametrize("name", expected(LIN, X))
def test_aliases(name, jit):
    values = expected(LIN, X)[name]
    hooked = px.ForwardHook(Whole(LIN, operators), where=f"./{name}")
    out, log = jit(hooked)(X)
    np.testing.assert_allclose(out, operators(LIN, X), rtol=1e-6)
    assert list(log) == names(f"./{name}", len(values))
    for key, value in zip(log, values, strict=True):
        np.testing.assert_allclose(log[key], value, rtol=1e-6)


def test_a_further_one_of_an_alias():
    hooked = px.ForwardHook(Whole(LIN, operators), where="./subtract#1")
    _, log = hooked(X)
    assert list(log) == ["./subtract#1"]
    _, second = expected(LIN, X)["subtract"]
    np.testing.assert_allclose(log["./subtract#1"], second, rtol=1e-6)


def test_an_alias_in_a_loop_and_a_branch():
    def run(m, x):
        step = lambda x, _: (lax.cond(x[0] > -9, lax.logistic, lambda x: x, x), None)
        return lax.scan(step, x, length=3)[0]

    _, log = px.ForwardHook(Whole(LIN, run), where="./sigmoid")(X)
    values, x = [], X
    for _ in range(3):
        x = jax.nn.sigmoid(x)
        values.append(x)
    np.testing.assert_allclose(log["./sigmoid"], jnp.stack(values), rtol=1e-6)


def test_cotangents_of_an_alias():
    loss = lambda model, x: jnp.sum(jnp.sin(model(x)))
    logs = [
        px.value_and_grad(loss, where=f"./{name}")(Whole(LIN, operators), X)[0][1]
        for name in ("sigmoid", "logistic")
    ]
    alias, primitive = (log.backward for log in logs)
    np.testing.assert_allclose(alias["./sigmoid"], primitive["./logistic"], rtol=1e-6)


def test_what_has_the_name_itself_comes_first():
    # A function of the model's own, and one of JAX's with more than one operation.
    def sigmoid(x):
        return 2 * lax.logistic(x)

    def run(m, x):
        return sigmoid(m.weight @ x) + lax.logistic(x)

    _, log = px.ForwardHook(Whole(LIN, run), where="./sigmoid")(X)
    assert list(log) == ["./sigmoid"]
    np.testing.assert_allclose(log["./sigmoid"], sigmoid(LIN.weight @ X), rtol=1e-6)


def test_power():
    for run in (lambda m, x: x**3, lambda m, x: lax.pow(jnp.abs(x), 0.5)):
        _, log = px.ForwardHook(Whole(LIN, run), where="./power")(X)
        np.testing.assert_allclose(log["./power"], run(LIN, X), rtol=1e-6)


def test_names_nearest_first_then_all():
    match = (
        r"`where='./logistics'` was asked for, but nothing in the forward pass that "
        r"ran has this name. Names there, nearest first: 'logistic' "
        r"(?=.*'dot_general')(?=.*'max')(?=.*'select_n')(?=.*'div')(?=.*'exp')(?=.*'neg')"
    )
    with pytest.raises(px.SiteNotFiredError, match=match):
        px.ForwardHook(Whole(LIN, operators), where="./logistics")(X)


def test_an_alias_of_what_is_not_there():
    with pytest.raises(px.SiteNotFiredError, match=r"'./sum'` was .*nothing in the fo"):
        px.ForwardHook(Whole(LIN, operators), where="./sum")(X)


def test_fewer_of_a_name():
    match = "'./sub#7'` was asked for, but there are fewer of this name in the forward "
    with pytest.raises(px.SiteNotFiredError, match=match):
        px.ForwardHook(Whole(LIN, operators), where="./sub#7")(X)
