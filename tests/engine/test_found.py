"""What random programs have found, each as the smallest program that shows it.

For how to read these see `random_programs.py`. Odd seeds put a `ForwardHook` inside of
the `BackwardHook`.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from random_checks import check_logs, check_outside, check_patch
from random_interpreter import interpreted
from twin_case import linear

import peex as px


FOUND = {
    # Its rule was run as if it were of another call.
    "a function with a rule of its own in a batched branch": (
        (
            "under",
            ("vmap",),
            ("branch", "norm", "norm", ("under", ("custom_jvp",), "gru")),
        ),
        52,
    ),
    # JAX 0.11 puts such a loop into an `eval_jaxpr`.
    "a loop that is recomputed in an inner gradient": (
        ("under", ("grad",), ("under", ("checkpoint",), ("under", ("repeat",), "gru"))),
        0,
    ),
    # The recomputation was taken for a further call, by the outer of two wrappers.
    "a recomputation, seen through another wrapper": (
        ("under", ("grad",), ("under", ("checkpoint",), "linear")),
        1,
    ),
    # A constant inside of the function was taken for something that is differentiated.
    "a constant in a custom_vjp in a loop": (
        ("under", ("repeat",), ("under", ("custom_vjp",), ("under", ("map",), "norm"))),
        0,
    ),
    # Its count was the number of iterations, its value that of the last iteration.
    "the value of a branch in the condition of a while loop": (
        ("while", ("under", ("cond",), "linear"), "linear"),
        7,
    ),
    "the count of a branch in the condition of a while loop": (
        ("while", ("under", ("cond",), "linear"), "linear"),
        8,
    ),
    # JAX marks the first computation too as one that is differentiated.
    "a checkpoint in a checkpoint in a loop, with a policy": (
        (
            "under",
            ("linearize",),
            ("under", ("unroll",), ("under", ("dots",), ("under", ("dots",), "gru"))),
        ),
        0,
    ),
    # Each recomputation is of a call of its own.
    "a layer called twice, recomputed in an inner gradient": (
        ("under", ("grad",), ("shared", ("wrapped", "checkpoint", "linear"))),
        0,
    ),
    "two calls in one checkpoint, with a policy": (
        ("under", ("grad",), ("under", ("dots",), ("under", ("call", "map"), "gru"))),
        0,
    ),
    "calls recomputed in an inner gradient in a loop": (
        (
            "under",
            ("scan",),
            ("under", ("grad",), ("under", ("checkpoint", "dots"), "linear")),
        ),
        1,
    ),
    "a while loop in the condition of another": (
        ("while", ("while", None, "norm"), "linear"),
        7,
    ),
}


@pytest.mark.parametrize("plan, seed", FOUND.values(), ids=FOUND)
def test_found(plan, seed):
    with interpreted():  # most of the time would go into compiling
        check_logs(plan, seed)


FOUND_OUTSIDE = {
    # The inner wrapper runs the condition once more, which the outer one logged, too.
    "a while loop whose condition has sites of two wrappers": (
        ("while", ("seq", "linear", "norm"), "linear"),
        0,
    ),
}


@pytest.mark.parametrize("plan, seed", FOUND_OUTSIDE.values(), ids=FOUND_OUTSIDE)
def test_found_outside(plan, seed):
    with interpreted():
        check_outside(plan, seed)


FOUND_PATCHED = {
    # The gradient of a patched value is zero: JAX dropped the value.
    "a patch in an inner gradient in a loop that is linearized": (
        ("under", ("linearize",), ("under", ("repeat",), ("under", ("grad",), "norm"))),
        6,
    ),
    # The patch is taken for that of a further call, which there isn't.
    "a call patched and recomputed in an inner gradient": (
        ("under", ("grad",), ("shared", ("wrapped", "checkpoint", "linear"))),
        0,
    ),
}


@pytest.mark.parametrize("plan, seed", FOUND_PATCHED.values(), ids=FOUND_PATCHED)
def test_found_patched(plan, seed):
    with interpreted():
        check_patch(plan, seed)


CONDITIONS = {
    "loop": lambda f, x: lax.scan(lambda h, _: (f(h), None), x, length=2)[0],
    "branch": lambda f, x: lax.cond(x[0] > 0, lambda x: f(x), lambda x: x, x),
    "jit": lambda f, x: eqx.filter_jit(lambda f, x: f(x))(f, x),
}


@pytest.mark.filterwarnings("ignore:This model is wrapped in an equal")
@pytest.mark.parametrize("how", CONDITIONS)
@pytest.mark.parametrize("run", [lambda f: f, eqx.filter_jit], ids=["eager", "jit"])
def test_two_wrappers_around_the_condition_of_a_while_loop(how, run):
    """The inner one runs the condition once more; the outer heard that, too."""

    class Loops(eqx.Module):
        layer: eqx.nn.Linear

        def __call__(self, x):
            def cond(state):
                i, x = state
                return (i < 3) & (jnp.sum(CONDITIONS[how](self.layer, x)) < 100)

            step = lambda state: (state[0] + 1, jnp.tanh(state[1]))
            return lax.while_loop(cond, step, (0, x))

    inner = px.ForwardHook(Loops(linear(2, 2, 0)))
    (_, inner_log), outer_log = run(px.ForwardHook(inner))(jnp.ones(2))
    assert list(outer_log) == list(inner_log) == ["layer"]
    for a, b in (
        (outer_log["layer"], inner_log["layer"]),
        (outer_log.counts["layer"], inner_log.counts["layer"]),
    ):
        np.testing.assert_array_equal(a, b)
