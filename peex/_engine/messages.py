"""What a site and its collector tell each other: static, hashable descriptions, which
ride in the parameters of the engine's primitives, with the axes that arrays gain on
the way.
"""

import dataclasses
from typing import Any

import jax

from .loops import Loop
from .site import Frozen, Site


class Ring(int):
    """The size of a step axis that holds the last iterations of a while loop: of these
    there is one count, not one for each.
    """


@dataclasses.dataclass(frozen=True)
class Axes:
    """The leading axes that a log leaf has gained: devices first, then steps, then
    batches, each outermost first. `shape` is all that comes before the value's own.
    `loops` are those that the steps are of, `names` those of the batch axes: no part of
    what this is, so that equal programs in other files stay equal.
    """

    devices: tuple[Any, ...] = ()
    steps: tuple[Any, ...] = ()
    batch: tuple[Any, ...] = ()
    loops: tuple[Loop, ...] = dataclasses.field(default=(), compare=False)
    names: tuple[Any, ...] = dataclasses.field(default=(), compare=False)

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.devices + self.steps + self.batch

    def with_device(self, size: Any) -> "Axes":
        return dataclasses.replace(self, devices=(size, *self.devices))

    def with_step(self, size: Any, loop: Loop) -> "Axes":
        steps, loops = (size, *self.steps), (loop, *self.loops)
        return dataclasses.replace(self, steps=steps, loops=loops)

    def at_place(self, place: int) -> "Axes":
        """As part of a longer program, at which place the outermost loop is in it."""
        if not self.loops:
            return self
        first, *others = self.loops
        first = dataclasses.replace(first, place=(place, *first.place))
        return dataclasses.replace(self, loops=(first, *others))

    def with_batch(self, size: Any, name: Any) -> "Axes":
        batch, names = (size, *self.batch), (name, *self.names)
        return dataclasses.replace(self, batch=batch, names=names)

    @property
    def count_shape(self) -> tuple[Any, ...]:
        """The shape of a count, in which a `Ring` is an axis of size 1."""
        return tuple(1 if isinstance(n, Ring) else n for n in self.shape)

    @property
    def rings(self) -> tuple[int, ...]:
        """Where the rings are."""
        return tuple(i for i, n in enumerate(self.shape) if isinstance(n, Ring))

    # Where a further axis of a kind goes.

    @property
    def step_place(self) -> int:
        return len(self.devices)

    @property
    def batch_place(self) -> int:
        return len(self.devices) + len(self.steps)


@dataclasses.dataclass(frozen=True)
class Tap:
    """What is known of one logged value at some level of the program: the structure
    that `log_fn` returned, the axes gained so far, and whether a count goes with it.
    """

    site: Site
    treedef: Any
    axes: Axes
    counted: bool = False

    @property
    def merges(self) -> bool:
        """Whether it gains no axes: see `merging.py`."""
        return self.site.merges


@dataclasses.dataclass(frozen=True)
class Ask:
    """What is known of arrays that a program asks the collector for.

    - `shapes`, `axes`: of the arrays, and the axes that these have gained.
    - `varying`: the mesh axes that they vary over, inside of a `shard_map` that checks
        that.
    """

    site: Site
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    axes: Axes = Axes()
    varying: frozenset[str] = frozenset()

    @property
    def merges(self) -> bool:
        """Whether its arrays are the same for all steps, examples and devices."""
        return False


@dataclasses.dataclass(frozen=True)
class BufferAsk(Ask):
    """Asks for the buffers of the backward log of one call.

    - `treedef`, `dtypes`: what `log_fn` returned; `shapes` are those of the buffers
        that hold it (see `codec.py`).
    """

    treedef: Any = None
    dtypes: tuple[Any, ...] = ()

    @property
    def merges(self) -> bool:
        # What is added up is the cotangent of one buffer.
        return self.site.merges


@dataclasses.dataclass(frozen=True)
class Datum:
    """An array that a step hook wants for one step of one example. One that isn't
    `per_example` has no batch axes: a `cond` on it stays one under `vmap`, which makes
    a `select` of both branches of one on a batched value.
    """

    shape: jax.ShapeDtypeStruct
    per_example: bool = True


@dataclasses.dataclass(frozen=True)
class DataAsk(Ask):
    """Asks for what a step hook (or log) is given for one call, step and example.

    - `fn`: its name.
    - `per_example`: which of the arrays have batch axes.
    - `treedef`: the structure that they are in.
    - `value`: the arrays of the value there.
    - `differentiated`: whether the model takes derivatives there.
    """

    fn: str = ""
    per_example: tuple[bool, ...] = ()
    treedef: Any = None
    value: tuple[jax.ShapeDtypeStruct, ...] = ()
    differentiated: bool = False


@dataclasses.dataclass(frozen=True)
class ArraysAsk(Ask):
    """Asks for the arrays of a hook or log, which are the same at every step and for
    every example.

    - `fn`: its name.
    """

    fn: str = ""

    @property
    def name(self) -> tuple[int, str]:
        """What tells it from others: wrappers may have hooks of equal names."""
        return self.site.depth, self.fn

    @classmethod
    def of(cls, site: Site, frozen: Frozen) -> "ArraysAsk":
        return cls(site, frozen.shapes, fn=frozen.name)


@dataclasses.dataclass(frozen=True)
class Mark:
    """What is known of a value whose cotangent is wanted: the pytree that it is and
    which of the marked arrays is at each of its places (one may be at several), how
    many of the arrays that go with it are buffers (the others are the data of hook and
    log: which structure they are in, and which of them have batch axes), and the sizes
    and names of the batch axes that it has gained, outermost first, and whether the
    examples have one buffer, in which what they log is summed.
    """

    site: Site
    structure: Any
    places: tuple[int, ...]
    num_buffers: int
    data: Any
    per_example: tuple[bool, ...]
    batch: tuple[Any, ...] = ()
    names: tuple[Any, ...] = ()
    summed: tuple[bool, ...] = ()

    @property
    def shared(self) -> tuple[ArraysAsk, ...]:
        """The arrays that hook and log need."""
        fns = (self.site.hook, self.site.log)
        return tuple(ArraysAsk.of(self.site, f) for f in fns if f is not None)
