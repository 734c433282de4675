"""What random programs have found, each as the smallest program that shows it.

For how to read these see `random_programs.py`. Odd seeds put a `ForwardHook` inside of
the `BackwardHook`.
"""

import pytest
from random_checks import check_logs, check_outside


FOUND = {
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
    "a while loop in the condition of another": (
        ("while", ("while", None, "norm"), "linear"),
        7,
    ),
}


@pytest.mark.parametrize("plan, seed", FOUND.values(), ids=FOUND)
def test_found(plan, seed):
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
    check_outside(plan, seed)
