"""Random programs against their twins.

The suite runs a few, always the same ones, mostly without compiling them. For as many
others as you like:

    pytest -n 0 tests/engine/test_random_programs.py --random-programs=1000

A program that fails is printed as a plan and a seed, made as small as it can be: paste
it into `test_found.py`, with a name.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close
from hypothesis import given, HealthCheck, settings
from random_checks import (
    check_derivatives,
    check_logs,
    check_outside,
    check_patch,
    check_sums,
)
from random_interpreter import interpreted
from random_programs import programs


def run(check, num, more):
    """Checks `num` programs; `more` than those of the suite, if that isn't 0."""

    @settings(
        max_examples=more or num,
        derandomize=not more,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs(budget=40 if more else 16))
    def each(program):
        check(*program)

    each()


@pytest.mark.parametrize(
    "check, num",
    [
        (check_logs, 12),
        (check_sums, 3),
        (check_outside, 6),
        (check_patch, 8),
        (check_derivatives, 8),
    ],
)
def test_random_programs(check, num, pytestconfig):
    with interpreted():
        run(check, num, pytestconfig.getoption("--random-programs"))


def test_compiled():
    run(check_logs, 1, 0)


def test_they_are_interpreted():
    # Else JAX has no longer the private function that the interpreter replaces, and
    # all of them are compiled.
    with interpreted() as interpreter:
        x = jax.jit(lambda x: jnp.sin(x) + 2)(jnp.ones(3))
    assert interpreter is not None
    assert interpreter.runs == 1
    assert_close(x, np.sin(1) + np.full(3, 2))
