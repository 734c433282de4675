"""Hooks that see a value with its axes split."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from closeness import assert_close
from jax import lax

import peex as px


HEADS, SIZE, STEPS, POSITIONS = 3, 2, 4, 5
LIN = eqx.nn.Linear(6, 6, key=jr.key(0))
XS = jr.normal(jr.key(1), (POSITIONS, 6))


def model(m, xs):
    return lax.scan(lambda xs, _: (jnp.tanh(jax.vmap(m)(xs)), None), xs, length=STEPS)[
        0
    ]


def twin(act):
    """By hand: `act(step, value)` of shape (positions, heads, size)."""
    xs, values = XS, []
    for i in range(STEPS):
        y = jax.vmap(LIN)(xs).reshape(POSITIONS, HEADS, SIZE)
        y = act(i, y).reshape(POSITIONS, 6)
        values.append(y)
        xs = jnp.tanh(y)
    return jnp.stack(values)


def logged(hook, names, where="."):
    hooked = px.ForwardHook(LIN, px.View(hook, names), where=where, method=model)
    log = hooked(XS)[1][where]
    assert_close(eqx.filter_jit(hooked)(XS)[1][where], log, rtol=1e-5)
    return log


# Of the value that the site sees, and of the log.
NAMES = (
    "(head=3 d)",
    "(head d=2)",
    "pos (head=3 d)",
    "layer pos (head=3 d)",
    "_ _ (a=3 _)",
)


@pytest.mark.parametrize("names", NAMES)
def test_a_hook_on_split_axes(names):
    hook = lambda x: x * jnp.arange(3.0)[:, None]
    expected = twin(lambda i, y: y * jnp.arange(3.0)[:, None])
    assert_close(logged(hook, names), expected, rtol=1e-5)


@pytest.mark.parametrize("names", NAMES)
def test_masks_and_patches_of_heads(names):
    source = jr.normal(jr.key(2), (STEPS, POSITIONS, 6))
    heads = source.reshape(STEPS, POSITIONS, HEADS, SIZE)
    mask = jnp.zeros((STEPS, POSITIONS, HEADS, 1), bool).at[1, 2, 1].set(True)
    hook = px.At(px.PatchHook({".": source}), mask)
    expected = twin(lambda i, y: jnp.where(mask[i], heads[i], y))
    assert_close(logged(hook, names), expected, rtol=1e-5)
    at_step = px.AtStep(px.At(px.ZeroHook(), jnp.array([0, 1, 0], bool)[:, None]), [2])
    zero = jnp.array([1.0, 0.0, 1.0])[:, None]
    expected = twin(lambda i, y: y * zero if i == 2 else y)
    assert_close(logged(at_step, names), expected, rtol=1e-5)


def test_a_view_where_a_mask_of_the_log_holds():
    mask = jnp.zeros((STEPS, POSITIONS, 6), bool).at[0, 1, 3].set(True)
    hook = px.At(px.View(lambda x: -x, "(head=3 d)"), mask)
    split = mask.reshape(STEPS, POSITIONS, HEADS, SIZE)
    expected = twin(lambda i, y: jnp.where(split[i], -y, y))
    log = px.ForwardHook(LIN, hook, method=model)(XS)[1]["."]
    assert_close(log, expected, rtol=1e-5)


def test_what_does_not_fit():
    with pytest.raises(
        px.HookShapeError, match=r"value of the site '\.'.* 4 does not d"
    ):
        logged(px.ZeroHook(), "(head=4 d)")
    match = (
        r"split an axis that the value of the site '\.', of shape \(6,\), hasn't got"
    )
    with pytest.raises(px.HookShapeError, match=match):
        logged(px.ZeroHook(), "(a b=2) (head=3 d)")
    with pytest.raises(TypeError, match=r"'\(head' doesn't name the axes of an array"):
        px.View(px.ZeroHook(), "(head")
    with pytest.raises(TypeError, match="View was given a hook of type NoneType"):
        px.View(None, "a")
    with pytest.raises(
        px.HookShapeError, match=r"hook_fn of the site '\.' changed the"
    ):
        logged(lambda x: x[:1], "(head=3 d)")
