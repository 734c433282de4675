"""Canaries, as in `test_jax.py`: what JAX says of arrays on several devices."""

import jax
import jax.numpy as jnp

from peex import _compat


def test_what_varies_in_a_shard_map():
    assert _compat.manual_axes() == frozenset()
    axes = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((1,), ("d",), axis_types=axes)
    spec = jax.sharding.PartitionSpec("d")
    types = []

    def run(x):
        assert _compat.manual_axes() == {"d"}
        new = _compat.typed_as(jnp.ones(x.shape), jax.typeof(x))
        assert _compat.varying([jax.typeof(new)]) == {"d"}
        aval = jax.typeof(x)
        vary = frozenset({"d"})
        types.append(_compat.varying_array((3, 4), aval.dtype, vary, [aval]))
        return new

    jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec)(jnp.ones(2))
    assert types[0].shape == (3, 4)
    assert _compat.varying(types) == {"d"}


def test_explicit_shardings():
    plain = jax.typeof(jnp.ones((2, 3)))
    assert _compat.explicit_sharding(plain) is None
    assert _compat.with_axis(plain, 1, 4).shape == (2, 4, 3)
    axes = (jax.sharding.AxisType.Explicit,)
    mesh = jax.make_mesh((1,), ("d",), axis_types=axes)
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.ones((2, 3)), sharding)
        shape = _compat.plain_shape(jax.typeof(x))
        assert tuple(shape.sharding.spec) == ("d", None)
        more = _compat.with_axis(shape, 0, 4)
        assert (more.shape, tuple(more.sharding.spec)) == (
            (4, 2, 3),
            (None, "d", None),
        )
        new = _compat.typed_as(jnp.ones((2, 3)), jax.typeof(x))
        assert _compat.explicit_sharding(jax.typeof(new)) == shape.sharding
        assert _compat.explicit_sharding(jax.typeof(_compat.unsharded(x))) is None
        back = _compat.typed_as(new, jax.typeof(jnp.ones((2, 3))))
        assert _compat.explicit_sharding(jax.typeof(back)) is None
