"""Several hooks at one site."""

from collections.abc import Sequence
from typing import Any

import jax
from jaxtyping import Array, ArrayLike, PyTree

from .._engine.messages import Datum
from .._engine.site import Site
from .callables import refuse_class
from .step_hooks import (
    AbstractLocal,
    AbstractStepHook,
    data_for,
    local_of,
    patterns_of,
    SiteCall,
)


class _Chain(AbstractLocal):
    hooks: tuple[AbstractLocal, ...]

    def wants(self, value: Sequence[jax.ShapeDtypeStruct], site: Site) -> PyTree[Datum]:
        return tuple(hook.wants(value, site) for hook in self.hooks)

    def __call__(self, value: PyTree[Array], data: Any, site: Site) -> PyTree[Any]:
        for hook, mine in zip(self.hooks, data, strict=True):
            value = hook(value, mine, site)
        return value


class Chain(AbstractStepHook):
    """Applies several hooks, one after the other: `Chain(f, g)` is `x -> g(f(x))`.

    Arrays in the hooks are leaves of the wrapper, as those of a single hook are.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        linear = eqx.nn.Linear(2, 2, key=jax.random.key(0))
        steer = px.Chain(px.AddHook(jnp.ones(2)), jax.nn.relu)
        out, _ = px.ForwardHook(linear, hook_fn=steer)(jnp.ones(2))
        # relu(linear(x) + 1)
        ```
    """

    hooks: tuple[Any, ...]

    def __init__(self, *hooks: Any):
        """**Arguments:**

        - `hooks`: an [`peex.AbstractHook`][], any callable, one with data for each step
            (as [`peex.PatchHook`][] or [`peex.At`][] are), or `None` for nothing, in
            the order in which they act.

        **Raises:**

        `TypeError` for what can't be called.
        """
        for i, hook in enumerate(hooks):
            refuse_class(f"Hook {i} of a Chain", hook)
            known = hook is None or isinstance(hook, AbstractStepHook)
            if not (known or callable(hook)):
                raise TypeError(
                    f"Hook {i} of a Chain is {hook!r}, which can't be called. Write "
                    "`px.Chain(px.ScaleHook(2.0), jax.nn.relu)`."
                )
        self.hooks = hooks

    @property
    def _acting(self) -> tuple[Any, ...]:
        return tuple(hook for hook in self.hooks if hook is not None)

    @property
    def local_half(self) -> AbstractLocal:
        return _Chain(tuple(map(local_of, self._acting)))

    @property
    def patterns(self) -> tuple[str, ...]:
        return tuple(p for hook in self._acting for p in patterns_of(hook))

    def data_of_call(self, call: SiteCall, wanted: Any) -> Any:
        pairs = zip(self._acting, wanted, strict=True)
        return tuple(data_for(hook, call, each) for hook, each in pairs)

    def __call__(self, value: PyTree[ArrayLike]) -> PyTree[ArrayLike]:
        """Applies the hooks to a value, if none of them needs data."""
        for hook in self._acting:
            if isinstance(hook, AbstractStepHook) and not isinstance(hook, Chain):
                raise TypeError(
                    f"A {type(hook).__name__} in a Chain has data for each step and "
                    "example, which it is given at a site only. Write "
                    "`px.ForwardHook(model, chain)`."
                )
            value = hook(value)
        return value
