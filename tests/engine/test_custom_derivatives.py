"""Sites inside of functions with derivative rules of their own: the rule is kept, the
forward log comes out, a cotangent is refused.
"""

import equinox as eqx
import jax
import jax.interpreters.mlir as mlir
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from closeness import assert_close
from twin_case import linear

import peex as px
from peex import _compat


def with_params(layer, w, b):
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), layer, (w, b))


class Custom(eqx.Module):
    """The rules are wrong on purpose, so that it shows whether they are used."""

    lin: eqx.nn.Linear
    kind: str = eqx.field(static=True)

    def __call__(self, x):
        args = self.lin.weight, self.lin.bias, x
        return getattr(self, self.kind)(*args)

    def jvp(self, *args):
        @jax.custom_jvp
        def f(w, b, x):
            return jnp.tanh(with_params(self.lin, w, b)(x))

        @f.defjvp
        def rule(primals, tangents):
            w, b, x = primals
            return jnp.tanh(w @ x + b), 3.0 * (w @ tangents[2])

        return f(*args)

    def jvp_symbolic(self, *args):
        @jax.custom_jvp
        def f(w, b, x):
            return jnp.tanh(with_params(self.lin, w, b)(x))

        def rule(primals, tangents):
            w, b, x = primals
            zero = jax.custom_derivatives.SymbolicZero
            given = [t for t in tangents if not isinstance(t, zero)]
            return jnp.tanh(w @ x + b), sum(jnp.sum(t) for t in given) * jnp.ones(3)

        f.defjvp(rule, symbolic_zeros=True)
        return f(*args)

    def vjp(self, *args):
        @jax.custom_vjp
        def f(w, b, x):
            return jnp.tanh(with_params(self.lin, w, b)(x))

        def fwd(w, b, x):
            return jnp.tanh(w @ x + b), (w, x)

        def bwd(res, c):
            w, x = res
            return jnp.outer(c, x), None, 5.0 * (c @ w)

        f.defvjp(fwd, bwd)
        return f(*args)

    def vjp_calls_the_module(self, *args):
        @jax.custom_vjp
        def f(w, b, x):
            return jnp.tanh(with_params(self.lin, w, b)(x))

        f.defvjp(lambda w, b, x: (f(w, b, x), x), lambda x, c: (jnp.outer(c, x), c, c))
        return f(*args)

    def filter_vjp(self, w, b, x):
        @eqx.filter_custom_vjp
        def f(lin_x):
            lin, x = lin_x
            return jnp.tanh(lin(x))

        @f.def_fwd
        def fwd(perturbed, lin_x):
            lin, x = lin_x
            return jnp.tanh(lin(x)), None

        @f.def_bwd
        def bwd(res, cotangent, perturbed, lin_x):
            ones = jax.tree.map(jnp.ones_like, eqx.filter(lin_x[0], eqx.is_array))
            return ones, 7.0 * cotangent

        return f((self.lin, x))

    def filter_jvp(self, w, b, x):
        @eqx.filter_custom_jvp
        def f(lin, x):
            return jnp.tanh(lin(x))

        @f.def_jvp
        def rule(primals, tangents):
            lin, x = primals
            t = jnp.ones(3) if tangents[1] is None else tangents[1]
            return jnp.tanh(lin(x)), 3.0 * t

        return f(self.lin, x)


KINDS = (
    "jvp",
    "jvp_symbolic",
    "vjp",
    "vjp_calls_the_module",
    "filter_vjp",
    "filter_jvp",
)
WHERE = {
    "grad": lambda f: eqx.filter_value_and_grad(f, has_aux=True),
    "jit of grad": lambda f: eqx.filter_jit(eqx.filter_value_and_grad(f, has_aux=True)),
    "grad of jit": lambda f: eqx.filter_value_and_grad(eqx.filter_jit(f), has_aux=True),
}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("kind", KINDS)
def test_the_rule_is_kept_and_the_log_comes_out(kind, where):
    model, x = Custom(linear(3, 3, 0), kind), jnp.arange(3.0)

    def plain_loss(model_x):
        model, x = model_x
        out = model(x)
        return jnp.sum(jnp.sin(out)), None

    def loss(hooked_x):
        hooked, x = hooked_x
        out, log = hooked(x)
        return jnp.sum(jnp.sin(out)), log

    (value, _), (model_grad, x_grad) = WHERE[where](plain_loss)((model, x))
    hooked = px.ForwardHook(model)
    (v, log), (hooked_grad, hooked_x_grad) = WHERE[where](loss)((hooked, x))
    assert_close(v, value)
    assert_close(hooked_x_grad, x_grad)
    assert_close(hooked_grad.model, model_grad)
    assert list(log) == ["lin"]
    assert_close(log["lin"], model.lin(x))


