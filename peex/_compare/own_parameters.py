"""The arrays of a model as its calls see them: of a stack that is scanned, those of one
layer at each step.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np

from .._report.result import Call
from .._sites.keys import Key, split
from .._sites.places import places
from .._sites.walk import children
from .sides import index_text, numeric


# Which of the step axes of a call are the leading axes of its parameters.
_Sliced = tuple[int, ...]


class OwnParameters:
    """The arrays of a model by name, those of a stack split.

    - `arrays`: each by its path, with the index of the layer behind it.
    """

    def __init__(self, model: Any, calls: Iterable[Call]):
        self._whole = _by_path(model)
        nodes = {place.name: place.node for place in places(model, "__call__")}
        firsts = {call.site: call for call in reversed(list(calls))}
        self._sliced: dict[Key, tuple[_Sliced, tuple[int, ...]]] = {}
        # The innermost first: what is inside of a site is its own.
        for site in sorted(firsts, key=lambda site: -len(split(site))):
            call, node = firsts[site], nodes.get(site)
            axes = tuple(axis.size for axis in call.axes if axis.kind == "step")
            if node is None or not axes:
                continue
            mine = [p for p in self._under(split(site)) if p not in self._sliced]
            arrays = [self._whole[path] for path in mine]
            sliced = _how_sliced(node, call, axes, arrays) if mine else ()
            sizes = tuple(axes[i] for i in sliced)
            self._sliced |= {path: (sliced, sizes) for path in mine}
        self.arrays = dict(self._split(self._whole))

    def _under(self, key: Key) -> list[Key]:
        return [path for path in self._whole if path[: len(key)] == key]

    def _split(self, whole: dict[Key, Any]) -> Iterator[tuple[str, np.ndarray]]:
        for path, x in whole.items():
            _, sizes = self._sliced.get(path, ((), ()))
            for index in np.ndindex(*sizes):
                yield ".".join(path) + index_text(index), np.asarray(x)[index]

    def of(
        self, site: str, steps: tuple[int, ...], inner: Iterable[str] = ()
    ) -> tuple[Any, tuple[str, ...]]:
        """What tells the module of a call from others; and the names of its arrays, but
        for those of the sites inside.
        """
        key = split(site)
        if "*" in key and steps:  # layers that the forward pass stacks itself
            rest = iter(steps)
            key = tuple(str(next(rest, "*")) if k == "*" else k for k in key)
        others = [split(one) for one in inner if one != site]
        found: list[str] = []
        index: tuple[int, ...] = ()
        for path in self._under(key):
            if any(len(o) > len(key) and path[: len(o)] == o for o in others):
                continue
            sliced, _ = self._sliced.get(path, ((), ()))
            if all(i < len(steps) for i in sliced):
                index = tuple(steps[i] for i in sliced)
                found.append(".".join(path) + index_text(index))
        return (key, index), tuple(found)

    def gradients(self, grads: Any) -> dict[str, np.ndarray]:
        """Those of a gradient, by the same names."""
        return dict(self._split(_by_path(grads)))


def _by_path(tree: Any) -> dict[Key, Any]:
    found: dict[Key, Any] = {}

    def visit(key: Key, node: Any) -> None:
        if eqx.is_array(node):
            if numeric(node):
                found[key] = node
            return
        for k, child in children(key, node):
            visit(k, child)

    visit((), tree)
    return found


def _how_sliced(
    node: Any, call: Call, steps: tuple[int, ...], arrays: list[Any]
) -> _Sliced:
    """By which step axes the arrays of a module are cut before it is called."""
    every = tuple(range(len(steps)))
    candidates = [every, *((i,) for i in reversed(every))] if len(every) > 1 else [(0,)]
    fits = lambda axes: all(
        x.shape[: len(axes)] == tuple(steps[i] for i in axes) for x in arrays
    )
    candidates = [axes for axes in candidates if fits(axes)]
    for axes in candidates:
        if _returns(node, len(axes), call):
            return axes
    if _returns(node, 0, call) or not candidates:
        return ()
    return candidates[0]  # it can't be asked, as one that is given a key


def _returns(node: Any, num_axes: int, call: Call) -> bool:
    """Whether the module, its arrays without so many leading axes, returns what it did
    in the call.
    """
    if call.inputs is None:
        return False

    def shape(x: Any) -> Any:
        if not eqx.is_array(x):
            return x
        return jax.ShapeDtypeStruct(x.shape[num_axes:], x.dtype)

    args, kwargs = call.inputs
    shapes = lambda tree: [
        x.shape for x in jtu.tree_leaves(tree) if hasattr(x, "shape")
    ]
    with contextlib.suppress(Exception):  # whatever the module raises
        run = lambda module, args, kwargs: module(*args, **kwargs)
        out = eqx.filter_eval_shape(run, jax.tree.map(shape, node), args, kwargs)
        return shapes(out)[: len(shapes(call.outputs))] == shapes(call.outputs)
    return False
