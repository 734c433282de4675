"""What is known about a site before anything runs: static, hashable descriptions.

A [`Site`][] rides in the pytree structure of the instrumented model and in the
parameters of the engine's primitives, so everything here compares by value: two equal
wrappers share one compiled program.
"""

import dataclasses
import enum
import functools as ft
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A callable pytree (a hook, a log) without its arrays.

    The arrays travel apart, so that they can be traced, differentiated and changed
    without compiling anew; `thaw` puts the two together again. `is_identity` says that
    it is a log of the value itself, `takes_data` that it is called with data for each
    step and example. `monoid` merges what a log returns (see `merging.py`), `None` if
    that is stacked.
    """

    name: str
    treedef: Any
    static: tuple[Any, ...]
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    is_identity: bool
    takes_data: bool
    monoid: "Frozen | None" = None

    def __hash__(self) -> int:
        # Not of the leaves: those needn't be hashable.
        return hash((self.name, len(self.static)))

    def thaw(self, arrays: Sequence[Any]) -> Callable[..., Any]:
        arrays_ = iter(arrays)
        leaves = [next(arrays_) if x is _array else x for x in self.static]
        return jtu.tree_unflatten(self.treedef, leaves)


class _Array:
    """Stands for an array leaf in `Frozen.static`."""

    def __repr__(self) -> str:
        return "<array>"


_array = _Array()


def freeze(
    name: str,
    fn: Callable[..., Any],
    is_identity: bool = False,
    takes_data: bool = False,
    monoid: Frozen | None = None,
) -> tuple[Frozen, list[Any]]:
    """Splits a callable into its static part and its arrays."""
    leaves, treedef = jtu.tree_flatten(fn)
    arrays = [x for x in leaves if not _is_static(x)]
    static = tuple(x if _is_static(x) else _array for x in leaves)
    shapes = tuple(jax.ShapeDtypeStruct(np.shape(x), _dtype(x)) for x in arrays)
    frozen = Frozen(name, treedef, static, shapes, is_identity, takes_data, monoid)
    return frozen, arrays


def _dtype(x: Any) -> Any:
    # A float64 array of NumPy's, outside of x64 mode, is a float32 one to JAX.
    return (
        x.dtype if isinstance(x, jax.Array) else jax.dtypes.canonicalize_dtype(x.dtype)
    )


def _is_static(leaf: Any) -> bool:
    # Numbers stay static: that keeps a `ScaleHook(2.0)` free of arrays, and bitwise
    # equal to multiplying by the Python number.
    return not eqx.is_array(leaf) and not hasattr(leaf, "__array__")


# What is behind the key of a module in that of its arguments. (No method can have this
# name.)
INPUT = ":in"


def suffix_of(name: str, index: int | None) -> str:
    """What is behind the key of a module, in that of a value inside."""
    return f"/{name}#{index}" if index else f"/{name}"


class Side(enum.Enum):
    """Which value of a call a site sees."""

    OUTPUT = "its output"
    INPUT = "its positional arguments, a lone one as itself"
    ARGS = "the tuple of its positional arguments"
    ARGS_AND_KWARGS = "the pair of all its arguments"
    CALL = "all of it, with what isn't an array"


@dataclasses.dataclass(frozen=True, eq=False)
class Site:
    """One place of one wrapper: which value, and what is done with it.

    - `key`: the key of the site, which is that of its first call in the log unless
        there is an `alias`.
    - `depth`: how many hooked calls were running when this one started; tells the
        sites of nested wrappers apart.
    - `direct`: whether its call is a direct one (see `_wrappers/direct.py`).
        JAX keeps programs by what they are made of, so those of the two kinds must
        differ.
    - `backward`: whether hook and log act on the cotangent.
    - `side`: which value of the call it sees.
    - `hook`, `log`: what acts, `None` for nothing.
    - `around`: what stands around the call.
    - `asked`: whether `where` asks for it by name.
    - `while_buffer`: how many of the last iterations of a while loop are logged; `None`
        for the last alone, without an axis.
    - `inside`: of a named value inside of a module, its name, and which one of its name
        in a call of the module (`None`: all).
    - `suffix`: what the key has behind that of the module.
    - `call`: which further call of the module it is of; `None` for all.
    - `alias`: the name of the user's own that it has in the log, and what is behind the
        number of the call in that.
    """

    key: str
    depth: int
    direct: bool
    backward: bool
    side: Side
    hook: Frozen | None
    log: Frozen | None
    asked: bool
    while_buffer: int | None
    inside: tuple[str, int | None] | None = None
    suffix: str = ""
    call: int | None = None
    alias: tuple[str, str] | None = None
    around: Frozen | None = None

    def is_of(self, call: int) -> bool:
        """Whether it is of this further call of its module."""
        return self.call in (None, call)

    @ft.cached_property
    def only_logs(self) -> bool:
        """Whether all it does is to log the value (or cotangent) itself."""
        return self.hook is None and self.log is not None and self.log.is_identity

    @ft.cached_property
    def merges(self) -> bool:
        """Whether what it logs is merged where it is, rather than stacked."""
        return self.log is not None and self.log.monoid is not None

    @ft.cached_property
    def kept(self) -> frozenset[str]:
        """The loops over whose steps that is stacked nevertheless."""
        frozen = None if self.log is None else self.log.monoid
        if frozen is None:
            return frozenset()
        monoid: Any = frozen.thaw(frozen.shapes)
        return frozenset(monoid.keep)

    @ft.cached_property
    def takes(self) -> bool:
        """Whether hook or log take something from the collector."""
        fns = [fn for fn in (self.hook, self.log, self.around) if fn is not None]
        return any(fn.shapes or fn.takes_data for fn in fns)

    @ft.cached_property
    def pre(self) -> bool:
        """Whether it acts before the call."""
        return self.side not in (Side.OUTPUT, Side.CALL)

    @ft.cached_property
    def module(self) -> str:
        """The key of the module."""
        end = INPUT if self.side is Side.INPUT else self.suffix
        return self.key.removesuffix(end)

    @ft.cached_property
    def chosen(self) -> str:
        """The key of what `where` chose, in which a value inside may have a pattern."""
        suffix = "" if self.inside is None else suffix_of(*self.inside)
        return f"{self.module}{suffix}" if suffix else self.key

    def numbered(self, n: int) -> str:
        """The key in the log of the `n`-th further call of its module."""
        if n == 0 and self.alias is None:
            return self.key
        name, end = self.alias or (self.key.removesuffix(self.suffix), self.suffix)
        # A name of the user's own, given to one call, says which by itself.
        unnumbered = n == 0 or (self.alias is not None and self.call is not None)
        return f"{name}{end}" if unnumbered else f"{name}#{n}{end}"

    @ft.cached_property
    def _all(self) -> tuple[Any, ...]:
        return tuple(getattr(self, f.name) for f in dataclasses.fields(self))

    def __eq__(self, other: object) -> bool:
        # JAX compares sites that differ in their key, often: those of layers that are
        # passed one by one to one jitted function.
        if type(other) is not Site or self.key != other.key:
            return False
        return self is other or self._all == other._all

    def __hash__(self) -> int:
        return hash((self.key, self.depth, self.backward))

    def __repr__(self) -> str:
        return f"<site {self.key}>"


@dataclasses.dataclass(frozen=True)
class ModuleKey:
    """Rides in the place of a site where a module has to tell its key while it runs."""

    key: str
    depth: int
    inside: None = None

    @property
    def module(self) -> str:
        return self.key

    def __repr__(self) -> str:
        return f"<site {self.key}>"