@pytest.mark.parametrize("jit", (False, True))
@pytest.mark.parametrize("kind", KINDS)
def test_vmap_and_scan(kind, jit):
    model, xs = Custom(linear(3, 3, 0), kind), jr.normal(jr.key(0), (4, 3))
    expected = jax.vmap(model.lin)(xs)
    for method in (
        lambda m, xs: jax.vmap(m)(xs),
        lambda m, xs: jax.lax.map(m, xs),
    ):
        hooked = px.ForwardHook(model, method=method)
        _, log = (eqx.filter_jit(hooked) if jit else hooked)(xs)
        assert_close(log["lin"], expected, rtol=2e-6)


@pytest.mark.parametrize("kind", ("jvp", "vjp", "filter_vjp"))
def test_hooks_act_inside(kind):
    model, x = Custom(linear(3, 3, 0), kind), jnp.arange(3.0)
    hooked = px.ForwardHook(model, px.ScaleHook(jnp.array(2.0)))
    out, log = eqx.filter_jit(hooked)(x)
    assert_close(log["lin"], 2 * model.lin(x))
    assert_close(out, jnp.tanh(2 * model.lin(x)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_cotangent_is_refused(kind):
    model, x = Custom(linear(3, 3, 0), kind), jnp.arange(3.0)
    with pytest.raises(px.SiteLostError, match="'lin' ran, .*derivative rule of its"):
        px.BackwardHook(model).init(x)


def test_differentiating_a_closed_over_value_is_still_an_error():
    def model(lin, x):
        @jax.custom_vjp
        def f(x):
            return lin(x)

        f.defvjp(lambda x: (lin(x), None), lambda _, c: (c,))
        return jax.jit(f)(x)

    lin, x = linear(3, 3, 0), jnp.arange(3.0)
    plain = lambda m: jnp.sum(model(m, x))
    with pytest.raises(Exception, match="closed-over value"):
        eqx.filter_grad(plain)(lin)
    hooked = px.ForwardHook(lin, method=model)
    with pytest.raises(Exception, match="closed-over value"):
        eqx.filter_grad(lambda h: jnp.sum(h(x)[0]))(hooked)


def test_functions_without_sites_are_left_alone():
    def model(lin, x):
        return lin(jax.nn.relu(x))

    lin, x = linear(3, 3, 0), jnp.arange(-1.0, 2.0)
    hooked = px.ForwardHook(lin, method=model)
    grad = jax.grad(lambda x: jnp.sum(hooked(x)[0]))(x)
    np.testing.assert_array_equal(grad, jax.grad(lambda x: jnp.sum(model(lin, x)))(x))
    assert "custom_jvp_call" in str(jax.make_jaxpr(hooked)(x))


#
# A primitive that peex knows nothing of, which holds the module in a jaxpr: as the
# linear solve of a library, in the derivative rule of its nonlinear one.
#


def _apply(*args, jaxpr):
    inside, consts = _compat.open_jaxpr(jaxpr)
    return _compat.eval_jaxpr(inside, consts, *args)


apply_p = _compat.Primitive("test_apply")
apply_p.multiple_results = True
apply_p.def_impl(_apply)
apply_p.def_abstract_eval(lambda *_, jaxpr: jaxpr.out_avals)
_compat.register_lowering(apply_p, mlir.lower_fun(_apply, multiple_results=True))


def applied(m, x):
    return apply_p.bind(x, jaxpr=jax.make_jaxpr(m)(x))[0]


def with_unknown_rule(m, x):
    jaxpr = jax.make_jaxpr(m)(x)  # as libraries keep the function that they solve for

    @jax.custom_jvp
    def f(x):
        return jnp.tanh(m(x))

    def rule(primals, tangents):
        return f(*primals), apply_p.bind(*tangents, jaxpr=jaxpr)[0]

    f.defjvp(rule)
    return f(x)


X, T = jnp.array([0.1, 0.2, -0.3]), jnp.array([1.0, 0.5, -1.0])


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_a_derivative_rule_may_use_any_primitive(jit, scale):
    m, hook = linear(3, 3, 0), None if scale == 1.0 else px.ScaleHook(scale)
    hooked = px.ForwardHook(m, hook, method=with_unknown_rule)
    run = lambda x, t: jax.jvp(hooked, (x,), (t,))
    (out, log), (out_tangent, _) = (jax.jit(run) if jit else run)(X, T)
    assert_close(log["."], scale * m(X))
    assert_close(out, jnp.tanh(scale * m(X)))
    assert_close(out_tangent, scale * m(T))
    # Where it isn't part of a rule, it would lose a value.
    with pytest.raises(px.SiteLostError, match="inside a `test_apply`, which peex has"):
        px.ForwardHook(m, hook, method=applied)(X)


def test_not_with_a_hook_that_holds_arrays():
    hook = px.AddHook(jnp.ones(3))
    hooked = px.ForwardHook(linear(3, 3, 0), hook, method=with_unknown_rule)
    with pytest.raises(
        px.SiteLostError, match="inside a derivative rule, and its hook"
    ):
        jax.jvp(hooked, (X,), (T,))


def jvp_rule_calls_the_module(m, x):
    @jax.custom_jvp
    def f(x):
        return jnp.tanh(m(x))

    f.defjvp(lambda primals, tangents: (f(*primals), m(*tangents)))
    return f(x)


def vjp_rule_calls_the_module(m, x):
    @jax.custom_vjp
    def f(x):
        return jnp.tanh(m(x))

    f.defvjp(lambda x: (f(x) + m(x), None), lambda _, c: (m(c),))
    return f(x)


@pytest.mark.parametrize("jit", [False, True])
def test_a_hook_with_arrays_acts_in_a_derivative_rule(jit):
    m, offset = linear(3, 3, 0), jnp.array([1.0, 2.0, 3.0])
    call = lambda x: m(x) + offset
    wrap = eqx.filter_jit if jit else lambda f: f

    hooked = px.ForwardHook(m, px.AddHook(offset), method=jvp_rule_calls_the_module)
    run = lambda hooked, x, t: jax.jvp(hooked, (x,), (t,))
    (out, log), (out_tangent, _) = wrap(run)(hooked, X, T)
    assert_close(log["."], call(X))
    assert_close(out, jnp.tanh(call(X)))
    assert_close(out_tangent, call(T))

    hooked = px.ForwardHook(m, px.AddHook(offset), method=vjp_rule_calls_the_module)

    def run_back(hooked, x, c):
        out, vjp, log = jax.vjp(hooked, x, has_aux=True)
        return out, vjp(c), log

    out, (cotangent,), log = wrap(run_back)(hooked, X, T)
    assert_close(log["."], call(X))
    assert_close(out, jnp.tanh(call(X)) + call(X))
    assert_close(cotangent, call(T))


def test_not_one_that_acts_in_the_rule_alone():
    def method(m, x):
        @jax.custom_jvp
        def f(x):
            return m[0](x)

        f.defjvp(lambda primals, tangents: (f(*primals), m[1](*tangents)))
        return f(x)

    hook = {"0": px.IdentityHook(), "1": px.AddHook(jnp.ones(3))}
    model = [linear(3, 3, 0), linear(3, 3, 1)]
    hooked = px.ForwardHook(model, hook, method=method)
    with pytest.raises(px.SiteLostError, match="'1' ran, .* a derivative rule, and"):
        jax.jvp(hooked, (X,), (T,))


@pytest.mark.parametrize(
    "function", [jvp_rule_calls_the_module, vjp_rule_calls_the_module]
)
@pytest.mark.parametrize("hooks", [(2.0,), (2.0, None), (None, 2.0), (0.5, 4.0)])
def test_hooks_act_in_a_derivative_rule_in_a_batched_branch(function, hooks):
    index, xs = jnp.array([0, 1, 2, 0]), jnp.arange(12.0).reshape(4, 3) / 10

    def model(m, xs):
        f = lambda x: function(m, x)
        return jax.vmap(lambda i, x: jax.lax.switch(i, [f, jnp.cos, jnp.tanh], x))(
            index, xs
        )

    m = linear(3, 3, 0)
    doubled = eqx.tree_at(lambda m: (m.weight, m.bias), m, (2 * m.weight, 2 * m.bias))
    hooked, method = m, model
    for scale in hooks:
        hook = None if scale is None else px.ScaleHook(scale)
        hooked, method = px.ForwardHook(hooked, hook, method=method), "__call__"

    def loss(xs):
        out = hooked(xs)
        for _ in hooks:
            out, _ = out
        return jnp.sum(out)

    for wrap in (lambda f: f, jax.jit):
        assert_close(
            wrap(jax.grad(loss))(xs), jax.grad(lambda x: model(doubled, x).sum())(xs)
        )
