"""Caches, which outlive a call: keyed weakly, and forgotten by one function."""

import weakref
from typing import Any


_caches: list[weakref.WeakKeyDictionary[Any, Any]] = []


def weak_cache() -> weakref.WeakKeyDictionary[Any, Any]:
    """A cache that keeps nothing alive."""
    cache: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
    _caches.append(cache)
    return cache


def clear_caches() -> None:
    """Forgets what earlier calls have found out about models and programs: which sites
    are in a program, what was compiled for eager calls, which of these may go direct.
    All of it is found again when it is needed, and nothing of it keeps a model alive.

    Call it before `jax.clear_caches()`, where memory is short.

    !!! Example

        ```python
        import jax
        import peex as px

        px.clear_caches()
        jax.clear_caches()
        ```
    """
    for cache in _caches:
        cache.clear()
