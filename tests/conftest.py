"""Set up before JAX and peex are: four CPU devices, for the tests of sharding; and the
types of what peex's functions are given and return are checked. And the options of the
tests.
"""

import os

import pytest
from beartype import BeartypeConf, BeartypeDecorPlace
from beartype.claw import beartype_package


_FLAG = "--xla_force_host_platform_device_count=4"
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}".strip()

# Innermost, as `jax.custom_jvp` makes no function of a function. (By jaxtyping's own
# hook, which makes new functions of each inner one, the tests take twice as long.)
beartype_package(
    "peex", conf=BeartypeConf(claw_decor_place_func=BeartypeDecorPlace.FIRST)
)


def pytest_addoption(parser):
    parser.addoption(
        "--random-programs",
        type=int,
        default=0,
        metavar="N",
        help="check N new random programs, instead of the few that the suite checks",
    )


@pytest.fixture
def standard_promotion():
    """For tests that promote dtypes themselves: CI also runs the suite in the strict
    mode of JAX.
    """
    import jax  # after the flags

    with jax.numpy_dtype_promotion("standard"):
        yield
