"""What JAX keeps of jitted functions, with probes and without."""

import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
from closeness import assert_close
from parts import Seq

import peex as px


X = jnp.array([[0.5, -2.0], [1.0, 0.3], [0.1, 0.2]])


def test_without_probes_jax_keeps_its_caches():
    code = """
import jax, equinox as eqx, jax.numpy as jnp, peex as px
traces = []
@jax.jit
def f(x):
    traces.append(1)
    return x + 1
class Model(eqx.Module):
    def __call__(self, x):
        return f(x)
f(1.0)
px.ForwardHook(Model())(1.0)
f(1.0)
assert len(traces) == 1, traces
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_model_without_probes_keeps_what_its_modules_share():
    code = """
import jax, equinox as eqx, jax.numpy as jnp, peex as px
traces = []
@jax.jit
def f(x):
    traces.append(1)
    return x + 1
class Part(eqx.Module):
    def __call__(self, x):
        return f(x)
class Model(eqx.Module):
    parts: list
    def __call__(self, x):
        for part in self.parts:
            x = part(x)
        return x
px.probe(1.0, "elsewhere")
for _ in range(2):
    px.ForwardHook(Model([Part(), Part(), Part()]))(jnp.ones(2))
assert len(traces) == 1, traces
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@jax.jit
def _probed(x):
    return px.probe(2 * x, "doubled")


class Doubling(eqx.Module):
    def __call__(self, x):
        return _probed(x)


def test_modules_that_share_a_jitted_function_with_a_probe():
    classes = [type("Fresh", (Seq,), {}) for _ in range(2)]
    for cls in (*classes, classes[0]):
        for jit in (False, True):
            hooked = px.ForwardHook(cls([Doubling(), Doubling()]))
            _, log = (eqx.filter_jit(hooked) if jit else hooked)(X)
            assert [k for k in log if "/" in k] == [
                "parts.0/doubled",
                "parts.1/doubled",
            ]
            assert_close(log["parts.1/doubled"], 4 * X)
