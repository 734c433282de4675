"""Runs the patched model at all places: some at a time, in one compiled program."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Int, PyTree

from .._errors import LogTooLargeError
from .._log import Log
from .._text import shown_bytes
from .._wrappers.budget import num_bytes
from .._wrappers.forward import ForwardHook
from .patched import patched
from .places import SweptSite
from .runs import measured
from .skipped import Skipped


def _patched(
    hooked: ForwardHook,
    source: Log,
    sites: tuple[SweptSite, ...],
    metric: Callable[[Any], Any],
    args: tuple[Any, ...],
    known: tuple[Skipped, Log] | None,
    chunk: Int[Array, " places"],
) -> PyTree[Array]:
    """The metric of runs that are patched at the places of one chunk."""
    if known is not None:
        skipped, calls = known
        hook = skipped.hook(calls, chunk)
        hooked = eqx.tree_at(lambda h: h.model.hook_fn, hooked, hook)

    def one(place: Int[Array, ""]) -> PyTree[Array]:
        masks = {site.key: site.mask(place) for site in sites}
        out, _ = patched(hooked, source, masks)(*args)
        return measured(metric, out if known is None else out[0])

    return jax.vmap(one)(chunk)


# Everything but the sites and the metric is traced: one program for all chunks, and for
# the next sweep.
_chunk: Any = eqx.filter_jit(_patched)


@dataclasses.dataclass(frozen=True)
class Program:
    """Runs of a model that is patched at the places of all sites.

    - `hooked`: a wrapper with a hook at these sites, whatever it is.
    - `source`: what is put in.
    - `args`: of the model, in the run into which it is put.
    - `known`: which calls may be skipped, and what that run has there. (Then `hooked`
        is around another wrapper, whose hook skips them.)
    """

    hooked: ForwardHook
    source: Log
    sites: tuple[SweptSite, ...]
    metric: Callable[[Any], Any]
    args: tuple[Any, ...]
    known: tuple[Skipped, Log] | None

    @property
    def size(self) -> int:
        return sum(site.size for site in self.sites)

    def _given(self, chunk: Any) -> tuple[Any, ...]:
        given = self.hooked, self.source, self.sites, self.metric, self.args
        return *given, self.known, chunk

    def run(self, batch_size: int, progress: bool) -> PyTree[Any]:
        """The metric at all places, along a new axis in front."""
        chunks = math.ceil(self.size / batch_size)
        order = np.arange(self.size, dtype=np.int32)
        if self.known is not None:
            order = self.known[0].order
        # Behind the last place is the last one again.
        numbers = np.pad(order, (0, chunks * batch_size - self.size), mode="edge")
        numbers = numbers.reshape(chunks, batch_size)
        made = []
        for chunk in _shown(numbers, progress):
            out = _chunk(*self._given(jnp.asarray(chunk)))
            # Waits, so that chunks don't pile up.
            made.append(out if _is_traced(out) else jax.device_get(out))
        of_place = np.argsort(order)
        return jtu.tree_map(lambda *xs: _joined(xs)[of_place], *made)

    def batch_size(self, most: int, max_bytes: int | None, metric: PyTree) -> int:
        """How many places are run at a time: at most so many, in chunks as equal as
        they can be, and as many as fit.

        **Raises:** `LogTooLargeError` if one at a time doesn't fit.
        """
        n = self.size
        sizes = sorted({math.ceil(n / c) for c in range(math.ceil(n / most), n + 1)})
        if max_bytes is None:
            return sizes[-1]
        effects = n * num_bytes(metric)
        fits = lambda i: sum(self._bytes(sizes[i])) + effects <= max_bytes
        if fits(len(sizes) - 1):
            return sizes[-1]
        if not fits(0):
            temporaries, outputs = self._bytes(1)
            total = temporaries + outputs + effects
            raise LogTooLargeError(
                f"A sweep of one place at a time would take {shown_bytes(total)}, "
                f"more than `max_bytes={max_bytes}`: {shown_bytes(temporaries)} for "
                f"what the model computes, {shown_bytes(outputs)} for the metric of "
                f"one run, and {shown_bytes(effects)} for that of all {n} places. "
                "Choose fewer sites with `where`, or a smaller metric."
            )
        low, high = 0, len(sizes) - 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return sizes[low]

    def _bytes(self, batch_size: int) -> tuple[int, int]:
        """What the program of a chunk takes: for temporaries, and for outputs."""
        chunk = jnp.zeros(batch_size, jnp.int32)
        compiled = _chunk.lower(*self._given(chunk)).compile()  # kept by JAX
        stats = compiled.compiled.memory_analysis()
        return stats.temp_size_in_bytes, stats.output_size_in_bytes


def _shown(chunks: np.ndarray, progress: bool) -> Iterable[Any]:
    """The chunks, with a progress bar if it is wanted, and tqdm is installed."""
    if not progress:
        return chunks
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return chunks
    # Nothing is shown of what takes less than a second.
    return tqdm(chunks, desc="sweep", unit="chunk", delay=1)


def _is_traced(tree: Any) -> bool:
    return any(isinstance(x, Tracer) for x in jtu.tree_leaves(tree))


def _joined(arrays: Sequence[Any]) -> Any:
    """NumPy's, where values are known: nothing is compiled for that."""
    return (jnp if _is_traced(arrays) else np).concatenate(arrays)
