"""Autoencoders in the way of a value, interchange along directions, soft masks."""

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


STEPS, WIDTH = 4, 3
LIN = linear(WIDTH, WIDTH, 0)
XS = jr.normal(jr.key(0), (2, WIDTH))
SOURCE = jr.normal(jr.key(1), (STEPS, 2, WIDTH))


def model(m, xs):
    return lax.scan(lambda xs, _: (jnp.tanh(jax.vmap(m)(xs)), None), xs, length=STEPS)[
        0
    ]


def twin(act, xs=XS):
    """Output and values by hand; `act(step, value)` is what the hook does."""
    values = []
    for i in range(STEPS):
        values.append(act(i, xs @ LIN.weight.T + LIN.bias))
        xs = jnp.tanh(values[-1])
    return xs, jnp.stack(values)


class SAE(eqx.Module):
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def encode(self, x):
        return jax.nn.relu(self.up(x))

    def decode(self, z):
        return self.down(z)


MODULE = SAE(linear(WIDTH, 5, 1), linear(5, WIDTH, 2))


def encode(x):
    return jax.nn.relu(x @ MODULE.up.weight.T + MODULE.up.bias)


def decode(z):
    return z @ MODULE.down.weight.T + MODULE.down.bias


EDITS = {"none": None, "one": lambda z: z.at[..., 2].set(1.0)}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize("error", (False, True))
def test_splice(error, edit):
    def act(i, x):
        z = encode(x)
        new = decode(z if edit is None else edit(z))
        return new + lax.stop_gradient(x - decode(z)) if error else new

    hook = px.SpliceHook(MODULE, error=error, edit=edit)
    hooked = px.ForwardHook(LIN, hook, method=model)
    out, values = twin(act)
    for run in (lambda f: f, eqx.filter_jit):
        got, log = run(hooked)(XS)
        assert_close(got, out, rtol=1e-5)
        assert_close(log["."], values, rtol=1e-5)
        assert log["./latents"].shape == (STEPS, 2, 5)
        assert_close(log["./latents"][0], encode(jax.vmap(LIN)(XS)), rtol=1e-5)
    loss = lambda xs: jnp.sum(hooked(xs)[0] ** 2)
    expected = jax.grad(lambda xs: jnp.sum(twin(act, xs)[0] ** 2))(XS)
    assert_close(jax.grad(loss)(XS), expected, rtol=1e-4)


def test_latents_of_a_splice_are_patched_by_a_wrapper_around():
    """The error stays that of the reconstruction without it."""
    inner = px.ForwardHook(LIN, px.SpliceHook(MODULE, error=True), None, method=model)
    patch = px.At(px.ReplaceHook(1.0), jnp.arange(5) == 2)
    outer = px.ForwardHook(inner, patch, where="./latents")

    def act(i, x):
        z = encode(x)
        return decode(z.at[..., 2].set(1.0)) + x - decode(z)

    for run in (lambda f: f, eqx.filter_jit):
        (out, _), log = run(outer)(XS)
        assert_close(out, twin(act)[0], rtol=1e-5)
        np.testing.assert_array_equal(log["./latents"][..., 2], 1)


def test_splice_keeps_the_dtype_and_refuses():
    class Wide(SAE):
        """In float32, whatever it is given."""

        def encode(self, x):
            return super().encode(x.astype(jnp.float32))

    wide, value = Wide(MODULE.up, MODULE.down), jnp.ones(WIDTH, jnp.bfloat16)
    for error in (False, True):
        hook = px.SpliceHook(wide, error=error)
        out, _ = px.ForwardHook(eqx.nn.Identity(), hook)(value)
        plain = decode(encode(jnp.ones(WIDTH)))
        expected = value if error else plain.astype(jnp.bfloat16)
        assert out.dtype == jnp.bfloat16
        assert_close(out.astype("float32"), expected.astype("float32"), rtol=1e-2)
    with pytest.raises(
        px.HookShapeError, match="its value is a tuple, and an autoencod"
    ):
        px.ForwardHook(eqx.nn.Identity(), px.SpliceHook(MODULE))((value, value))
    with pytest.raises(
        TypeError, match="a Linear, has no method 'encode'. Give one wi"
    ):
        px.SpliceHook(LIN)
    with pytest.raises(
        TypeError, match="`edit` of a SpliceHook is a function of the la"
    ):
        px.SpliceHook(MODULE, edit=3)


