"""The arguments of sites, `"l:in"`, under each transformation.

All sites of the twins are Linears, whose outputs and cotangents are known from the
hand-written twins. So what a site is given must be mapped to its known output by the
weights, the cotangent of that is the known one by the transposed weights, and the outer
products of the two sum up to the gradient of the weights.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import twins
from closeness import assert_close

import peex as px


CASES = twins.cases()
DIFFERENTIABLE = [c for c in CASES if c.differentiable]
# Where the model differentiates itself, a weight has a gradient by way of that too.
LINEAR = [c for c in DIFFERENTIABLE if not c.name.startswith("force")]
OUTSIDE = {"eager": lambda f: f, "jit": eqx.filter_jit}


def layer_of(model, key):
    for name in key.partition("#")[0].split("."):
        model = model[int(name)] if name.isdigit() else getattr(model, name)
    return model


def input_key(key):
    module, number, call = key.partition("#")
    return f"{module}:in{number}{call}"


def each_step(fn, weight, *args):
    """`fn` with the weights of each layer of a scanned stack."""
    return fn(weight, *args) if weight.ndim == 2 else jax.vmap(fn)(weight, *args)


def where_of(model):
    keys = [key for key, site in px.sites(model).items() if site.chosen == "default"]
    return [*keys, *(f"{key}:in" for key in keys)]


def loss_of(out):
    leaves = jax.tree.leaves(out)
    return sum(jnp.sum(jnp.sin(x) * (i + 1)) for i, x in enumerate(leaves))


@pytest.mark.parametrize("outside", OUTSIDE)
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_forward(case, outside):
    hooked = px.ForwardHook(case.model, where=where_of(case.model))
    out, log = OUTSIDE[outside](lambda h, x: h(x))(hooked, case.x)
    expected_out, expected = case.twin(case.model, case.x, case.eps())
    assert_close(out, expected_out)
    assert set(log) == {*expected, *map(input_key, expected)}
    for key, value in expected.items():
        np.testing.assert_array_equal(
            log.counts.get(key), log.counts.get(input_key(key))
        )
        layer = layer_of(case.model, key)
        apply = lambda w, b, x: x @ w.T + b
        given = log[input_key(key)]
        if layer.weight.ndim == 3:
            apply = jax.vmap(apply)
        made = apply(layer.weight, layer.bias, given)
        ran = jnp.asarray(log.counts.get(key, 1))[..., None] > 0
        np.testing.assert_array_equal(jnp.where(ran, 0.0, given), 0)
        assert_close(jnp.where(ran, made, 0.0), value)


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_report(case):
    where = where_of(case.model)
    report = px.report(case.model, case.x, where=where)
    hooked = px.ForwardHook(case.model, where=where)
    log = jax.eval_shape(lambda x: hooked(x)[1], case.x)
    assert list(report.entries) == list(log)
    assert not report.missing
    for key, entry in log.items():
        assert report[key].log.shape == entry.shape
        assert report[key].axes == log.axes[key]


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=repr)
def test_backward(case):
    hooked = px.BackwardHook(case.model, where=where_of(case.model)).init(case.x)
    grads = eqx.filter_jit(eqx.filter_grad(lambda h, x: loss_of(h(x))))(hooked, case.x)

    def twin_loss(eps):
        return loss_of(case.twin(case.model, case.x, eps)[0])

    for key, cotangent in jax.grad(twin_loss)(case.eps()).items():
        assert_close(grads.log[key], cotangent, 2e-6)
        weight = layer_of(case.model, key).weight
        expected = each_step(lambda w, c: c @ w, weight, cotangent)
        assert_close(grads.log[input_key(key)], expected, 2e-6)


@pytest.mark.parametrize("case", LINEAR, ids=repr)
def test_outer_products_sum_up_to_the_gradient(case):
    keys = [k for k in where_of(case.model) if not k.endswith(":in")]
    run = px.value_and_grad(
        lambda m, x: loss_of(m(x)),
        forward={f"{key}:in": px.IdentityLog() for key in keys},
        backward={key: px.IdentityLog() for key in keys},
    )
    (value, logs), grads = eqx.filter_jit(run)(case.model, case.x)
    loss = eqx.filter_value_and_grad(lambda m, x: loss_of(m(x)))
    expected_value, expected = loss(case.model, case.x)
    assert_close(value, expected_value)
    assert_close(grads, expected, 2e-6)
    sums = {}
    for key, cotangents in logs.backward.items():
        inputs, module = logs.forward[input_key(key)], key.partition("#")[0]
        weight = layer_of(expected, module).weight
        product = each_step(
            lambda w, c, x: jnp.einsum("...o,...i->oi", c, x),
            weight,
            cotangents,
            inputs,
        )
        sums[module] = sums.get(module, 0) + product
    assert sums.keys() == set(keys)
    for module, total in sums.items():
        assert_close(total, layer_of(expected, module).weight, 5e-6)


# Exactly: in whole numbers nothing is rounded.


class Tokens(eqx.Module):
    first: eqx.nn.Linear
    cell: eqx.nn.Linear
    last: eqx.nn.Linear

    def __call__(self, tokens):
        hidden = jax.vmap(self.first)(tokens)
        step = lambda h, x: (self.cell(h - x), None)
        final, _ = jax.lax.scan(step, jnp.ones(3), hidden)
        return self.last(final)


def whole(layer, seed):
    rng = np.random.default_rng(seed)
    shapes = layer.weight.shape, layer.bias.shape
    new = [jnp.asarray(rng.integers(-1, 2, s), jnp.float32) for s in shapes]
    return eqx.tree_at(lambda lin: (lin.weight, lin.bias), layer, new)


def tokens_model():
    sizes = [(2, 3), (3, 3), (3, 1)]
    made = [
        whole(eqx.nn.Linear(i, o, key=jax.random.key(0)), n)
        for n, (i, o) in enumerate(sizes)
    ]
    return Tokens(*made)


@pytest.mark.parametrize("jit", [False, True])
def test_gradients_per_example_are_exact(jit):
    model = tokens_model()
    rng = np.random.default_rng(7)
    xs = jnp.asarray(rng.integers(-2, 3, (5, 4, 2)), jnp.float32)
    ys = jnp.asarray(rng.integers(-2, 3, (5, 1)), jnp.float32)

    def one(model, x, y):
        return jnp.sum((model(x) - y) ** 2)

    def loss(model, xs, ys):
        return jnp.sum(jax.vmap(one, in_axes=(None, 0, 0))(model, xs, ys))

    run = px.value_and_grad(
        loss,
        forward={"*:in": px.IdentityLog()},
        backward={"*": px.IdentityLog()},
    )
    (_, logs), _ = (eqx.filter_jit(run) if jit else run)(model, xs, ys)
    assert list(logs.forward) == ["first:in", "cell:in", "last:in"]
    shapes = {"first": (5, 4, 3), "cell": (4, 5, 3), "last": (5, 1)}
    assert {k: v.shape for k, v in logs.backward.items()} == shapes

    expected = jax.vmap(eqx.filter_grad(one), in_axes=(None, 0, 0))(model, xs, ys)
    # Tokens are a batch axis behind that of the examples, steps are in front of it.
    sums = {"first": "bto,bti->boi", "cell": "tbo,tbi->boi", "last": "bo,bi->boi"}
    for name, axes in sums.items():
        made = jnp.einsum(axes, logs.backward[name], logs.forward[f"{name}:in"])
        assert jnp.any(made)
        np.testing.assert_array_equal(made, getattr(expected, name).weight)
