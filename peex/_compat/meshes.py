"""Arrays on meshes: what their types say of how they are sharded, and over which mesh
axes they vary. As `_compat/jax.py`, of which this is a part.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.core as jax_core


ShapedArray = jax_core.ShapedArray


def varying(avals: Iterable[Any]) -> frozenset[str]:
    """The mesh axes that any of these vary over, inside of a `shard_map` that checks
    that (`check_vma`).
    """
    types = (getattr(a, "manual_axis_type", None) for a in avals)
    return frozenset().union(*(t.varying for t in types if t is not None))


def varying_array(
    shape: Any, dtype: Any, axes: frozenset[str], others: Sequence[Any]
) -> ShapedArray:
    """What is known of an array that varies over these mesh axes, as some of `others`
    do.
    """
    if not axes:
        return ShapedArray(shape, dtype)
    like = next(x for x in others if varying([x]))
    return like.update(
        shape=shape,
        dtype=dtype,
        weak_type=False,
        sharding=like.sharding.update(spec=jax.sharding.PartitionSpec()),
        manual_axis_type=type(like.manual_axis_type)(varying=axes),
    )


def manual_axes() -> frozenset[str]:
    """The mesh axes of the `shard_map`s that this is inside of."""
    return frozenset(jax.sharding.get_abstract_mesh().manual_axes)


def as_varying(tree: Any, axes: frozenset[str]) -> Any:
    """Arrays declared to vary over at least these mesh axes."""

    def one(x: Any) -> Any:
        missing = axes - varying([jax.typeof(x)])
        return jax.lax.pcast(x, tuple(missing), to="varying") if missing else x

    return jax.tree.map(one, tree) if axes else tree


def explicit_sharding(shape: Any) -> Any | None:
    """The sharding that is part of the type of an array, if there is one (on a mesh
    with axes of the type `Explicit`).
    """
    sharding = getattr(shape, "sharding", None)
    spec = getattr(sharding, "spec", ())
    return sharding if any(axis is not None for axis in spec) else None


def plain_shape(shape: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of an array, and its sharding where that is explicit."""
    sharding = explicit_sharding(shape)
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)


def with_axis(shape: Any, place: int, size: Any, mesh_axis: Any = None) -> Any:
    """What is known of an array, with one more axis (along a mesh axis, or none)."""
    new: dict[str, Any] = {"shape": (*shape.shape[:place], size, *shape.shape[place:])}
    sharding = explicit_sharding(shape)
    if sharding is None and mesh_axis is not None:
        mesh = jax.sharding.get_abstract_mesh()
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    if sharding is not None:
        spec = (*sharding.spec, *[None] * (len(shape.shape) - len(sharding.spec)))
        spec = jax.sharding.PartitionSpec(*spec[:place], mesh_axis, *spec[place:])
        new["sharding"] = sharding.update(spec=spec)
    return shape.update(**new)


def typed_as(x: Any, shape: Any) -> Any:
    """An array that varies over the mesh axes that another one does, and is sharded as
    it, as far as these are parts of types.
    """
    x = as_varying(x, varying([shape]))
    mine, sharding = (explicit_sharding(s) for s in (jax.typeof(x), shape))
    if mine == sharding:
        return x
    if sharding is None:
        mesh_sharding: Any = mine
        sharding = mesh_sharding.update(spec=jax.sharding.PartitionSpec())
    return jax.sharding.reshard(x, sharding)


def unsharded(x: Any) -> Any:
    """An array that is on all devices alike, where that is part of its type."""
    shape = jax.typeof(x)
    return typed_as(x, jax.ShapeDtypeStruct(shape.shape, shape.dtype))


def split_over(x: Any, mesh: Any, axes: Sequence[str]) -> Any:
    """An array with its first axis sharded over these mesh axes, where shardings are
    part of its type.
    """
    explicit = jax.sharding.AxisType.Explicit
    if jax.sharding.get_abstract_mesh().empty or explicit not in mesh.axis_types:
        return x
    spec = jax.sharding.PartitionSpec(tuple(axes))
    return jax.sharding.reshard(x, jax.sharding.NamedSharding(mesh, spec))
