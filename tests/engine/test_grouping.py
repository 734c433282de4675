"""Layers that the forward pass stacks, and functions that peex can't see into."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from closeness import assert_close
from jax import lax
from twin_case import linear
from twin_models import MLP

import peex as px


class Stacking(eqx.Module):
    """Stacks its layers in the forward pass, to scan over them."""

    layers: list[MLP]
    head: eqx.nn.Linear

    def __call__(self, x):
        dynamic, static = zip(
            *(eqx.partition(layer, eqx.is_array) for layer in self.layers), strict=True
        )
        stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *dynamic)
        step = lambda x, layer: (jnp.tanh(eqx.combine(layer, static[0])(x)), None)
        return self.head(lax.scan(step, x, stacked)[0])


def model():
    return Stacking([MLP(3, 4, 3, key=jr.key(i)) for i in range(3)], linear(3, 2, 9))


def test_stacked_layers_share_a_name():
    m, x = model(), jnp.ones(3)
    expected, firsts, h = m(x), [], x
    for layer in m.layers:
        firsts.append(layer.linear1(h))
        h = jnp.tanh(layer(h))
    for run in (lambda f: f, eqx.filter_jit):
        out, log = run(px.ForwardHook(m))(x)
        assert_close(out, expected)
        assert list(log) == ["layers.*.linear1", "layers.*.linear2", "head"]
        assert_close(log["layers.*.linear1"], jnp.stack(firsts), rtol=2e-6)
    hooked = px.BackwardHook(m).init(x)
    grads = eqx.filter_grad(lambda h, x: jnp.sum(h(x)))(hooked, x)
    plain = eqx.filter_grad(lambda m, x: jnp.sum(m(x)))(m, x)
    for i, layer in enumerate(plain.layers):
        cotangent = grads.log["layers.*.linear2"][i]
        assert_close(cotangent, layer.linear2.bias, rtol=1e-5)


def test_stacked_layers_can_be_asked_for():
    _, log = px.ForwardHook(model(), where="layers.*.linear1")(jnp.ones(3))
    assert list(log) == ["layers.*.linear1"]


def test_stacked_layers_with_different_hooks_are_refused():
    hooks = {"layers.0.linear1": px.ZeroHook(), "layers.1.linear1": px.ScaleHook(2.0)}
    hooked = px.ForwardHook(model(), hooks)
    with pytest.raises(px.SiteLostError, match="brings modules of different structure"):
        hooked(jnp.ones(3))


def test_other_errors_of_the_model_are_left_alone():
    def broken(m, x):
        raise ValueError("of the model's own")

    with pytest.raises(ValueError, match="of the model's own"):
        px.ForwardHook(linear(3, 3, 0), method=broken)(jnp.ones(3))


def test_a_site_that_also_runs_abstractly():
    def run(m, x):
        return jnp.zeros(jax.eval_shape(m, x).shape) + m(x)

    _, log = px.ForwardHook(linear(3, 3, 0), method=run)(jnp.ones(3))
    assert list(log) == ["."]


def test_associative_scan():
    lin, xs = linear(3, 3, 0), jr.normal(jr.key(0), (4, 3))
    run = lambda m, xs: lax.associative_scan(lambda a, b: jax.vmap(m)(a) + b, xs)
    out, log = px.ForwardHook(lin, method=run)(xs)
    assert_close(out, run(lin, xs))
    assert len(log) > 1  # one entry for each call that the scan makes


def custom_vmapped(m, x):
    @jax.custom_batching.custom_vmap
    def f(x):
        return m(x)

    @f.def_vmap
    def rule(axis_size, batched, xs):
        return jax.vmap(m)(xs) * 7, True

    return f(x)


@pytest.mark.parametrize("jit", (False, True))
def test_custom_vmap(jit):
    lin, xs = linear(3, 3, 0), jr.normal(jr.key(0), (4, 3))
    hooked = px.ForwardHook(lin, method=custom_vmapped)
    run = lambda f: jax.jit(lambda x: f(x)) if jit else f
    out, log = run(hooked)(xs[0])
    assert_close(out, lin(xs[0]))
    assert_close(log["."], lin(xs[0]))
    # The rule is kept, for a vmap around the wrapper.
    out, log = run(jax.vmap(hooked))(xs)
    assert_close(out, 7 * jax.vmap(lin)(xs))
    assert_close(log["."], jax.vmap(lin)(xs))
