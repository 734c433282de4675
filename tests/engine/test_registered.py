"""Primitives of other libraries, made known by `px.register_rule`: one that applies its
program, and one with a derivative rule of its own that binds it again.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from closeness import assert_close
from jax import lax
from jax.extend.core import jaxpr_as_fun, Primitive
from jax.interpreters import ad, batching, mlir
from twin_case import linear

import peex as px


def make(name, derivative=None):
    """A primitive that applies a jaxpr. `vmap` binds it again, and what it binds has
    its parameters inside of others, as Equinox's `create_vprim` does.
    """

    def body(*operands, jaxpr):
        return jaxpr_as_fun(jaxpr)(*operands)

    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(body)
    primitive.def_abstract_eval(lambda *_, jaxpr: jaxpr.out_avals)
    mlir.register_lowering(primitive, mlir.lower_fun(body, multiple_results=True))

    def batched(args, dims, **params):
        run = lambda *args: body(*args, **params)
        outs = jax.vmap(run, in_axes=dims)(*args)
        return outs, [0] * len(outs)

    batching.primitive_batchers[primitive] = batched
    if derivative is not None:
        ad.primitive_jvps[primitive] = derivative
    px.register_rule(primitive, body, own_derivative=derivative is not None)
    return primitive


def halved(primals, tangents, *, jaxpr):
    """A rule that autodiff wouldn't find, and that needs the primitive."""
    outs = custom_p.bind(*primals, jaxpr=jaxpr)
    (x,), (t,) = primals, tangents
    slope = custom_p.bind(x + 1, jaxpr=jaxpr)[0]
    return outs, [slope * ad.instantiate_zeros(t) / 2]


apply_p = make("test_applies")
custom_p = make("test_custom", halved)
M = linear(3, 3, 0)
X = jnp.array([0.1, 0.2, -0.3])
XS = jr.normal(jr.key(1), (4, 3))


def applied(primitive):
    def model(m, x):
        (y,) = primitive.bind(jnp.sin(x), jaxpr=jax.make_jaxpr(m)(x))
        return jnp.tanh(y)

    return model


def scanned(primitive):
    model = applied(primitive)
    return lambda m, x: lax.scan(lambda c, _: (model(m, c),) * 2, x, length=4)[1]


both = pytest.mark.parametrize("primitive", [apply_p, custom_p], ids=str)


@both
@pytest.mark.parametrize("wrap", [lambda f: f, eqx.filter_jit], ids=["eager", "jit"])
def test_logs(primitive, wrap):
    model = applied(primitive)
    out, log = wrap(px.ForwardHook(M, method=model))(X)
    assert_close(out, model(M, X))
    assert_close(log["."], M(jnp.sin(X)))
    out, log = wrap(px.ForwardHook(M, px.ScaleHook(2.0), method=model))(X)
    assert_close(out, jnp.tanh(2 * M(jnp.sin(X))))
    out, _ = wrap(px.ForwardHook(M, px.AddHook(jnp.ones(3)), method=model))(X)
    assert_close(out, jnp.tanh(M(jnp.sin(X)) + 1))


@both
def test_under_transformations(primitive):
    model = applied(primitive)
    out, log = jax.vmap(px.ForwardHook(M, method=model))(XS)
    assert_close(
        (out, log["."]),
        (jax.vmap(lambda x: model(M, x))(XS),) + (jax.vmap(M)(jnp.sin(XS)),),
    )
    inner = lambda m, xs: jax.vmap(lambda x: model(m, x))(xs)
    _, inside = px.ForwardHook(M, method=inner)(XS)
    assert_close(inside["."], log["."])
    steps = scanned(primitive)
    out, log = px.ForwardHook(M, method=steps)(X)
    assert_close(out, steps(M, X))
    assert_close(log["."], jax.vmap(M)(jnp.sin(jnp.stack([X, *out[:-1]]))))


@both
def test_the_derivative_is_that_of_the_primitive(primitive):
    for model in (applied(primitive), scanned(primitive)):
        loss = lambda x, model=model: jnp.sum(model(M, x) ** 2)
        hooked = px.ForwardHook(M, method=model)
        value = lambda x, hooked=hooked: jnp.sum(hooked(x)[0] ** 2)
        if primitive is apply_p:
            with pytest.raises(NotImplementedError, match="test_applies"):
                jax.grad(loss)(X)  # unhooked, it has no derivative
            continue
        for wrap in (lambda f: f, jax.jit):
            assert_close(wrap(jax.grad(value))(X), wrap(jax.grad(loss))(X))
        # A derivative inside of the model hears the site once.
        slope = lambda m, x, model=model: jax.grad(lambda x: model(m, x).sum())(x)
        out, log = px.ForwardHook(M, method=slope)(X)
        assert_close(out, slope(M, X))
        assert list(log) == ["."]
        assert_close(log["."], hooked(X)[1]["."])


def test_no_rule_no_value():
    hooked = px.BackwardHook(M, method=applied(custom_p))
    with pytest.raises(
        px.SiteLostError,
        match="inside of a `test_custom`, whose derivative rule stands",
    ):
        hooked.init(X)


def test_cotangents_of_a_program_that_is_applied():
    hooked = px.BackwardHook(M, method=applied(apply_p)).init(X)
    loss = lambda hooked: jnp.sum(hooked(X) ** 2)
    grads = eqx.filter_grad(loss)(hooked)
    y = M(jnp.sin(X))
    assert_close(grads.log["."], jax.grad(lambda y: jnp.sum(jnp.tanh(y) ** 2))(y))


def test_a_program_without_sites_is_left_alone():
    f = lambda x: apply_p.bind(x, jaxpr=jax.make_jaxpr(jnp.sin)(x))[0]
    model = lambda m, x: m(f(x))
    jaxpr = jax.make_jaxpr(px.ForwardHook(M, method=model))(X)
    assert apply_p in [eqn.primitive for eqn in jaxpr.eqns]
    np.testing.assert_array_equal(f(X), jnp.sin(X))
