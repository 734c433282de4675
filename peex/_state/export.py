"""Taking the state out of a model, by path, and putting it back."""

from collections.abc import Callable, Mapping
from typing import Any, overload

import equinox as eqx
import jax
import jax.tree_util as jtu

from .._errors import PeexError
from .._sites.keys import Key
from .._sites.patterns import nearest
from .._sites.walk import children, parts_of
from .entries import key_of, shapes, shown, StateEntry, StateKey
from .indices import named, renewed


def export_state(
    tree: Any, eqx_state: eqx.nn.State | None = None
) -> tuple[Any, dict[str, Any]]:
    """Takes the values of all [`peex.StateEntry`][]s out of a model, so that they can
    be given to each call, and come back from it. With an `eqx.nn.State`, also names
    what that holds by the paths of the model.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        tree = {"a": 1, "b": px.StateEntry(jnp.zeros(2))}
        bare, state = px.export_state(tree)
        bare  # {'a': 1, 'b': StateKey('b')}
        state  # {'b': [0., 0.]}

        # Of a layer of Equinox's:
        norm = eqx.nn.make_with_state(eqx.nn.BatchNorm)
        model, eqx_state = norm(2, "batch", mode="ema")
        _, state = px.export_state(model, eqx_state)
        mean, var = state["ema_state_index"]
        ```

    **Arguments:**

    - `tree`: a model, hooked or not, or any pytree.
    - `eqx_state`: the state of the `eqx.nn.StateIndex`es in it, as
        `eqx.nn.make_with_state` returns it. It may hold more than that of this part.

    **Returns:**

    A pair:

    - the tree with a [`peex.StateKey`][] in the place of each entry. (An
        `eqx.nn.StateIndex` is a key already, and stays.)
    - the state: a dict from paths, written as the keys of sites are (wrappers have no
        part in them), to values. What is at two places is at the first, if it is a
        `StateIndex`, else at both.

    **Raises:**

    [`peex.PeexError`][]: an entry inside of another; a tree that was exported before;
    an `eqx.nn.State` of another model.
    """
    state: dict[str, Any] = {}

    def take(path: str, node: Any) -> Any:
        if isinstance(node, StateKey):
            raise PeexError(
                f"{path!r} is the key of an entry that was exported before, {node!r}. "
                "Put the state back first: `model = px.import_state(bare, state)`."
            )
        if not isinstance(node, StateEntry):
            return node
        _refuse_inside(path, node.value)
        state[path] = node.value
        return key_of(path, node.value)

    bare = _replaced(tree, take)
    return bare, state if eqx_state is None else state | named(tree, eqx_state)


