"""Hooks and logs where a mask holds."""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, PyTree

from .._engine.apply import checked
from .._engine.messages import Datum
from .._engine.site import Site
from .._errors import LogShapeError
from .._sites.patterns import logged_matches
from .masks import (
    broadcast,
    fitted,
    holds_somewhere,
    is_mask,
    Mask,
    may_match,
    varied,
)
from .only_if import AbstractSomewhere, check_hook, LogIf, OnlyIf
from .step_hooks import (
    AbstractLocal,
    data_for,
    local_of,
    nothing,
    patterns_of,
    SiteCall,
)


class _Where(AbstractLocal):
    """A hook whose result is taken where a mask holds. `masks` are the shapes of the
    masks, by pattern (`None`: for all).
    """

    hook: AbstractLocal
    masks: tuple[tuple[str | None, tuple[int, ...]], ...] = eqx.field(static=True)

    def wants(self, value: Sequence[jax.ShapeDtypeStruct], site: Site) -> PyTree[Datum]:
        key = site.numbered(0)
        masks = [s for name, s in self.masks if name is None or may_match(name, key)]
        wanted = tuple(
            Datum(jax.ShapeDtypeStruct(varied(x.shape, masks), jnp.dtype(bool)))
            for x in value
        )
        return wanted, self.hook.wants(value, site)

    def __call__(self, value: PyTree[Array], data: Any, site: Site) -> PyTree[Any]:
        masks, inner = data
        old, structure = jtu.tree_flatten(value)
        new = checked(site, old, structure, self.hook(value, inner, site))
        pairs = zip(masks, new, old, strict=True)
        return structure.unflatten([jnp.where(*pair) for pair in pairs])


class At(AbstractSomewhere):
    """Applies a hook, or a log, where a mask holds: at some steps, examples, positions
    or units, in any combination. The mask is one over what is logged there, and may be
    traced, so that another one compiles nothing anew.

    A hook isn't run at steps of loops (layers of a scanned stack, too) at which the
    mask holds nowhere; elsewhere it is run, and what it returns is taken where the mask
    holds: in a gradient it must have a finite derivative at all of such a step. Of a
    log, zeros are recorded where the mask doesn't hold.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        linear = eqx.nn.Linear(2, 2, key=jax.random.key(0))
        run = lambda m, x: jax.lax.scan(lambda x, _: (m(x), None), x, length=5)[0]
        mask = jnp.zeros((5, 2), bool).at[3, 1].set(True)  # step 3, unit 1
        hook = px.At(px.ZeroHook(), mask)
        out, log = px.ForwardHook(linear, hook, method=run)(jnp.ones(2))
        log["."]  # shape (5, 2): zero at [3, 1]
        ```
    """

    hook: Any
    mask: Any
    names: tuple[str, ...] | None = eqx.field(static=True)

    def __init__(self, hook: Any, mask: Mask):
        """**Arguments:**

        - `hook`: anything that `hook_fn` may be (as a log: that `log_fn` may be), but a
            dict. Also one with data, as [`peex.PatchHook`][] has.
        - `mask`: a bool, or an array of bools that broadcasts to what is logged at the
            site by [`peex.IdentityLog`][] (device, step and batch axes, then those of
            the value). One with fewer axes is of the last, as NumPy's are; where it
            could be of the first as well, it is refused. Or a dict from patterns over
            keys (as `"cell#1"`) to such masks or `None`, for everywhere: the first that
            matches; where none does, nothing is done.

        Of a log, the mask mustn't vary over the axes of the value.

        **Raises:**

        `TypeError` for a hook that can't be called, or a mask of anything but bools.
        When it is called, [`peex.LogShapeError`][] if a mask doesn't fit,
        [`peex.SiteNotFiredError`][] for a pattern that chose nothing.
        """
        check_hook("At", "px.At(px.ZeroHook(), mask)", hook)
        by_pattern = mask if isinstance(mask, Mapping) else {"**": mask}
        for pattern, one in by_pattern.items():
            is_none = one is None and isinstance(mask, Mapping)
            if not (isinstance(pattern, str) and (is_none or is_mask(one))):
                shown = one if isinstance(pattern, str) else mask
                raise TypeError(
                    "The mask of an At is an array of bools, or a dict from patterns "
                    f"to these; got {shown!r}. Write `px.At(hook, x > 0)`, "
                    "`px.At(hook, {'cell': jnp.array([True, False])})`; of the numbers "
                    "of steps, `px.AtStep(hook, [0, 2])`."
                )
        self.hook = hook
        # Not as a dict, whose keys JAX sorts.
        self.names = tuple(by_pattern) if isinstance(mask, Mapping) else None
        self.mask = tuple(by_pattern.values()) if isinstance(mask, Mapping) else mask

    @property
    def _masks(self) -> list[tuple[str | None, Any]]:
        if self.names is None:
            return [(None, self.mask)]
        pairs = zip(self.names, self.mask, strict=True)
        return [(name, True if mask is None else mask) for name, mask in pairs]

    def _mask_of(self, call: SiteCall) -> Any:
        """The mask that a call is chosen by; `None` if it isn't."""
        for pattern, mask in self._masks:
            if pattern is None:
                return mask
            if logged_matches(pattern, call.key):
                call.matched.add(pattern)
                return mask
        return None

    @property
    def _is_masked(self) -> bool:
        """Whether any mask is more than one bool for all."""
        return any(jnp.shape(mask) != () for _, mask in self._masks)

    @property
    def patterns(self) -> tuple[str, ...]:
        return (*(self.names or ()), *patterns_of(self.hook))

    @property
    def local_half(self) -> AbstractLocal:
        local = local_of(self.hook)
        if self._is_masked:
            local = _Where(local, tuple((p, jnp.shape(m)) for p, m in self._masks))
        return OnlyIf(local)

    @property
    def log_half(self) -> AbstractLocal:
        return LogIf(self.hook, self._is_masked)

    def data_of_call(self, call: SiteCall, wanted: Any) -> Any:
        mask = self._mask_of(call)
        if mask is None:
            return jtu.tree_map(nothing, wanted)
        acts, inner = wanted
        masks = [fitted(call.key, mask, x) for x in call.seen]
        acts = holds_somewhere(masks, len(acts.shape), acts.shape)
        if not self._is_masked:
            return acts, data_for(self.hook, call, inner)
        shapes, inner = inner
        pairs = zip(masks, shapes, strict=False)  # a log has one, for all arrays
        num_axes = len(call.axes.shape)
        chosen = tuple(_cut(call.key, m, num_axes, shape) for m, shape in pairs)
        return acts, (chosen, data_for(self.hook, call, inner))


def _cut(key: str, mask: Any, num_axes: int, wanted: jax.ShapeDtypeStruct) -> Any:
    """A mask of this shape, which is `num_axes` axes and then some of the value."""
    if len(wanted.shape) < mask.ndim:
        if any(n != 1 for n in mask.shape[num_axes:]):
            raise LogShapeError(
                f"The mask of a log at the site {key!r}, of shape {mask.shape}, varies "
                "over the axes of the value, of which a log is as a whole. Write "
                f"`mask.any({tuple(range(num_axes, mask.ndim))}, keepdims=True)`, or "
                "cut the value in the log itself, as in `log_fn=lambda x: x[:2]`."
            )
        mask = mask.reshape(mask.shape[:num_axes])
    return broadcast(mask, wanted.shape)
