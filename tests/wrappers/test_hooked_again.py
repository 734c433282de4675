"""Models that are wrapped already."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from parts import Two

import peex as px


LINEAR = eqx.nn.Linear(2, 2, key=jax.random.key(0))
HOOKED = px.ForwardHook(LINEAR)


def test_is_hooked():
    for model in (
        HOOKED,
        eqx.filter_vmap(HOOKED),
        Two(LINEAR, HOOKED),
        {"a": [HOOKED]},
    ):
        assert px.is_hooked(model)
    assert px.is_hooked(px.BackwardHook(LINEAR))
    for model in (LINEAR, Two(LINEAR, LINEAR), None, HOOKED(jnp.ones(2))):
        assert not px.is_hooked(model)


def same(wrapper):
    """Wraps in the same way as each of the wrappers below."""
    add = jnp.ones(2)
    return {
        "forward": lambda m: px.ForwardHook(m),
        "backward": lambda m: px.BackwardHook(m),
        "hook": lambda m: px.ForwardHook(m, px.AddHook(add), {"**": px.NormLog()}),
    }[wrapper]


@pytest.mark.parametrize("wrapper", ["forward", "backward", "hook"])
def test_an_equal_wrapper(wrapper):
    wrap = same(wrapper)
    inner = wrap(LINEAR)
    for again in (inner, px.ForwardHook(inner, px.ScaleHook(2.0))):
        with pytest.warns(
            UserWarning, match="is wrapped in an equal .*Hook already"
        ) as w:
            wrap(again)
        # At the line that wraps: here, that of the `lambda`.
        assert [x.filename for x in w] == [__file__]
        with open(__file__) as file:
            line = file.readlines()[w[0].lineno - 1]
        assert line.strip().startswith(f'"{wrapper}": lambda m')


def test_other_wrappers():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        px.ForwardHook(HOOKED, px.ScaleHook(2.0))
        px.ForwardHook(HOOKED, pre_hook=True)
        px.ForwardHook(HOOKED, where=".")
        px.BackwardHook(HOOKED)
        px.ForwardHook(px.ForwardHook(LINEAR, px.AddHook(1.0)), px.AddHook(2.0))
        steering = (px.AddHook(x) for x in (jnp.ones(2), jnp.zeros(2)))
        px.ForwardHook(px.ForwardHook(LINEAR, next(steering)), next(steering))
        px.ForwardHook(HOOKED.model)
