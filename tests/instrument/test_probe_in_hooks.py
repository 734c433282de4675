"""Probes inside of hooks and logs: values of the site that these act at."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from closeness import assert_close
from jax import lax
from twin_case import linear

import peex as px


LIN, SAE = linear(3, 3, 0), linear(3, 5, 1)
X = jnp.arange(3.0) / 3


def code(x):
    return jax.nn.relu(SAE.weight @ x + SAE.bias)


def encoded(x):
    return jnp.sum(px.probe(code(x), "latents")) + x


class Two(eqx.Module):
    a: eqx.nn.Linear
    b: eqx.nn.Linear

    def __call__(self, x):
        return self.b(jnp.tanh(self.a(x)))


MODEL = Two(LIN, linear(3, 3, 2))


def expected(x):
    """The model with `encoded` at `a`, by hand."""
    a = LIN(x)
    return MODEL.b(jnp.tanh(a + jnp.sum(code(a)))), code(a)


@pytest.mark.parametrize("where", (None, "a", ["a", "a/latents"]))
@pytest.mark.parametrize("jit", (False, True))
def test_in_a_hook(where, jit):
    hooked = px.ForwardHook(MODEL, {"a": encoded}, where=where)
    out, log = (eqx.filter_jit(hooked) if jit else hooked)(X)
    value, latents = expected(X)
    assert_close(out, value)
    assert_close(log["a/latents"], latents)
    assert list(log)[:2] == ["a/latents", "a"]  # the hook runs before the log


def test_the_log_of_the_wrapper_records_it():
    latents = expected(X)[1]
    for log_fn in (
        px.NormLog(),
        {"a/latents": px.NormLog()},
        {"**/latents": px.NormLog()},
    ):
        where = "a" if not isinstance(log_fn, dict) else ["a", "a/latents"]
        _, log = px.ForwardHook(MODEL, {"a": encoded}, log_fn, where=where)(X)
        assert_close(log["a/latents"], jnp.linalg.norm(latents))
    out, log = px.ForwardHook(MODEL, encoded, None, where="a")(X)
    assert not log
    assert_close(out, expected(X)[0])


def test_in_a_log():
    """What the log runs is recorded as it is."""
    log_fn = lambda x: jnp.max(px.probe(code(x), "latents"))
    for run in (lambda f: f, eqx.filter_jit):
        _, log = run(px.ForwardHook(MODEL, None, log_fn))(X)
        assert list(log) == ["a/latents", "a", "b/latents", "b"]
        assert_close(log["a/latents"], code(LIN(X)))
        assert_close(log["a"], jnp.max(code(LIN(X))))


def test_two_of_a_name_and_two_calls():
    def hook(x):
        return px.probe(x + 1, "p") + px.probe(2 * x, "p")

    class Twice(eqx.Module):
        lin: eqx.nn.Linear

        def __call__(self, x):
            return self.lin(self.lin(x))

    out, log = px.ForwardHook(Twice(LIN), hook)(X)
    first = LIN(X)
    second = LIN(3 * first + 1)
    values = {"lin/p": first + 1, "lin/p#1": 2 * first, "lin": 3 * first + 1}
    again = {"lin#1/p": second + 1, "lin#1/p#1": 2 * second, "lin#1": 3 * second + 1}
    assert_close(dict(log), values | again)
    assert_close(out, 3 * second + 1)
    where = {"x": "lin#1"}
    _, log = px.ForwardHook(Twice(LIN), hook, where=where)(X)
    second = LIN(first)
    assert_close(
        dict(log), {"x/p": second + 1, "x/p#1": 2 * second, "x": 3 * second + 1}
    )


@pytest.mark.parametrize("outside", (False, True))
def test_per_step_and_example_and_where_it_acts_only(outside):
    def run(m, xs):
        return lax.scan(lambda xs, _: (jax.vmap(m)(xs), None), xs, length=4)[0]

    xs = jr.normal(jr.key(0), (2, 3))
    hook = lambda x: x + jnp.sum(px.probe(code(x), "latents"))
    hooked = px.ForwardHook(LIN, px.AtStep(hook, [1, 3]), method=run)
    call = lambda h, xs: h(xs)
    if outside:
        (_, log), values = (
            eqx.filter_jit(eqx.filter_vmap(call, in_axes=(None, 0)))(
                hooked, xs[:, None]
            ),
            [],
        )
        assert log["./latents"].shape == (2, 4, 1, 5)
        latents = jnp.moveaxis(log["./latents"][:, :, 0], 0, 1)
    else:
        _, log = call(hooked, xs)
        latents, values = log["./latents"], []
        counts = log.counts["./latents"]
        np.testing.assert_array_equal(counts, [[0, 0], [1, 1], [0, 0], [1, 1]])
    for i in range(4):
        y = jax.vmap(LIN)(xs)
        z = jax.vmap(code)(y)
        values.append(z if i % 2 else 0 * z)
        xs = y + jnp.sum(z, axis=-1, keepdims=True) if i % 2 else y
    assert_close(latents, jnp.stack(values), rtol=1e-5)


@pytest.mark.parametrize("jit", (False, True))
def test_its_cotangent(jit):
    """By another wrapper around, for which it is one more value of the model."""
    inner = px.ForwardHook(MODEL, encoded, where="a")
    hooked = px.BackwardHook(inner, where="a/latents").init(X)
    loss = lambda hooked, x: jnp.sum(hooked(x)[0] ** 2)
    grads = (eqx.filter_jit if jit else lambda f: f)(eqx.filter_grad(loss))(hooked, X)

    def by_hand(eps):
        a = LIN(X)
        return jnp.sum(MODEL.b(jnp.tanh(a + jnp.sum(code(a) + eps))) ** 2)

    assert_close(grads.log["a/latents"], jax.grad(by_hand)(jnp.zeros(5)), rtol=1e-5)


def test_in_what_acts_on_cotangents():
    """There it is the identity: nothing is logged, and nothing calls itself."""
    scaled = lambda c: px.probe(2 * c, "twice")
    hooked = px.BackwardHook(MODEL, scaled, lambda c: px.probe(c, "it"), where="a")
    hooked = hooked.init(X)
    grads = eqx.filter_grad(lambda h, x: jnp.sum(h(x)))(hooked, X)
    assert list(grads.log) == ["a"]
    a = LIN(X)
    c = jax.grad(lambda a: jnp.sum(MODEL.b(jnp.tanh(a))))(a)
    assert_close(grads.log["a"], 2 * c, rtol=1e-5)


def test_a_jitted_function_in_a_hook():
    """What JAX has traced for one site, or without hooks, isn't used for another."""
    jitted = jax.jit(lambda x: jnp.sum(px.probe(code(x), "latents")))
    hook = lambda x: jitted(x) + x
    plain = hook(X)
    for _ in range(2):
        _, log = px.ForwardHook(MODEL, hook)(X)
        assert list(log) == ["a/latents", "a", "b/latents", "b"]
        assert_close(hook(X), plain)
