"""What a monitor says where it is used as it can't be."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import peex as px


LINEAR = eqx.nn.Linear(2, 3, key=jax.random.key(0))
XS = jnp.ones((4, 2))
STATS = px.monitoring.Stats


def loss(model, xs):
    return jnp.mean(jax.vmap(model)(xs) ** 2)


@pytest.mark.parametrize(
    "kwargs, error, message",
    [
        (
            {"forward": px.NormLog()},
            TypeError,
            r"`forward` of a Monitor is a `px.monitoring.Stats`, a dict .* got NormLog",
        ),
        (
            {"forward": None},
            TypeError,
            r"keeps nothing: both `forward` and `backward` are None",
        ),
        (
            {"backward": STATS("out_over_in")},
            ValueError,
            r"in the forward pass. Give it to `forward`",
        ),
    ],
    ids=["log", "nothing", "backward"],
)
def test_what_it_is_made_of(kwargs, error, message):
    with pytest.raises(error, match=message):
        px.monitoring.Monitor(loss, **kwargs)


@pytest.mark.parametrize(
    "on", [1, np.float32(1), jnp.ones(2, bool), None], ids=["int", "f", "two", "none"]
)
def test_what_it_is_switched_by(on):
    monitor = px.monitoring.Monitor(loss)
    message = r"is a bool, or an array of one, as `monitor\(model, state, xs, on="
    with pytest.raises(TypeError, match=message):
        monitor(LINEAR, monitor.init(LINEAR, XS), XS, on=on)


def test_a_state_of_another_call():
    monitor = px.monitoring.Monitor(loss, forward=STATS("rms", "dead"))
    state = monitor.init(LINEAR, XS)
    run = lambda model, xs: jax.eval_shape(lambda: monitor(model, state, xs))
    other = eqx.nn.Linear(2, 5, key=jax.random.key(0))
    again = r"Make it of arguments like those of this one: `state = monitor.init\("
    with pytest.raises(px.LogShapeError, match=rf"'\.' is of another shape.*{again}"):
        run(other, XS)
    mapped = eqx.filter_vmap(eqx.filter_vmap(LINEAR))
    deeper = px.monitoring.Monitor(
        lambda m, xs: jnp.sum(m(xs)), forward=monitor.forward
    )
    with pytest.raises(px.LogShapeError, match=r"gained 1 axes then, and 2 now"):
        jax.eval_shape(lambda: deeper(mapped, state, XS[None]))
    mlp = eqx.nn.MLP(2, 1, 3, depth=1, key=jax.random.key(0))
    with pytest.raises(px.LogShapeError, match=r"'\.' isn't there in this call"):
        run(mlp, XS)
    wide = eqx.nn.MLP(2, 3, 3, depth=0, key=jax.random.key(0))
    state = monitor.init(wide, XS)
    with pytest.raises(px.LogShapeError, match=r"'layers.1' is new in this call"):
        jax.eval_shape(lambda: monitor(mlp, state, XS))


def test_updates():
    plain = px.monitoring.Monitor(loss)
    with pytest.raises(
        px.LogShapeError, match=r"Write `px.monitoring.Monitor\(loss, upd"
    ):
        plain.with_updates(plain.init(LINEAR, XS), LINEAR, LINEAR)
    monitor = px.monitoring.Monitor(loss, updates=True)
    state = monitor.init(LINEAR, XS)
    short = eqx.tree_at(lambda m: m.bias, LINEAR, jnp.ones(2))
    with pytest.raises(ValueError, match=r"'bias' has shape \(2,\), .* it has \(3,\)"):
        monitor.with_updates(state, LINEAR, short)
    frozen = eqx.tree_at(lambda m: m.bias, LINEAR, None)
    with pytest.raises(px.LogShapeError, match=r"'bias' isn't there in this call"):
        monitor.with_updates(state, LINEAR, frozen)