@pytest.mark.parametrize("boundary", (None, "learned"))
@pytest.mark.parametrize("rank", (1, 2, WIDTH))
def test_rotate(rank, boundary):
    hook = px.RotateHook({".": SOURCE}, WIDTH, rank, jr.key(2), boundary=boundary)
    weight = np.asarray(hook.weight)
    np.testing.assert_allclose(weight.T @ weight, np.eye(rank), atol=1e-6)
    gate = np.ones(rank)
    if boundary:
        gate = 1 / (1 + np.exp(-(0.5 * rank - np.arange(rank) - 0.5) / 0.1))
    matrix = weight @ np.diag(gate) @ weight.T
    act = lambda i, x: x + (SOURCE[i] - x) @ matrix
    out, values = twin(act)
    hooked = px.ForwardHook(LIN, hook, method=model)
    for run in (lambda f: f, eqx.filter_jit):
        got, log = run(hooked)(XS)
        assert_close(got, out, rtol=1e-4)
        assert_close(log["."], values, rtol=1e-4)
    if rank == WIDTH and not boundary:
        assert_close(hooked(XS)[1]["."], SOURCE, rtol=1e-4)


def test_rotate_refuses():
    for rank in (0, 4):
        with pytest.raises(
            TypeError, match=f"was given rank {rank}, which is how many"
        ):
            px.RotateHook({".": SOURCE}, WIDTH, rank, jr.key(0))
    with pytest.raises(
        TypeError, match="boundary of a RotateHook is None or 'learned'"
    ):
        px.RotateHook({".": SOURCE}, WIDTH, 1, jr.key(0), boundary="soft")
    with pytest.raises(
        px.HookShapeError, match=r"vectors of size 2, the value is float"
    ):
        hook = px.RotateHook({".": SOURCE}, 2, 1, jr.key(0))
        px.ForwardHook(LIN, hook, method=model)(XS)
    with pytest.raises(px.LogShapeError, match=r"patch of the site '\.' doesn't fit"):
        hook = px.RotateHook({".": SOURCE[:2]}, WIDTH, 1, jr.key(0))
        px.ForwardHook(LIN, hook, method=model)(XS)


LOGITS = {
    "units": (WIDTH,),
    "steps": (STEPS, 1, 1),
    "all": (STEPS, 2, WIDTH),
    "one": (),
}


@pytest.mark.parametrize("source", (None, SOURCE), ids=("zeros", "source"))
@pytest.mark.parametrize("shape", LOGITS.values(), ids=LOGITS)
def test_soft_masks(shape, source):
    logits = jr.normal(jr.key(3), shape)
    log = None if source is None else {".": source}
    other = 0 * SOURCE if source is None else source

    def act(logits):
        mask = jax.nn.sigmoid(logits / 0.5) * jnp.ones((STEPS, 2, WIDTH))
        return lambda i, x: (1 - mask[i]) * x + mask[i] * other[i]

    def hooked(logits):
        hook = px.MaskHook(logits, log, temperature=0.5)
        return px.ForwardHook(LIN, hook, method=model)

    out, values = twin(act(logits))
    for run in (lambda f: f, eqx.filter_jit):
        got, found = run(lambda logits: hooked(logits)(XS))(logits)
        assert_close(got, out, rtol=1e-5)
        assert_close(found["."], values, rtol=1e-5)
    grad = jax.grad(lambda logits: jnp.sum(hooked(logits)(XS)[0] ** 2))(logits)
    by_hand = jax.grad(lambda logits: jnp.sum(twin(act(logits))[0] ** 2))(logits)
    assert_close(grad, by_hand, rtol=1e-4)


def test_soft_masks_that_do_not_fit():
    hooked = px.ForwardHook(LIN, px.MaskHook(jnp.zeros(4)), method=model)
    with pytest.raises(
        px.LogShapeError, match=r"The logits for the site '\.', of shape"
    ):
        hooked(XS)


def test_trainable():
    rotate = px.RotateHook({".": SOURCE}, WIDTH, 1, jr.key(2), boundary="learned")
    hook = px.At(px.Chain(rotate, px.ScaleHook(jnp.ones(()))), jnp.ones((), bool))
    inner = px.ForwardHook(LIN, px.MaskHook(jnp.zeros(3), {".": SOURCE}), method=model)
    hooked = px.ForwardHook(inner, hook, px.HistogramLog(jnp.arange(3.0)))
    spec = px.trainable(hooked)
    trained, fixed = eqx.partition(hooked, spec)
    shapes = sorted(x.shape for x in jax.tree.leaves(trained))
    assert shapes == [(), (), (WIDTH,), (WIDTH, 1)]
    loss = lambda trained: jnp.sum(eqx.combine(trained, fixed)(XS)[0][0] ** 2)
    grads = eqx.filter_grad(loss)(trained)
    assert all(np.any(np.asarray(g) != 0) for g in jax.tree.leaves(grads))
    assert len(jax.tree.leaves(grads)) == 4
    with pytest.raises(TypeError, match="`px.trainable` takes a wrapper.*got a Linear"):
        px.trainable(LIN)
