"""Hooks that are given data for each call, step and example of a site.

Such a hook has two halves. At the top of the call, where a site's log would be, it
makes data of the site's whole shape: with the device, step and batch axes. At the site
it is given the slice of that data that belongs to this step and example; the engine
cuts it, as it stacks logs.
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PyTree

from .._engine.messages import Axes, Datum
from .._engine.site import Site
from .._engine.values import zeros
from .masks import broadcast


class AbstractLocal(eqx.Module):
    """The half of a step hook that is at the site."""

    @abc.abstractmethod
    def wants(self, value: Sequence[jax.ShapeDtypeStruct], site: Site) -> PyTree[Datum]:
        """What it wants for one step of one example, from the arrays of the value: none
        at all if it acts without.
        """

    @abc.abstractmethod
    def __call__(self, value: PyTree[Array], data: Any, site: Site) -> PyTree[Any]:
        """The hook (or log), with what it wants for this step and example."""


class Plain(AbstractLocal):
    """A hook without data."""

    hook: Any

    def wants(self, value: Sequence[jax.ShapeDtypeStruct], site: Site) -> PyTree[Datum]:
        return ()

    def __call__(self, value: PyTree[Array], data: Any, site: Site) -> PyTree[Any]:
        return self.hook(value)


@dataclasses.dataclass(frozen=True)
class SiteCall:
    """One call of one site.

    - `key`: of the call, as in a log.
    - `number`: which call of the site it is.
    - `axes`: those that its log has gained.
    - `logged`: the arrays of its value, with these axes in front.
    - `seen`: the same as the hook sees them (see `View`).
    - `differentiated`: whether the model takes derivatives there.
    - `matched`: the patterns of masks by key that chose one of the calls of this run.
    """

    key: str
    number: int
    axes: Axes
    logged: tuple[jax.ShapeDtypeStruct, ...]
    seen: tuple[jax.ShapeDtypeStruct, ...]
    differentiated: bool
    matched: set[str]


class AbstractStepHook(eqx.Module):
    """A hook with data for each call, step and example of a site."""

    @property
    @abc.abstractmethod
    def local_half(self) -> AbstractLocal:
        """The half at the site."""

    @property
    def log_half(self) -> AbstractLocal:
        """The half at the site of what says where a log acts.

        **Raises:** `TypeError` if it says what a hook does.
        """
        name = type(self).__name__
        raise TypeError(
            f"`log_fn` was given a {name}, which changes values and records nothing. "
            f"Write `hook_fn={name}(...)`; what is recorded at some steps only is "
            "`log_fn=px.AtStep(px.NormLog(), [0, 2])`."
        )

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns over keys that its masks have."""
        return ()

    @abc.abstractmethod
    def data_of_call(self, call: SiteCall, wanted: PyTree[jax.ShapeDtypeStruct]) -> Any:
        """The data of one call of one site: of the structure that the half at the site
        wants, arrays of these shapes, which have the axes of the call in front (no
        batch axes where the half wants none).
        """


def local_of(hook: Any) -> AbstractLocal:
    """The half of any hook that is at the site."""
    return hook.local_half if isinstance(hook, AbstractStepHook) else Plain(hook)


def data_for(hook: Any, call: SiteCall, wanted: Any) -> Any:
    """The data of one call for any hook."""
    if isinstance(hook, AbstractStepHook):
        return hook.data_of_call(call, wanted)
    return ()


def nothing(wanted: jax.ShapeDtypeStruct) -> Any:
    """What is given for a call that a hook isn't for. Bools are NumPy's, whose values
    are known while tracing.
    """
    if wanted.dtype == bool:
        return broadcast(np.asarray(False), wanted.shape)
    return zeros(wanted)


def patterns_of(hook: Any) -> tuple[str, ...]:
    """The patterns over keys of the masks in any hook."""
    return hook.patterns if isinstance(hook, AbstractStepHook) else ()
