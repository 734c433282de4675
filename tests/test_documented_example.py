"""The documented example, with exactly its numbers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close
from twin_models import MLP

import peex as px


OUTPUT = np.array([0.23334768])
FORWARD = {"linear1": np.array([1.2571917, 1.2331474]), "linear2": OUTPUT}
BACKWARD = {"linear1": np.array([-0.68400913, 0.4777369]), "linear2": np.ones(1)}


mlp_key, x_key = jax.random.split(jax.random.key(0), 2)
mlp = MLP(1, 2, 1, key=mlp_key)
x = jax.random.normal(x_key, (1,))
xs = jnp.stack([x, 2 * x, -x])

eager_and_jit = pytest.mark.parametrize(
    "outside", [lambda f: f, eqx.filter_jit], ids=["eager", "jit"]
)


def assert_log(log, expected):
    assert isinstance(log, px.Log)
    assert list(log) == list(expected)
    for key, value in expected.items():
        assert log[key].dtype == jnp.float32
        assert_close(log[key], value)


@eager_and_jit
def test_forward(outside):
    hooked = px.ForwardHook(mlp, hook_fn=px.IdentityHook(), log_fn=px.IdentityLog())
    output, log = outside(lambda h, x: h(x))(hooked, x)
    assert_close(output, OUTPUT)
    assert_log(log, FORWARD)


@eager_and_jit
def test_backward(outside):
    hooked = px.BackwardHook(mlp, hook_fn=px.IdentityHook(), log_fn=px.IdentityLog())
    hooked = hooked.init(x)

    @outside
    @eqx.filter_value_and_grad
    def loss_and_grads(h, x):
        return jnp.mean(h(x))

    loss, grads = loss_and_grads(hooked, x)
    assert_close(loss, OUTPUT[0])
    assert_log(grads.log, BACKWARD)
    assert_close(grads.model, eqx.filter_grad(lambda m, x: jnp.mean(m(x)))(mlp, x))


def test_defaults():
    output, log = px.ForwardHook(mlp)(x)
    assert_close(output, OUTPUT)
    assert_log(log, FORWARD)
    hooked = px.BackwardHook(mlp).init(x)
    assert_close(hooked(x), OUTPUT)
    grads = eqx.filter_grad(lambda h, x: jnp.mean(h(x)))(hooked, x)
    assert_log(grads.log, BACKWARD)


def test_init_from_shapes():
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    a, b = px.BackwardHook(mlp).init(like).log, px.BackwardHook(mlp).init(x).log
    assert list(a) == list(b) == list(BACKWARD)
    for key in a:
        assert a[key].shape == b[key].shape == np.shape(BACKWARD[key])
        assert not a[key].any() and not b[key].any()


@eager_and_jit
def test_both_nested(outside):
    hooked = px.BackwardHook(px.ForwardHook(mlp)).init(x)

    @outside
    def run(h, x):
        def loss(h, x):
            output, log = h(x)
            return jnp.mean(output), log

        return eqx.filter_value_and_grad(loss, has_aux=True)(h, x)

    (loss, log), grads = run(hooked, x)
    assert_close(loss, OUTPUT[0])
    assert_log(log, FORWARD)
    assert_log(grads.log, BACKWARD)


def mean_loss(model, x):
    return jnp.mean(model(x))


@eager_and_jit
def test_value_and_grad(outside):
    run = outside(px.value_and_grad(mean_loss))
    (value, logs), grads = run(mlp, x)
    assert_close(value, OUTPUT[0])
    assert logs.forward == px.Log()  # not asked for
    assert_log(logs.backward, BACKWARD)
    assert_close(grads, eqx.filter_grad(mean_loss)(mlp, x))


@eager_and_jit
def test_value_and_grad_with_forward_log(outside):
    run = outside(px.value_and_grad(mean_loss, forward=px.IdentityLog()))
    (value, logs), grads = run(mlp, x)
    assert_close(value, OUTPUT[0])
    assert_log(logs.forward, FORWARD)
    assert_log(logs.backward, BACKWARD)
    assert_close(grads, eqx.filter_grad(mean_loss)(mlp, x))


def test_value_and_grad_without_backward_log():
    run = px.value_and_grad(mean_loss, backward=None, forward=px.IdentityLog())
    (value, logs), grads = run(mlp, x)
    assert_close(value, OUTPUT[0])
    assert logs.backward == px.Log()
    assert_log(logs.forward, FORWARD)
    assert_close(grads, eqx.filter_grad(mean_loss)(mlp, x))


@pytest.mark.parametrize("forward", [None, px.IdentityLog()], ids=["none", "forward"])
def test_value_and_grad_has_aux(forward):
    def loss(model, x, *, scale):
        y = model(x)
        return jnp.mean(y), {"y": scale * y, "name": "aux"}

    run = px.value_and_grad(loss, forward=forward, has_aux=True)
    ((value, aux), logs), grads = run(mlp, x, scale=2.0)
    assert_close(value, OUTPUT[0])
    assert_close(aux["y"], 2 * OUTPUT)
    assert aux["name"] == "aux"
    assert_log(logs.backward, BACKWARD)
    assert isinstance(logs.forward, px.Log)
    assert (len(logs.forward) == 0) == (forward is None)
    assert_close(grads, eqx.filter_grad(mean_loss)(mlp, x))


def batch_loss(model, xs):
    return jnp.sum(jax.vmap(model)(xs) ** 2)


@eager_and_jit
def test_value_and_grad_per_example(outside):
    run = outside(px.value_and_grad(batch_loss, forward=px.IdentityLog()))
    (value, logs), grads = run(mlp, xs)

    # By hand: w2 relu(w1 x + b1) + b2, and its derivatives.
    w1, b1 = np.asarray(mlp.linear1.weight), np.asarray(mlp.linear1.bias)
    w2, b2 = np.asarray(mlp.linear2.weight), np.asarray(mlp.linear2.bias)
    a = np.asarray(xs) @ w1.T + b1
    y = np.maximum(a, 0) @ w2.T + b2
    dy = 2 * y
    da = (dy @ w2) * (a > 0)
    assert_close(value, np.sum(y**2))
    assert list(logs.forward) == list(logs.backward) == ["linear1", "linear2"]
    assert_close(logs.forward["linear1"], a)
    assert_close(logs.forward["linear2"], y)
    assert_close(logs.backward["linear1"], da)
    assert_close(logs.backward["linear2"], dy)
    # The sum over examples is the gradient of the bias.
    assert_close(logs.backward["linear1"].sum(0), grads.linear1.bias)
    assert_close(grads, eqx.filter_grad(batch_loss)(mlp, xs))


def test_value_and_grad_options():
    run = px.value_and_grad(
        mean_loss,
        backward=px.NormLog(),
        hook_fn={"linear2": px.ScaleHook(2.0)},
        where=["linear1", "linear2"],
    )
    (value, logs), grads = run(mlp, x)
    assert_close(value, OUTPUT[0])
    assert_close(logs.backward["linear2"], 2.0)
    norm = 2 * np.linalg.norm(BACKWARD["linear1"])
    assert_close(logs.backward["linear1"], norm)
    expected = jax.tree.map(lambda g: 2 * g, eqx.filter_grad(mean_loss)(mlp, x))
    assert_close(grads, expected)


def test_value_and_grad_pre_hook():
    run = px.value_and_grad(mean_loss, pre_hook=True, where="linear2")
    (_, logs), _ = run(mlp, x)
    (cotangent,) = logs.backward["linear2"]
    assert_close(cotangent, mlp.linear2.weight[0])
