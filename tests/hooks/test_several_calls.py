"""Something else in the place of several calls of one module: one `switch`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from called_twice import NET, XS
from closeness import assert_close
from jax import lax
from jaxpr_params import equations
from twin_case import linear

import peex as px


LIN = linear(4, 4, 3)
OTHER = linear(4, 4, 4)


def four(lin, x):
    """A jitted function that is traced once and called four times."""
    jitted = jax.jit(lambda x: jnp.tanh(lin(x)))
    for _ in range(4):
        x = jitted(x)
    return x


def by_hand(*functions):
    def run(x):
        for f in functions:
            x = jnp.tanh(f(x))
        return x

    return run


def around(call, x):
    return x + call(2 * x)


HOOKS = {
    ".#1": px.ReplaceCall(OTHER),
    ".#3": px.AroundCall(around),
    ".#0": px.ReplaceCall(jnp.cos),
}
FOUR = jnp.cos, OTHER, LIN, lambda x: x + LIN(2 * x)


def conds(jaxpr):
    """How many branches each `cond` in a program has."""
    return [
        len(eqn.params["branches"])
        for eqn in equations(jaxpr)
        if eqn.primitive.name == "cond"
    ]


@pytest.mark.parametrize("jit", (False, True))
def test_of_one_traced_call(jit):
    hooked = px.ForwardHook(LIN, HOOKS, method=four)
    call = lambda hooked, x: hooked(x)
    out, log = (eqx.filter_jit(call) if jit else call)(hooked, XS[0])
    assert_close(out, by_hand(*FOUR)(XS[0]), rtol=1e-5)
    assert list(log) == [".", ".#1", ".#2", ".#3"]
    assert_close(log[".#1"], OTHER(jnp.tanh(jnp.cos(XS[0]))), rtol=1e-5)
    gradient = eqx.filter_grad(lambda h: jnp.sum(h(XS[0])[0]))(hooked)

    def loss(other):
        functions = (FOUR[0], other, *FOUR[2:])
        return jnp.sum(by_hand(*functions)(XS[0]))

    expected = eqx.filter_grad(loss)(OTHER)
    assert_close(gradient.hook_fn[".#1"].fn.weight, expected.weight, rtol=1e-4)


def test_one_switch():
    hooked = px.ForwardHook(LIN, HOOKS, None, method=four)
    jaxpr = jax.make_jaxpr(lambda x: hooked(x)[0])(XS[0])
    # The original and the three, not one `cond` in another.
    assert set(conds(jaxpr)) == {4}
    both = HOOKS | {".": px.ReplaceCall(jnp.sin)}
    hooked = px.ForwardHook(LIN, both, None, method=four)
    expected = by_hand(jnp.cos, OTHER, jnp.sin, FOUR[3])
    assert_close(hooked(XS[0])[0], expected(XS[0]), rtol=1e-5)
    jaxpr = jax.make_jaxpr(lambda x: hooked(x)[0])(XS[0])
    assert set(conds(jaxpr)) == {5}


def test_in_a_scan_with_a_vmap():
    def model(net, xs):
        step = lambda xs, _: (jax.vmap(net.b)(xs), None)
        return lax.scan(step, xs, length=3)[0]

    tree = px.trace(NET, XS, method=model)
    both = tree.replace({"b.shared": jnp.sin, "b.shared#1": OTHER})
    xs = XS
    for _ in range(3):
        xs = jax.vmap(lambda x: OTHER(jnp.tanh(jnp.sin(x))))(xs)
    assert_close(both(XS), xs, rtol=1e-5)


def test_by_names_of_ones_own():
    """These may be of one call: each wrapper's and name's is around the next."""
    where = {"all": ".", "second": ".#1"}
    hooks = {"all": px.AroundCall(around), "second": px.ReplaceCall(jnp.sin)}
    hooked = px.ForwardHook(LIN, hooks, where=where, method=four)
    every = lambda f: lambda x: x + f(2 * x)
    expected = by_hand(every(LIN), every(jnp.sin), every(LIN), every(LIN))
    assert_close(hooked(XS[0])[0], expected(XS[0]), rtol=1e-5)


@pytest.mark.parametrize("jit", (False, True))
def test_what_is_known_not_to_act_is_not_traced(jit):
    """Outside of loops and of what JAX keeps, which call it is is known."""
    ran = []

    def replaced(name, f):
        return px.ReplaceCall(lambda x: (ran.append(name), f(x))[1])

    hooks = {".#0": replaced("first", jnp.sin), ".#1": replaced("second", jnp.cos)}
    twice = lambda lin, x: lin(lin(x))
    hooked = px.ForwardHook(LIN, hooks, where=".", method=twice)
    run = lambda x: hooked(x)[0]
    assert_close((jax.jit(run) if jit else run)(XS[0]), jnp.cos(jnp.sin(XS[0])))
    assert ran == ["first", "second"]
    assert conds(jax.make_jaxpr(run)(XS[0])) == []
