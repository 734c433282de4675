"""`px.probe`: values that the model's own code names.

Outside of hooks a probe is nothing at all. Inside of a hooked call it is a site, whose
key begins with that of the module whose method is running: where a probe may be a site,
every callable module tells its key while it runs.
"""

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from .._engine.active_calls import Acting, active_listeners, this_thread
from .._engine.at_site import at_site
from .._engine.site import Site


Value = TypeVar("Value")


def probe(x: Value, name: str) -> Value:
    """Names a value in the code of a model, so that hooks can be put there. Outside of
    hooked calls it is the identity and leaves no trace: the compiled program is the
    same with and without.

    In a hooked call it is a site. Its key is that of the module whose method is
    running, and the name behind it: `"attn/probs"`. It is a site by default (with
    `where=None`), and with an explicit `where` if a pattern names it, as `"attn/probs"`
    or `"**/probs"` does. A further probe of the same name in one call of the module is
    `"attn/probs#1"`; in a further call of the module it is `"attn#1/probs"`.

    In a hook or log function it is a value of the site that this acts at:
    `"layers.2/latents"` for one at `"layers.2"`. The wrapper's own hook doesn't act on
    it; in a hook, the wrapper's log records it (by the pattern of a dict, if that has
    one), in a log, the value itself is recorded. Those of functions that act on
    cotangents are the identity.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        class Attention(eqx.Module):
            query: jax.Array

            def __call__(self, keys, values):
                probs = px.probe(jax.nn.softmax(keys @ self.query), "probs")
                return probs @ values

        model = Attention(jnp.ones(2))
        _, log = px.ForwardHook(model)(jnp.ones((3, 2)), jnp.ones((3, 2)))
        log["./probs"]  # shape (3,); the model itself has the key "."
        ```

    **Arguments:**

    - `x`: any pytree; its arrays are what hooks see.
    - `name`: what to call it: any string without a `#`.

    **Returns:**

    `x`, or what a hook makes of it.

    **Raises:**

    `TypeError` for another name.
    """
    if not isinstance(name, str) or not name or "#" in name:
        raise TypeError(
            f"The name of a probe is a string without '#', which counts calls; got "
            f"{name!r}. Write `px.probe(x, 'probs')`."
        )
    _jit_caches.probes = True
    for collector in reversed(active_listeners()):
        if collector.probes is not None:
            x = collector.probes.meet(x, name)
    return x


@dataclasses.dataclass
class Probes(contextlib.AbstractContextManager[Any]):
    """What a hooked call does at probes.

    - `wanted`: whether a name may be that of a site.
    - `site`: the site, from the key of the module that runs, the name, and which one of
        its name it is in a call of the module; `None` if it isn't chosen.
    - `listens`: whether any probe may be a site.
    - `owner`: the class of the model; `None` where a function is run.
    - `own`: the site of a probe in a hook or log of the wrapper itself, which is the
        one at this `depth`.
    - `silent`: whether what has this key is no module of its own to probes, as a method
        that is only looked at.
    """

    wanted: Callable[[str], bool]
    site: Callable[[str, str, int], Site | None]
    listens: bool = True
    owner: type | None = None
    own: Callable[[Acting, str, int], Site | None] = lambda *probe: None
    depth: int | None = None
    silent: Callable[[str], bool] = lambda key: False

    def __post_init__(self) -> None:
        # Whether each module has caches of its own (see `_JitCaches`). Until a probe is
        # met in a call of a model of this class, none is in what these calls share.
        self.apart = self.owner is None or self.owner in _with_probes
        # The modules whose methods are running, with the probes that each had.
        self.running: list[tuple[str, dict[str, int]]] = [(".", {})]
        self.met: dict[str, Site] = {}

    def saved(self) -> Callable[[], None]:
        """What makes it forget the probes that it meets from now on."""
        running = [(key, dict(counts)) for key, counts in self.running]
        met = dict(self.met)

        def undo() -> None:
            self.running = [(key, dict(counts)) for key, counts in running]
            self.met = dict(met)

        return undo

    def within(self, key: str) -> contextlib.AbstractContextManager[Any]:
        """From now on, a method of the module with this key runs; until what is
        returned is exited.
        """
        if self.silent(key):
            self.running.append(self.running[-1])
            return self
        self.running.append((key, {}))
        if self.apart and _jit_caches.probes:
            return _WithCaches(self, _jit_caches.at(key))
        return self

    def __exit__(self, *error: Any) -> None:
        self.running.pop()

    def caches(self) -> contextlib.AbstractContextManager[Any]:
        """The caches of JAX for such calls."""
        return _jit_caches.at("peex", 0 if self.owner is None else id(self.owner))

    def meet(self, x: Any, name: str) -> Any:
        if self.owner is not None:
            self.apart = True
            _with_probes.add(self.owner)
        acting = this_thread.acting[-1] if this_thread.acting else None
        if acting is not None and acting.site.depth == self.depth:
            site = self.own(acting, name, _count(acting.counts, (self.depth, name)))
        elif self.listens and self.wanted(name):
            if acting is not None:
                key = acting.site.module
                number = _count(acting.counts, (self.depth, name))
            else:
                key, counts = self.running[-1]
                number = _count(counts, name)
            site = self.site(key, name, number)
        else:
            return x
        if site is None:
            return x
        self.met[site.key] = site
        return at_site(site, x)


def _count(counts: dict[Any, int], name: Any) -> int:
    """How often this was counted before."""
    counts[name] = counts.get(name, -1) + 1
    return counts[name]


# The classes of models in whose calls a probe was met.
_with_probes: weakref.WeakSet[type] = weakref.WeakSet()


class _WithCaches(contextlib.AbstractContextManager[None]):
    def __init__(self, probes: Probes, caches: Any):
        self._probes, self._caches = probes, caches
        caches.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._caches.__exit__(*error)
        self._probes.__exit__(*error)


class _JitCaches:
    """A function that JAX has traced and cached doesn't run again: outside of hooks its
    probes are gone, and inside they have the key of the module that called it first. So
    where there are probes, hooked calls have caches of their own, by the class of the
    model; and where that has probes, each module has.

    - `probes`: whether this process has any.
    """

    def __init__(self) -> None:
        self.probes = False
        self._context: Any = None
        self._lock = threading.Lock()

    def at(self, *places: Any) -> contextlib.AbstractContextManager[Any]:
        return self.always_at(*places) if self.probes else contextlib.nullcontext()

    def always_at(self, *places: Any) -> contextlib.AbstractContextManager[Any]:
        with self._lock:
            # Not before it is needed: it makes JAX trace everything once more.
            if self._context is None:
                self._context = jax.make_user_context(())
        return self._context((*self._context.value, *places))


_jit_caches = _JitCaches()
own_caches = _jit_caches.at
private_caches = _jit_caches.always_at
