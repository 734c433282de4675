"""Sites in places out of which values can't be brought: always a `SiteLostError` with
the reason, never a value lost silently, never an `UnexpectedTracerError`.

The first tests are of places that may be supported one day: then their tests go, and
their cases move to the tests of the engine.
"""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close
from jax import lax
from jax.sharding import Mesh, PartitionSpec as P

import peex as px


X = jnp.array([0.5, -1.0])


def linear(seed=0):
    return eqx.nn.Linear(2, 2, key=jax.random.key(seed))


class Around(eqx.Module):
    """Two layers: `inside`, called within something, and `after`."""

    inside: eqx.nn.Linear
    after: eqx.nn.Linear
    how: object = eqx.field(static=True)

    def __call__(self, x):
        return self.after(self.how(self.inside, x))


def model(how):
    return Around(linear(0), linear(1), how)


def loss(out):
    return jnp.sum(jnp.sin(out))


def first(tree):
    return jax.tree.map(lambda x: x[0], tree)


# Ways to run a wrapper, of which each meets the site under another trace. They are
# given a function of the model and the input that returns the output and a log.
def with_grads(f):
    def run(h, x):
        def scalar(hx):
            out, log = f(*hx)
            return loss(out), (out, log)

        (_, aux), grads = eqx.filter_value_and_grad(scalar, has_aux=True)((h, x))
        return aux, grads

    return run


def batched(f):
    return lambda h, x: first(jax.vmap(lambda x: f(h, x))(x[None]))


FORWARD = {
    "eager": lambda f: lambda h, x: (f(h, x), None),
    "jit": lambda f: lambda h, x: (eqx.filter_jit(f)(h, x), None),
    "grad": with_grads,
    "jit of grad": lambda f: eqx.filter_jit(with_grads(f)),
    "grad of jit": lambda f: with_grads(eqx.filter_jit(f)),
    "vmap": lambda f: lambda h, x: (batched(f)(h, x), None),
    "jit of vmap": lambda f: lambda h, x: (eqx.filter_jit(batched(f))(h, x), None),
}
forward_runs = pytest.mark.parametrize("run", FORWARD.values(), ids=FORWARD)


close = ft.partial(assert_close, rtol=1e-5, atol=1e-6)


def device_and_batch(how):
    """The axes of size 1 that the value inside has gained."""
    return (1, 1) if how is shard_map else ()


def logged_or_lost_forward(run, how):
    """All is right, or the error names the site: there's nothing between."""
    plain = model(how)
    (expected, _), expected_grads = run(lambda m, x: (m(x), {}))(plain, X)
    try:
        (out, log), grads = run(lambda h, x: h(x))(px.ForwardHook(plain), X)
    except px.SiteLostError as e:
        assert "'inside' ran, but its value can't be brought out" in str(e)
    else:
        close(out, expected)
        assert list(log) == ["inside", "after"]
        assert log["inside"].shape == (*device_and_batch(how), 2)
        close(log["inside"].ravel(), linear()(X))
        close(log["after"], expected)
        close(jax.tree.leaves(grads), jax.tree.leaves(expected_grads))


def logged_or_lost_backward(how, jit):
    plain = model(how)
    grad = eqx.filter_grad(lambda h: loss(h(X)))
    grad = eqx.filter_jit(grad) if jit else grad
    expected = grad(plain)
    try:
        grads = grad(px.BackwardHook(plain).init(X))
    except px.SiteLostError as e:
        assert "'inside' ran, but its cotangent can't be brought out" in str(e)
    else:
        close(grads.model, expected)
        assert list(grads.log) == ["inside", "after"]
        assert grads.log["inside"].shape == (*device_and_batch(how), 2)
        close(grads.log["inside"].ravel(), expected.inside.bias)


#
# custom_jvp and custom_vjp. MAY BECOME SUPPORTED: then replace these two tests.
#


# The layer is an argument: JAX doesn't differentiate what these close over.


def custom_jvp(layer, x):
    @jax.custom_jvp
    def f(layer, x):
        return layer(x)

    @f.defjvp
    def rule(primals, tangents):
        (layer, x), (_, t) = primals, tangents
        return f(layer, x), 3 * (layer.weight @ t)

    return f(layer, x)


def custom_vjp(layer, x):
    @jax.custom_vjp
    def f(layer, x):
        return layer(x)

    def fwd(layer, x):
        return layer(x), layer

    def bwd(layer, ct):
        return jax.tree.map(jnp.zeros_like, layer), 3 * (layer.weight.T @ ct)

    f.defvjp(fwd, bwd)
    return f(layer, x)


CUSTOM = {"custom_jvp": custom_jvp, "custom_vjp": custom_vjp}


@forward_runs
@pytest.mark.parametrize("how", CUSTOM.values(), ids=CUSTOM)
def test_custom_derivative_forward(how, run):
    logged_or_lost_forward(run, how)


@pytest.mark.parametrize("how", CUSTOM.values(), ids=CUSTOM)
def test_custom_derivative_backward(how):
    # The rule replaces autodiff there: the cotangent doesn't exist.
    hooked = px.BackwardHook(model(how))
    grad = eqx.filter_grad(lambda h: loss(h(X)))
    match = "'inside' ran, but its cotangent can't be brought out"
    with pytest.raises(px.SiteLostError, match=match):
        grad(hooked.init(X))
    with pytest.raises(px.SiteLostError, match=match):
        eqx.filter_jit(grad)(hooked.init(X))


