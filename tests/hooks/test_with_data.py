"""A function that is given data for each call, step and example."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from closeness import assert_close
from jax import lax
from twin_case import linear

import peex as px


LIN = linear(3, 3, 0)
XS = jr.normal(jr.key(0), (2, 3))


def batch_in_scan(m, xs):
    return lax.scan(lambda xs, _: (jnp.tanh(jax.vmap(m)(xs)), None), xs, length=5)[0]


def twin(data):
    """By hand, with `data[step]` added."""
    xs, values = XS, []
    for i in range(5):
        values.append(xs @ LIN.weight.T + LIN.bias + data[i])
        xs = jnp.tanh(values[-1])
    return xs, jnp.stack(values)


DATA = {
    "whole": jr.normal(jr.key(1), (5, 2, 3)),
    "of each step": jr.normal(jr.key(1), (5, 1, 3)),
    "of each example": jr.normal(jr.key(1), (1, 2, 3)),
    "one scalar of each step": jr.normal(jr.key(1), (5, 1, 1)),
    "of one value": jr.normal(jr.key(1), (3,)),
}


@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
def test_data_by_the_rank_of_the_value(data):
    hook = px.WithData(lambda value, datum: value + datum, {".": data})
    out, values = twin(jnp.broadcast_to(data, (5, 2, 3)))
    hooked = px.ForwardHook(LIN, hook, method=batch_in_scan)
    for run in (lambda f: f, eqx.filter_jit):
        got, log = run(hooked)(XS)
        assert_close(got, out, rtol=5e-6)
        assert_close(log["."], values, rtol=5e-6)


def test_data_of_another_rank_by_the_axes_of_a_log():
    """What a call logged has known axes: here a pytree for each step and example."""
    stats = lambda x: {"mean": jnp.mean(x), "outer": x[:, None] * x}
    _, log = px.ForwardHook(LIN, None, stats, method=batch_in_scan)(XS)
    act = lambda value, datum: value + datum["mean"] + datum["outer"][0]
    hooked = px.ForwardHook(LIN, px.WithData(act, log), method=batch_in_scan)
    data = log["."]["mean"][..., None] + log["."]["outer"][:, :, 0]
    assert_close(hooked(XS)[1]["."], twin(data)[1], rtol=5e-6)


def test_data_of_each_call():
    class Twice(eqx.Module):
        lin: eqx.nn.Linear

        def __call__(self, x):
            return self.lin(self.lin(x))

    model, offsets = Twice(LIN), {"lin": jnp.ones(3), "lin#1": 2 * jnp.ones(3)}
    add = lambda value, datum: value + datum
    out, _ = px.ForwardHook(model, px.WithData(add, offsets))(XS[0])
    assert_close(out, LIN(LIN(XS[0]) + 1) + 2, rtol=5e-6)
    hook = px.WithData(add, {"lin#1": 2 * jnp.ones(3)})
    out, _ = px.ForwardHook(model, hook, where="lin#1")(XS[0])
    assert_close(out, LIN(LIN(XS[0])) + 2, rtol=5e-6)
    hook = px.WithData(add, {"lin": jnp.ones(3)})
    with pytest.raises(px.LogShapeError, match="call 'lin#1' is to be given data, but"):
        px.ForwardHook(model, hook)(XS[0])


def test_the_data_is_trained_and_changed_without_compiling_anew():
    traces = 0

    @eqx.filter_jit
    def value_and_grad(data, xs):
        nonlocal traces
        traces += 1

        def loss(data):
            hook = px.WithData(lambda value, datum: value + datum, {".": data})
            return jnp.sum(px.ForwardHook(LIN, hook, None, method=batch_in_scan)(xs)[0])

        return jax.value_and_grad(loss)(data)

    for seed in (1, 2):
        data = jr.normal(jr.key(seed), (5, 2, 3))
        expected = jax.value_and_grad(lambda data: jnp.sum(twin(data)[0]))(data)
        assert_close(value_and_grad(data, XS), expected, rtol=1e-5)
    assert traces == 1


def test_what_does_not_fit():
    add = lambda value, datum: value + datum
    run = lambda data: px.ForwardHook(LIN, px.WithData(add, data), method=batch_in_scan)
    match = (
        r"data for the site '\.', float32\[4, 2, 3\].* axes are \[5, 2\]: expected f"
    )
    with pytest.raises(px.LogShapeError, match=match):
        run({".": jnp.ones((4, 2, 3))})(XS)
    with pytest.raises(
        px.LogShapeError, match=r"\[5, 2\]: expected float32\[5, 2, 3\]"
    ):
        run({".": jnp.ones((5, 3))})(XS)
    with pytest.raises(
        px.LogShapeError, match=r"'\.' is to be given data, but isn't in"
    ):
        run({"a": jnp.ones(3)})(XS)
    with pytest.raises(
        TypeError, match="WithData was given None, which can't be called"
    ):
        px.WithData(None, {})
    with pytest.raises(
        TypeError, match="WithData was given a ArrayImpl, which isn't a"
    ):
        px.WithData(add, jnp.ones(3))
