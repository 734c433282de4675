"""`cond` and `switch`: the union of the sites of the branches."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from ... import _compat
from ..merging import empty
from ..messages import Ask, Axes
from ..reading import of_jaxpr
from ..rule import (
    AbstractRunner,
    Arrays,
    Body,
    Outcome,
    Params,
    register,
    Rule,
)
from ..signature import join, Signature, TapSpec
from ..values import strong, zeros
from .bind import bind_cond


@dataclasses.dataclass(frozen=True)
class Union:
    """What the branches tap and ask for. The n-th calls of a site in each are one
    entry, if they are alike.

    - `tap_places`, `ask_places`: for each branch, where in the union its own are.
    """

    taps: tuple[TapSpec, ...]
    asks: tuple[Ask, ...]
    tap_places: tuple[tuple[int, ...], ...]
    ask_places: tuple[tuple[int, ...], ...]


def union(branches: Sequence[Signature]) -> Union:
    """What comes out of a `cond` with these branches."""
    tap_keys = [_numbered([_alike(t) for t in b.taps]) for b in branches]
    ask_keys = [_numbered(b.asks) for b in branches]
    taps: dict[Any, list[TapSpec]] = {}
    for branch, keys in zip(branches, tap_keys, strict=True):
        for spec, key in zip(branch.taps, keys, strict=True):
            taps.setdefault(key, []).append(spec)
    asks = {key: key[0] for keys in ask_keys for key in keys}
    specs = []
    for found in taps.values():
        always = len(found) == len(branches) and not any(t.info.counted for t in found)
        info = dataclasses.replace(found[0].info, counted=False)
        spec = TapSpec(info, found[0].log_shapes)
        specs.append(spec if always or info.merges else counted(spec))
    return Union(
        tuple(specs),
        tuple(asks.values()),
        tuple(tuple(list(taps).index(k) for k in keys) for keys in tap_keys),
        tuple(tuple(list(asks).index(k) for k in keys) for keys in ask_keys),
    )


def _numbered(keys: Sequence[Any]) -> list[tuple[Any, int]]:
    """Each key, with how often it came before."""
    seen: dict[Any, int] = {}
    numbered = []
    for key in keys:
        seen[key] = seen.get(key, -1) + 1
        numbered.append((key, seen[key]))
    return numbered


def _alike(spec: TapSpec) -> Any:
    shapes = tuple((s.shape, s.dtype) for s in spec.log_shapes)
    return spec.info.site, spec.info.treedef, spec.info.axes, shapes


def counted(spec: TapSpec) -> TapSpec:
    """A tap that says how often it ran."""
    if spec.info.counted:
        return spec
    info = dataclasses.replace(spec.info, counted=True)
    return TapSpec(info, (*spec.shapes, _count_shape(info.axes)))


def _count_shape(axes: Axes) -> Any:
    return _compat.ShapedArray(axes.count_shape, jnp.dtype("int32"))


def _of_none(spec: TapSpec) -> list[Any]:
    """What is logged where the branch isn't taken."""
    return empty(spec) if spec.info.merges else [zeros(s) for s in spec.shapes]


def _signature(params: Params, operands: Sequence[Any]) -> Signature:
    branches = [of_jaxpr(b).at_place(i) for i, b in enumerate(params["branches"])]
    whole, one_after_the_other = union(branches), join(branches)
    return dataclasses.replace(one_after_the_other, taps=whole.taps, asks=whole.asks)


def _bodies(params: Params, operands: Sequence[Any]) -> list[Body]:
    return [Body(branch, range(1, len(operands))) for branch in params["branches"]]


def _run(
    params: Params, args: Sequence[Any], arrays: Arrays, runner: AbstractRunner
) -> Outcome:
    index, *operands = args
    signatures = [runner.inside(b) for b in params["branches"]]
    whole = union(signatures)
    varying = _compat.varying(s for b in signatures for t in b.taps for s in t.shapes)

    def branch(jaxpr: Any, tap_places: Any, ask_places: Any) -> Any:
        def run(operands: Any, arrays: Arrays) -> Outcome:
            mine = Arrays([arrays.slots[i] for i in ask_places], arrays.shared)
            outs, found = runner.run(jaxpr, operands, mine)
            logs = [_of_none(spec) for spec in whole.taps]
            for place, xs in zip(tap_places, found, strict=True):
                missing = logs[place][len(xs) :]  # a count
                logs[place] = [*xs, *(jnp.ones_like(count) for count in missing)]
            return outs, _compat.as_varying(strong(logs), varying)

        return run

    places = zip(params["branches"], whole.tap_places, whole.ask_places, strict=True)
    branches = [branch(*b) for b in places]
    outs, logs = bind_cond(params, index, branches, operands, arrays)
    return outs, logs


register(
    _compat.cond_p, Rule(_signature, _bodies, _run, sees_into=True, exclusive=True)
)
