"""An Equinox model as a side of a comparison."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._errors import SiteLostError
from .._hooks.from_log import PatchHook
from .._hooks.log_fns import IdentityLog
from .._log import Log
from .._report.report import report
from .._report.result import Call
from .._sites.keys import input_key, split_call
from .._sites.places import places
from .._sites.walk import is_function
from .._wrappers.forward import ForwardHook
from .._wrappers.value_and_grad import value_and_grad
from .entries import arrays_at, entries_of, Entry
from .own_parameters import OwnParameters
from .sides import AbstractSide, Arrays, Backward, Given, numeric, Replayed, Visit


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where in a log a visit is: its keys there, and the index of its step."""

    key: str
    given: str
    index: tuple[Any, ...]


class EquinoxSide(AbstractSide):
    """A model, run compiled."""

    def __init__(self, model: Any, args: tuple[Any, ...], fn: Callable[..., Any]):
        self.model, self.fn = model, fn
        self._args = args
        self.args = [np.asarray(x) for x in jtu.tree_leaves(args) if numeric(x)]
        where = ["**", *_functions(model)]
        seen = report(model, *args, where=where, method=fn)
        calls = {c.key: c for c in seen.entries.values() if not c.is_inside}
        self._sites = list(dict.fromkeys(call.site for call in calls.values()))
        out, self.log = self._recorded()
        self.outputs = arrays_at(out)
        self._own = OwnParameters(model, calls.values())
        self.parameters = self._own.arrays
        self._places: dict[Visit, _Place | None] = {}
        self.visits = []
        for entry in entries_of(self.log, [key for key in self.log if key in calls]):
            self._add(calls[entry.key], entry)
        if not any(visit.key == "." for visit in self.visits):
            name = getattr(fn, "__name__", type(fn).__name__)
            root = Visit(".", 0, (), name, False, self.outputs, self.args)
            self.visits.append(root)
            self._places[root] = None

    def _recorded(self) -> tuple[Any, Log]:
        """The output, and the log, without what turns out to be lost."""
        while True:
            where = [key for site in self._sites for key in (site, f"{site}:in")]
            hooked = ForwardHook(self.model, None, where=where or "**", method=self.fn)
            try:
                return _run(hooked, *self._args)
            except SiteLostError as error:
                self._leave_out(error)

    def _leave_out(self, error: SiteLostError) -> None:
        site = (error.key or "").removesuffix(":in")
        if site not in self._sites:
            raise error
        self._sites.remove(site)

    def _add(self, call: Call, entry: Entry) -> None:
        place = _Place(entry.key, input_key(call.site, call.number), entry.index)
        arrays = lambda key: arrays_at(self.log[key], place.index)
        leaf = not any(
            site != call.site and (call.site == "." or _is_inside(site, call.site))
            for site in self._sites
        )
        module, parameters = self._own.of(call.site, entry.steps, self._sites)
        visit = Visit(
            call.site,
            call.number,
            entry.steps,
            call.class_name,
            leaf,
            arrays(place.key),
            arrays(place.given) if place.given in self.log else None,
            module,
            parameters,
        )
        self.visits.append(visit)
        self._places[visit] = place

    def replay(self, given: Mapping[Visit, Given]) -> Mapping[Visit, Replayed]:
        patched = set(self._sites)
        while True:
            ins: dict[str, Any] = {}
            outs: dict[str, Any] = {}
            for visit, mine in given.items():
                place = self._places.get(visit)
                if place is None or visit.key not in patched:
                    continue
                if not _is_given(visit, mine.inputs):
                    self._put(ins, place.given, place.index, mine.inputs)
                self._put(outs, place.key, place.index, mine.outputs)
            try:
                return self._replayed(ins, outs)
            except SiteLostError as error:
                # As in a `while` loop, where nothing can be put in.
                site = (error.key or "").removesuffix(":in")
                if site not in patched:
                    raise
                patched.remove(site)

    def _put(
        self, into: dict[str, Any], key: str, index: tuple[Any, ...], arrays: Arrays
    ) -> None:
        if key not in self.log or all(x is None for x in arrays):
            return
        leaves, structure = jtu.tree_flatten(into.get(key, self.log[key]))
        for i, x in enumerate(arrays):
            if x is not None:
                if not isinstance(leaves[i], np.ndarray) or key not in into:
                    leaves[i] = np.array(leaves[i])
                leaves[i][index] = x
        into[key] = structure.unflatten(leaves)

    def _replayed(
        self, ins: dict[str, Any], outs: dict[str, Any]
    ) -> Mapping[Visit, Replayed]:
        inputs = [f"{site}:in" for site in self._sites]
        where = [*self._sites, *inputs]
        logs = {site: IdentityLog() for site in self._sites}
        hooks = self._patches(ins)
        inner = ForwardHook(self.model, hooks, logs, where=where, method=self.fn)
        logs = {key: IdentityLog() for key in inputs}
        # What is outside is told of an output last, and of arguments first.
        outer = ForwardHook(inner, self._patches(outs), logs, where=where, method=_call)
        (out, own), given = _run(outer, *self._args)
        found = {}
        for visit, place in self._places.items():
            if place is None:
                found[visit] = Replayed(None, arrays_at(out))
            elif place.key in own:
                known = place.given in given
                entry = arrays_at(given[place.given], place.index) if known else None
                found[visit] = Replayed(entry, arrays_at(own[place.key], place.index))
        return found

    def _patches(self, changed: Mapping[str, Any]) -> dict[str, PatchHook]:
        """For each site of which a call is changed, its values in all calls."""
        found: dict[str, dict[str, Any]] = {}
        sites = {split_call(key)[0] for key in changed}
        for key in self.log:
            site, _ = split_call(key)
            if site in sites:
                value = changed[key] if key in changed else self.log[key]
                found.setdefault(site, {})[key] = value
        return {site: PatchHook(Log(values)) for site, values in found.items()}

    def backward(self, weights: Arrays) -> Backward:
        numbers = [None if w is None else jnp.asarray(w) for w in weights]
        while True:
            logs = {site: IdentityLog() for site in self._sites}
            loss = _Weighted(self.fn)
            run = value_and_grad(loss, backward=logs or None, where=self._sites or None)
            try:
                (_, found), grads = _jitted(run, self.model, numbers, *self._args)
                break
            except SiteLostError as error:
                self._leave_out(error)
        cotangents: dict[Visit, Arrays] = {}
        for visit, place in self._places.items():
            if place is None:
                cotangents[visit] = weights
            elif place.key in found.backward:
                cotangents[visit] = arrays_at(found.backward[place.key], place.index)
        return Backward(cotangents, self._own.gradients(grads))


