"""Hooks and logs that aren't run where they don't act: that is a `cond` on one bool for
each step of the loops around a site, without batch axes.
"""

import abc
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jaxtyping import Array, PyTree

from .. import _compat
from .._engine.apply import checked, log_leaves
from .._engine.messages import Datum
from .._engine.site import Site
from .._engine.values import zeros
from .accumulators import accumulator_of, Summed
from .call_hooks import AbstractCallHook
from .callables import refuse_class
from .masks import broadcast, is_known
from .step_hooks import (
    AbstractLocal,
    AbstractStepHook,
    data_for,
    local_of,
    nothing,
    patterns_of,
    SiteCall,
)


_BOOL = jax.ShapeDtypeStruct((), jnp.dtype(bool))
# Whether something acts, at a step.
FLAG = Datum(_BOOL, per_example=False)


class OnlyIf(AbstractLocal):
    """A hook that is run where the first of its data says so."""

    hook: AbstractLocal

    def wants(self, value: Sequence[jax.ShapeDtypeStruct], site: Site) -> PyTree[Datum]:
        return FLAG, self.hook.wants(value, site)

    def __call__(self, value: PyTree[Array], data: Any, site: Site) -> PyTree[Any]:
        acts, inner = data
        leaves, structure = jtu.tree_flatten(value)

        def act(leaves: list[Any]) -> list[Any]:
            new = self.hook(structure.unflatten(leaves), inner, site)
            return checked(site, leaves, structure, new)

        if is_known(acts):
            return structure.unflatten(act(leaves)) if acts else value
        run = lambda acts, leaves: lax.cond(acts, act, lambda xs: xs, leaves)
        # A `cond` keeps what its derivative needs for each step: at each, room for what
        # is made of the hook's arrays. Rather, it runs once more in the backward pass.
        run = jax.checkpoint(run, prevent_cse=False)
        return structure.unflatten(run(acts, leaves))


class LogIf(AbstractLocal):
    """A log that is run where the first of its data says so; elsewhere, zeros (of an
    accumulator, what changes nothing).
    """

    hook: Any
    masked: bool = eqx.field(static=True)

    def wants(self, value: Sequence[jax.ShapeDtypeStruct], site: Site) -> PyTree[Datum]:
        return (FLAG, ((Datum(_BOOL),), ())) if self.masked else (FLAG, ())

    def __call__(self, value: PyTree[Array], data: Any, site: Site) -> PyTree[Any]:
        acts, inner = data
        structure = None

        def log(value: Any) -> list[Any]:
            nonlocal structure
            leaves, structure = log_leaves(site, self.hook(value))
            return leaves

        def none(value: Any) -> list[Any]:
            return self._nothing(jax.eval_shape(log, value), structure)

        if is_known(acts):
            logged = log(value) if acts else none(value)
        else:
            logged = lax.cond(acts, log, none, value)
        if self.masked:
            ((chosen,), _) = inner
            nothing = self._nothing([*map(jax.typeof, logged)], structure)
            pairs = zip(logged, nothing, strict=True)
            logged = [jnp.where(chosen, *pair) for pair in pairs]
        assert structure is not None
        return structure.unflatten(logged)

    def _nothing(self, logged: Sequence[Any], structure: Any) -> list[Any]:
        """What is recorded where it doesn't act."""
        accumulator = accumulator_of(self.hook)
        if accumulator is None:
            return [zeros(x) for x in logged]
        like = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in logged]
        empty = jtu.tree_leaves(accumulator.empty(structure.unflatten(like)))
        pairs = zip(empty, logged, strict=True)
        return [_compat.typed_as(*pair) for pair in pairs]


def of_sums(log: Any) -> Any:
    """What of an accumulator (at some places only, perhaps) is in a backward log."""
    if isinstance(log, LogIf):
        return LogIf(Summed(log.hook), log.masked)
    return Summed(log)


class AbstractSomewhere(AbstractStepHook):
    """What acts at some places only."""

    hook: eqx.AbstractVar[Any]

    @property
    def patterns(self) -> tuple[str, ...]:
        return patterns_of(self.hook)


class AbstractCallIf(AbstractLocal):
    """What stands around a call where its data says so (see
    `_instrument/changed_call.py`).
    """

    @abc.abstractmethod
    def acting(self, data: Any) -> tuple[Any, AbstractCallHook]:
        """Whether it does, and what stands there."""

    def __call__(self, value: PyTree[Array], data: Any, site: Site) -> PyTree[Any]:
        raise NotImplementedError  # it is given no value


class CallIf(AbstractCallIf):
    """A hook that asks whether it stands around a call."""

    hook: AbstractCallHook

    def wants(self, value: Sequence[jax.ShapeDtypeStruct], site: Site) -> PyTree[Datum]:
        return FLAG

    def acting(self, data: Any) -> tuple[Any, AbstractCallHook]:
        return data, self.hook


class InCalls(AbstractSomewhere):
    """Applies a hook in the calls of its site that this is for, but for some. (What the
    others are given is zeros.)
    """

    hook: Any
    but: tuple[int, ...] = eqx.field(static=True)

    @property
    def local_half(self) -> AbstractLocal:
        if isinstance(self.hook, AbstractCallHook):
            return CallIf(self.hook)
        return OnlyIf(local_of(self.hook))

    def data_of_call(self, call: SiteCall, wanted: Any) -> Any:
        here = np.asarray(call.number not in self.but)
        if isinstance(self.hook, AbstractCallHook):
            return broadcast(here, wanted.shape)
        acts, inner = wanted
        if not here:
            return jtu.tree_map(nothing, wanted)
        return broadcast(here, acts.shape), data_for(self.hook, call, inner)


def check_hook(name: str, example: str, hook: Any) -> None:
    """**Raises:** `TypeError` for what can't act at some places."""
    refuse_class(f"The hook of an {name}", hook)
    if not (callable(hook) or isinstance(hook, AbstractStepHook)):
        raise TypeError(
            f"{name} was given a hook of type {type(hook).__name__}, which can't be "
            f"called with a value. Give it one hook, as in `{example}`: in a dict of "
            f"hooks, each has its own {name}."
        )
