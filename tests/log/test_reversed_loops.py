"""Loops that run from their last step to the first: all that goes by the order of steps
equals that of the loop turned round.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from nonfinite_models import Fn

import peex as px


class Residual(eqx.Module):
    first: Fn
    second: Fn
    reverse: bool = eqx.field(static=True)
    gain: jax.Array

    def __call__(self, xs):
        def step(h, x):
            h = h + self.first(self.gain * x)
            return h + self.second(h), None

        return jax.lax.scan(step, jnp.array(0.0), xs, reverse=self.reverse)[0]


def model(reverse, first=jnp.tanh):
    return Residual(Fn(first), Fn(lambda x: jnp.sin(2 * x)), reverse, jnp.array(1.0))


XS = jnp.array([0.1, 0.4, 0.9, 1.3])


def test_a_log_says_which_way_a_loop_runs():
    for reverse in (True, False):
        _, log = px.ForwardHook(model(reverse))(XS)
        (axis,) = log.axes["first"]
        assert (axis.kind, axis.size, axis.reverse) == ("step", 4, reverse)
        assert px.report(model(reverse), XS)["first"].axes == log.axes["first"]


def test_the_first_that_is_not_finite():
    bad = XS.at[1].set(0).at[2].set(0)
    for reverse, step in ((True, 2), (False, 1)):
        one = model(reverse, lambda x: 1 / x)
        _, log = px.ForwardHook(one, log_fn=px.debug.FiniteLog())(bad)
        blame = px.debug.blame(log, px.debug.first_nonfinite(log))
        assert (blame.key, blame.step) == ("first", (step,))
        found = px.debug.find_nonfinite(one, bad, grad=False, drill=False)
        assert found.first.step == (step,)
        assert sorted(blame.step for blame in found.producers) == [(1,), (2,)]


def test_in_the_backward_pass():
    bad = XS.at[1].set(0).at[2].set(0)
    for reverse, step in ((True, 1), (False, 2)):
        one = model(reverse, lambda x: jnp.sqrt(x) * jnp.sqrt(x))
        found = px.debug.find_nonfinite(one, bad, drill=False)
        steps = [b.step for b in found.producers if b.direction == "backward"]
        assert steps[0] == (step,) and len(steps) == 2


def test_what_is_before_what():
    run = lambda reverse, xs, others: px.patching.edges(
        model(reverse),
        xs,
        others,
        lambda out: out,
        senders=["first", "second"],
        receivers="second:in",
        axes="step",
    )
    backward, forward = run(True, XS, -XS), run(False, XS[::-1], -XS[::-1])
    for key, value in backward.items():
        turned = np.flip(forward[key], (0, 1))
        np.testing.assert_allclose(value, turned, rtol=1e-5, err_msg=key)
    assert np.ptp(backward["first -> second:in"]) > 0.1