class _Weighted(eqx.Module):
    """The weighted sum of what a function returns."""

    fn: Callable[..., Any] = eqx.field(static=True)

    def __call__(self, model: Any, weights: Any, *args: Any) -> Any:
        out = self.fn(model, *args)
        total = jnp.zeros(())
        for x, w in zip(jtu.tree_leaves(out), weights, strict=False):
            if w is not None and eqx.is_inexact_array(x):
                part = jnp.sum(x * w.astype(x.dtype))
                total = total + jnp.real(part).astype(total.dtype)
        return total


def _is_given(visit: Visit, inputs: Arrays) -> bool:
    """Whether it is the whole model, and its arguments are these anyway."""
    if visit.key != "." or visit.steps or visit.number:
        return False
    pairs = zip(visit.inputs or (), inputs, strict=False)
    return all(y is None or (x is not None and np.array_equal(x, y)) for x, y in pairs)


def _functions(model: Any) -> list[str]:
    """The functions in fields, but for what a module stands for, as an
    `eqx.nn.Lambda`.
    """
    found = places(model, "__call__")
    leaves = [place.name for place in found if place.is_leaf]
    inside = lambda key: any(_is_inside(key, leaf) for leaf in leaves)
    return [p.name for p in found if is_function(p.node) and not inside(p.name)]


@eqx.filter_jit
def _run(hooked: Any, *args: Any) -> Any:
    return hooked(*args)


@eqx.filter_jit
def _jitted(run: Any, *args: Any) -> Any:
    return run(*args)


def _call(hooked: Any, *args: Any) -> Any:
    return hooked(*args)


def _is_inside(key: str, container: str) -> bool:
    return key.startswith(f"{container}.")


def cast(tree: Any, dtype: Any) -> Any:
    """All floating-point arrays of a pytree in another dtype."""
    floats = lambda x: eqx.is_array(x) and jnp.issubdtype(x.dtype, jnp.floating)
    wide = lambda x: jnp.asarray(np.asarray(x).astype(dtype)) if floats(x) else x
    return jax.tree.map(wide, tree)
