"""Set up before JAX and peex are: four CPU devices, for the tests of sharding; quick
compilation; and checks of what peex's functions are given and return. And the options
of the tests.
"""

import functools
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import warnings

import pytest
from beartype.claw import beartype_package


# Most of the time would go to optimising programs that run once, and to compiling the
# same ones in each worker. (CI runs the suite with optimisation, too.)
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
QUICK = os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "1"
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

gc.set_threshold(100_000, 20, 20)  # tracing makes many objects, none of them garbage

_DEVICES = "--xla_force_host_platform_device_count=4"
_QUICK_FLAGS = (
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)


def _is_known(flag):
    """Whether this version of XLA has a flag; another one ends the process."""
    client = "from jaxlib import xla_client; xla_client.make_cpu_client()"
    env = {**os.environ, "XLA_FLAGS": flag}
    run = subprocess.run([sys.executable, "-c", client], env=env, capture_output=True)
    return run.returncode == 0


os.environ["COLUMNS"] = "100"  # as where there is no terminal

# The workers inherit it.
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    flags = [_DEVICES, *(flag for flag in _QUICK_FLAGS if QUICK and _is_known(flag))]
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *flags])

# (jaxtyping's own hook compiles new functions for each inner function, at each call of
# the outer one: with it, many tests take twice as long.)
beartype_package("peex")


def _warn(message, *args, **kwargs):
    """With `JAX_NUMPY_RANK_PROMOTION=warn`, what peex promotes is an error. What tests
    and Equinox promote isn't.
    """
    if not str(message).startswith("Following NumPy automatic rank promotion"):
        if "stacklevel" in kwargs:  # of who called this
            kwargs["stacklevel"] += 1
        return _warn.default(message, *args, **kwargs)
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "").partition(".")[0]
        if name == "peex":
            raise ValueError(message)
        if name not in ("jax", "contextlib", "functools", "beartype"):
            return None
        frame = frame.f_back


if os.environ.get("JAX_NUMPY_RANK_PROMOTION") == "warn":
    _warn.default = warnings.warn
    warnings.warn = _warn


def pytest_addoption(parser):
    parser.addoption(
        "--random-programs",
        type=int,
        default=0,
        metavar="N",
        help="check N new random programs, instead of the few that the suite checks",
    )


def pytest_configure(config):
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        # Inherited by the workers.
        config.compiled = tempfile.mkdtemp(prefix="peex-tests-")
        os.environ["JAX_COMPILATION_CACHE_DIR"] = config.compiled


def pytest_unconfigure(config):
    if hasattr(config, "compiled"):
        shutil.rmtree(config.compiled, ignore_errors=True)


@pytest.fixture
def standard_promotion():
    """For tests that promote dtypes themselves: CI also runs the suite in the strict
    mode of JAX.
    """
    import jax  # after the flags

    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def optimised():
    """For tests of what is compiled: programs are optimised as users' are."""
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(autouse=True, scope="module")
def one_context():
    """JAX writes each program in an MLIR context of its own, and makes that with all
    dialects: for small programs it takes longer than all the rest. Here those of a file
    share one, as long as JAX has this function.
    """
    import jax  # noqa: F401

    mlir = sys.modules.get("jax._src.interpreters.mlir")
    with pytest.MonkeyPatch.context() as patch:
        if QUICK and hasattr(mlir, "make_ir_context"):
            make = functools.cache(mlir.make_ir_context)
            patch.setattr(mlir, "make_ir_context", make)
        yield


_tests = 0


@pytest.fixture(autouse=True, scope="module")
def small(request):
    """A worker stays small: what JAX keeps of one file is hardly used by another."""
    global _tests
    yield
    _tests += sum(item.module is request.module for item in request.session.items)
    if _tests < 150:
        return  # each time takes a second
    _tests = 0
    import jax

    import peex as px

    px.clear_caches()
    jax.clear_caches()
    gc.collect()