@overload
def import_state(tree: Any, state: Mapping[str, Any]) -> Any: ...
@overload
def import_state(
    tree: Any, state: Mapping[str, Any], eqx_state: eqx.nn.State
) -> tuple[Any, eqx.nn.State]: ...
def import_state(
    tree: Any, state: Mapping[str, Any], eqx_state: eqx.nn.State | None = None
) -> Any:
    """Puts a state back into the model that it was taken out of: the inverse of
    [`peex.export_state`][].

    !!! Example

        ```python
        import equinox as eqx
        import jax.numpy as jnp
        import peex as px

        bare, state = px.export_state({"a": 1, "b": px.StateEntry(jnp.zeros(2))})
        tree = px.import_state(bare, state)  # as it was

        # Pretrained averages, for a layer of Equinox's:
        norm = eqx.nn.make_with_state(eqx.nn.BatchNorm)
        model, eqx_state = norm(2, "batch", mode="ema")
        bare, state = px.export_state(model, eqx_state)
        means = jnp.array([1.0, 2.0]), jnp.array([4.0, 9.0])
        state = px.update_state(state, {"ema_state_index": means})
        model, eqx_state = px.import_state(bare, state, eqx_state)
        ```

    **Arguments:**

    - `tree`: what `export_state` returned first, or what training has made of it.
    - `state`: a value for each of its keys.
    - `eqx_state`: if `export_state` was given one: that, or a later one. It stays as it
        is, and can still be used.

    **Returns:**

    The tree with its entries; with an `eqx_state`, the pair of that and a new
    `eqx.nn.State`.

    **Raises:**

    [`peex.PeexError`][]: a path of the state that the tree doesn't have, one of the
    tree that the state doesn't have, or a value unlike the one that was exported.
    (Leading axes that one of the two has more, as under a `vmap`, are fine. What went
    through a JAX transformation since isn't compared: it may have got another shape.)
    """
    used: list[str] = []

    def put(path: str, node: Any) -> Any:
        if not isinstance(node, StateKey):
            return node
        value = _given(state, node)
        if node.like is not None:
            _refuse_unlike(node, node.like, value, batched=True)
        used.append(str(node))
        return StateEntry(value)

    full = _replaced(tree, put)
    if eqx_state is not None:
        old = named(tree, eqx_state)
        for path in old:
            _refuse_unlike(path, old[path], _given(state, path), batched=False)
        used += old
    unknown = [str(path) for path in state if path not in used]
    if unknown:
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        raise PeexError(
            f"The model has no place for the state's entry {unknown[0]!r}{more}. The "
            f"paths that it has: {nearest(unknown[0], used)}. Leave what isn't of this "
            "model out; for what is an `eqx.nn.State`'s, write "
            "`px.import_state(model, state, eqx_state)`."
        )
    return full if eqx_state is None else (full, renewed(tree, eqx_state, state))


def _replaced(tree: Any, replace: Callable[[str, Any], Any]) -> Any:
    """The tree with another node where a function of paths and nodes returns another;
    as the very object if there is none.
    """

    def visit(key: Key, node: Any) -> Any:
        new = replace(".".join(key) or ".", node)
        if new is not node:
            return new
        old = children(key, node)
        news = [visit(*child) for child in old]
        if all(new is child for new, (_, child) in zip(news, old, strict=True)):
            return node
        _, rebuild = parts_of(node)
        return rebuild(news)

    return visit((), tree)


def _refuse_inside(path: str, value: Any) -> None:
    marks = StateEntry | StateKey
    is_mark = lambda x: isinstance(x, marks)
    for entries, leaf in jtu.tree_flatten_with_path(value, is_leaf=is_mark)[0]:
        if is_mark(leaf):
            raise PeexError(
                f"The state entry {path!r} holds another one, in its value"
                f"{jtu.keystr(entries)}. Mark the whole value once, or each part of "
                "it: `{'a': px.StateEntry(a), 'b': px.StateEntry(b)}`."
            )


def _given(state: Mapping[str, Any], path: str) -> Any:
    if path not in state:
        raise PeexError(
            f"The state has no value for {str(path)!r}, which the model needs. It has: "
            f"{nearest(path, map(str, state))}. To change some values only, write "
            "`px.update_state(state, {path: value})`, which keeps the others."
        )
    return state[path]


def _refuse_unlike(path: str, old: Any, new: Any, batched: bool) -> None:
    expected, got = shapes(old), shapes(new)
    same = shown(old) == shown(new)
    if not same and batched:
        # One of the two may be of one example, the other of a batch.
        leaves, structure = jtu.tree_flatten(expected)
        others, other_structure = jtu.tree_flatten(got)
        pairs = zip(leaves, others, strict=False)
        same = structure == other_structure and all(_ends_alike(*p) for p in pairs)
    if not same:
        raise PeexError(
            f"The state's value for {str(path)!r} is {shown(new)}, but {shown(old)} "
            "was exported from the model. Give one like that; if the model is to hold "
            "another, change it after `px.import_state`."
        )


def _ends_alike(x: Any, y: Any) -> bool:
    if not isinstance(x, jax.ShapeDtypeStruct):
        return type(x) is type(y)
    if not isinstance(y, jax.ShapeDtypeStruct) or x.dtype != y.dtype:
        return False
    rank = min(len(x.shape), len(y.shape))
    ends = [z.shape[len(z.shape) - rank :] for z in (x, y)]
    return ends[0] == ends[1]