#
# The end of custom_jvp and custom_vjp.
#


@pytest.mark.parametrize("how", CUSTOM.values(), ids=CUSTOM)
def test_custom_derivative_without_sites_inside_keeps_its_rule(how):
    plain = model(how)
    grad = lambda f: jax.grad(lambda x: loss(f(x)))
    out, log = px.ForwardHook(plain, where="after")(X)
    assert_close(out, plain(X))
    assert list(log) == ["after"]
    got = grad(lambda x: px.ForwardHook(plain, where="after")(x)[0])(X)
    assert_close(got, grad(plain)(X))
    hooked = px.BackwardHook(plain, where="after").init(X)
    assert_close(grad(hooked)(X), grad(plain)(X))
    got = eqx.filter_jit(lambda h: grad(h)(X))(hooked)
    assert_close(got, grad(plain)(X))


# shard_map


def shard_map(layer, x):
    mesh = Mesh(np.array(jax.devices()[:1]), ("d",))
    f = jax.shard_map(
        lambda x: jax.vmap(layer)(x), mesh=mesh, in_specs=P("d"), out_specs=P("d")
    )
    return f(x[None])[0]


LOST = {"shard_map": shard_map}


@forward_runs
@pytest.mark.parametrize("how", LOST.values(), ids=LOST)
def test_lost_forward(how, run):
    logged_or_lost_forward(run, how)


@pytest.mark.parametrize("how", LOST.values(), ids=LOST)
@pytest.mark.parametrize("jit", [False, True])
def test_lost_backward(how, jit):
    logged_or_lost_backward(how, jit)


@pytest.mark.parametrize("how", LOST.values(), ids=LOST)
@pytest.mark.parametrize("wrapper", [px.ForwardHook, px.BackwardHook])
def test_others_can_be_named_instead(how, wrapper):
    # As the message says.
    hooked = wrapper(model(how), where="after")
    if wrapper is px.ForwardHook:
        out, log = hooked(X)
    else:
        hooked = hooked.init(X)
        out, log = hooked(X), hooked.log
    assert list(log) == ["after"]
    assert_close(out, model(how)(X))


# Backward in a while loop


def while_loop(layer, x):
    return lax.while_loop(lambda x: jnp.sum(x) < 9, lambda x: x + jnp.abs(layer(x)), x)


def dynamic_fori_loop(layer, x):
    n = jnp.array(2) + jnp.argmax(x)
    return lax.fori_loop(0, n, lambda i, x: jnp.tanh(layer(x)), x)


@pytest.mark.parametrize("how", [while_loop, dynamic_fori_loop])
def test_backward_in_a_while_loop(how):
    match = "(?s)'inside' ran, but its cotangent can't be .*no reverse-mode derivative"
    hooked = px.BackwardHook(model(how), px.ScaleHook(2.0))
    for init in (hooked.init, eqx.filter_jit(lambda x: hooked.init(x))):
        with pytest.raises(px.SiteLostError, match=match):
            init(X)
    # Without a log there's no `init`: it is found in the forward pass.
    hooked = px.BackwardHook(model(how), px.ScaleHook(2.0), None)
    with pytest.raises(px.SiteLostError, match=match):
        eqx.filter_jit(hooked)(X)


def test_backward_in_a_while_loop_run_eagerly():
    hooked = px.BackwardHook(model(while_loop), px.ScaleHook(2.0), None)
    with pytest.raises(px.SiteLostError, match="'inside' .*no reverse-mode derivative"):
        hooked(X)


@pytest.mark.parametrize("how", [while_loop, dynamic_fori_loop])
def test_backward_around_a_while_loop(how):
    class Stopped(eqx.Module):
        loop: Around

        def __call__(self, x):
            return lax.stop_gradient(self.loop(x)) * x

    plain = Stopped(model(how))
    hooked = px.BackwardHook(plain, where="loop").init(X)
    assert list(hooked.log) == ["loop"]
    assert_close(hooked(X), plain(X))


def test_a_loop_of_the_models_own_is_no_solve():
    match = r"which has no reverse-mode derivative\.\nLeave the site out"
    with pytest.raises(px.SiteLostError, match=match):
        px.BackwardHook(model(while_loop)).init(X)


# What runs after the call, or not at all


def test_function_that_the_model_returns():
    class Returns(eqx.Module):
        first: eqx.nn.Linear
        lin: eqx.nn.Linear

        def __call__(self, x):
            x = self.first(x)
            return lambda y: self.lin(x + y)

    plain = Returns(linear(1), linear())
    f, log = px.ForwardHook(plain)(X)
    assert list(log) == ["first"]  # the other didn't run in the call
    assert_close(f(X), plain(X)(X))
    hook = px.AddHook(jnp.ones(2))
    f, _ = px.ForwardHook(plain, hook)(X)
    with pytest.raises(px.SiteLostError, match="'lin' .*after the hooked call had end"):
        f(X)


@pytest.mark.parametrize(
    "how", [custom_jvp, custom_vjp, shard_map, while_loop, dynamic_fori_loop]
)
def test_traced_values_do_not_leak(how):
    with jax.checking_leaks():
        try:
            jax.jit(lambda x: px.ForwardHook(model(how))(x)[0])(X)
        except px.SiteLostError as e:
            assert "'inside'" in str(e)
