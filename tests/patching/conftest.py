"""What the tests of refusals share."""

import jax
import noted
import pytest


@pytest.fixture
def nothing_runs():
    noted.ran.clear()
    yield
    jax.effects_barrier()
    assert not noted.ran
