"""A log over several devices is returned and written outside, as docs/performance.md
does it: what is in the files is the log without a mesh.
"""

import pathlib
import re

import equinox as eqx
import jax
import numpy as np
import pytest
from closeness import assert_close
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import peex as px


PAGE = pathlib.Path(__file__).parents[2] / "docs" / "performance.md"
XS = jax.random.normal(jax.random.key(0), (8, 2))
LINEAR = eqx.nn.Linear(2, 2, key=jax.random.key(1))
HOOKED = eqx.filter_jit(px.ForwardHook(LINEAR, method=lambda m, xs: jax.vmap(m)(xs)))


@pytest.mark.parametrize(
    "kind", [AxisType.Auto, AxisType.Explicit], ids=lambda k: k.name
)
def test_of_a_vmap_over_a_mesh(kind, tmp_path):
    _, expected = HOOKED(XS)
    mesh = jax.make_mesh((2, 2), ("d", "copies"), axis_types=(kind,) * 2)
    with jax.set_mesh(mesh):
        _, log = HOOKED(jax.device_put(XS, NamedSharding(mesh, P("d"))))
    array = log["."]
    assert len(array.addressable_shards) == 4
    (code,) = re.findall(r"^(def write_parts.*?)\n\n\n", PAGE.read_text(), re.M | re.S)
    namespace = {"np": np}
    exec(code, namespace)
    namespace["write_parts"](tmp_path / "x.npy", array)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), array)
    log.save(tmp_path / "x.safetensors")
    found = px.Log.load(tmp_path / "x.safetensors")
    np.testing.assert_array_equal(found["."], array)
    assert_close(dict(found), dict(expected))  # another program may round otherwise
