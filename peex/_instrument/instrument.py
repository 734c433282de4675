"""Putting the sites of a run into a whole model.

What has no site inside is handed on as the very object. What has one is copied, dicts
in their own order: JAX, which puts them together by sorted keys, isn't asked.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.tree_util as jtu

from .._sites.walk import AbstractWrapper, children, field_names, parts_of
from .classes import of_function, of_module, SitesByMethod


# From the key of a module to its sites.
Sites = Mapping[str, SitesByMethod]
# From a part of a model to the same with its sites put in.
Step = Callable[[Any], Any]


def instrument(model: Any, sites: Sites) -> Any:
    """The model with these sites put in."""
    return _step(model, sites)(model)


def _step(model: Any, sites: Sites) -> Step:
    """What puts these sites into any model of the structure of this one."""

    def visit(key: tuple[str, ...], node: Any) -> Step | None:
        parts = children(key, node)
        visited = [visit(*part) for part in parts]
        # What stands for another has passed its key on, and isn't the site.
        stands = any(k == key for k, _ in parts)
        mine = None if stands else sites.get(".".join(key) or ".")
        if mine is None and not any(visited):
            return None
        if stands:
            return _in_wrapper(node, _in_parts(visited))
        if isinstance(node, eqx.Module):
            names = field_names(node)
            steps = zip(names, visited, strict=True)
            return of_module(node, mine, {n: step for n, step in steps if step})
        return _in_parts(visited) if mine is None else of_function(node, mine)

    return visit((), model) or (lambda model: model)


def _in_parts(steps: Sequence[Step | None]) -> Step:
    inside = [(i, step) for i, step in enumerate(steps) if step is not None]

    def step(node: Any) -> Any:
        parts, rebuild = parts_of(node)
        for i, part in inside:
            parts[i] = part(parts[i])
        return rebuild(parts)

    return step


def _in_wrapper(node: Any, step: Step) -> Step:
    """In what stands for a module. Equinox makes its wrappers slowly; and it takes what
    they wrap apart when they are made, so no order is lost by what JAX does at once.
    """
    if not isinstance(node, AbstractWrapper):
        num_leaves, new = len(jtu.tree_leaves(node)), jtu.tree_structure(step(node))
        if new.num_leaves == num_leaves:  # no function became one with sites
            return lambda node: new.unflatten(jtu.tree_leaves(node))
    return step


class Structured(NamedTuple):
    """A model, and its structure to JAX."""

    model: Any
    treedef: Any


class Memo(dict[Any, Any]):
    """Remembers for one wrapper how sites are put into models, and the hash of its
    plan. It isn't part of what that is: a copy starts with an empty one.
    """

    plan_hash: int | None = None

    def __reduce__(self) -> Any:
        return Memo, ()

    def instrument(
        self, known: Structured, key: Hashable, sites: Callable[[], Sites]
    ) -> Any:
        """As the function does. How, is remembered by `key` and the structure of the
        model, which the sites depend on alone.
        """
        model, treedef = known
        try:
            step = self.get((key, treedef))
        except (TypeError, ValueError):
            # A static field that can't be hashed, or compared (a NumPy array).
            return instrument(model, sites())
        if step is None:
            step = _step(model, sites())
            if len(self) >= 16:
                self.clear()
            self[key, treedef] = step
        return step(model)
