"""Parameters side by side."""

from collections.abc import Mapping

import numpy as np

from .compared import ParameterRow
from .layouts import alike, error, Layouts, moved, tolerance
from .pairing import Pairing
from .sides import AbstractSide, Backward


def parameter_rows(
    a: AbstractSide,
    b: AbstractSide,
    pairing: Pairing,
    rtol: float | None,
    backward: tuple[Backward, Backward] | None,
) -> list[ParameterRow]:
    """Of all parameters, those of the model in its order, then what only the other has.
    None where a side has none, as a log.
    """
    if not a.parameters or not b.parameters:
        return []
    partner = _partners(a, b, pairing)
    layouts = Layouts()
    largest = _largest_gradients(a, backward[0]) if backward else {}
    rows = []
    for name, x in a.parameters.items():
        other = partner.get(name)
        if other is None:
            rows.append(ParameterRow(name, None, None, None, None, 0.0))
            continue
        y = b.parameters[other]
        best = layouts.best(x, y)
        layout, far = best if best is not None else (None, np.inf)
        gradient_error = None
        if backward is not None and layout is not None:
            grads = backward[0].gradients.get(name), backward[1].gradients.get(other)
            if grads[0] is not None and grads[1] is not None:
                mine = moved(grads[0], layout, grads[1].shape)
                gradient_error = error(mine, grads[1], largest.get(name))
        usual = tolerance(x.dtype.name, y.dtype.name)
        limit = usual if rtol is None else rtol
        rows.append(ParameterRow(name, other, layout, far, gradient_error, limit))
    taken = set(partner.values())
    left = (name for name in b.parameters if name not in taken)
    return rows + [ParameterRow(None, name, None, None, None, 0.0) for name in left]


def _partners(a: AbstractSide, b: AbstractSide, pairing: Pairing) -> dict[str, str]:
    """Within what belongs together: what is equal, has the same name, or is all that is
    left; then what is equal to nothing else.
    """
    found: dict[str, str] = {}
    taken: set[str] = set()

    def add(name: str, other: str) -> None:
        if name not in found and other not in taken:
            found[name] = other
            taken.add(other)

    equal = lambda x, y: y in pairing.same.others.get(x, ())
    named = lambda x, y: _last(x) == _last(y)
    fits = lambda x, y: alike(a.parameters[x].shape, b.parameters[y].shape)
    both = lambda x, y: equal(x, y) and named(x, y)
    for pair in pairing.pairs:
        mine, theirs = pair.model.parameters, pair.other.parameters
        for belong in (both, equal, named):
            for name in mine:
                for other in theirs:
                    if other not in taken and belong(name, other):
                        add(name, other)
        left = [name for name in mine if name not in found]
        others = [other for other in theirs if other not in taken]
        if len(left) == len(others) == 1 and fits(left[0], others[0]):
            add(left[0], others[0])
    for name, other in pairing.same.unique().items():
        add(name, other)
    return found


def _last(name: str) -> str:
    return name.partition("[")[0].rpartition(".")[2]


def _largest_gradients(side: AbstractSide, backward: Backward) -> Mapping[str, float]:
    """By parameter, the largest gradient in its module: what is next to nothing there
    may be rounding alone, as the gradient of a bias that changes no softmax.
    """
    found: dict[str, float] = {}
    for visit in side.visits:
        grads = [backward.gradients.get(name) for name in visit.parameters]
        sizes = [float(np.max(np.abs(g))) for g in grads if g is not None and g.size]
        for name in visit.parameters:
            found[name] = max(sizes, default=0.0)
    return found
