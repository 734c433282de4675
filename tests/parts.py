"""Models made of parts, and of functions."""

import collections.abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp


class Outer(eqx.Module):
    """Runs its only part."""

    inner: Any

    def __call__(self, x):
        return self.inner(x)


class Two(eqx.Module):
    """Runs one part after the other."""

    a: Any
    b: Any

    def __call__(self, x):
        return self.b(self.a(x))


class Pair(eqx.Module):
    """Runs two layers, with a `tanh` between."""

    first: eqx.nn.Linear
    second: eqx.nn.Linear

    def __call__(self, x):
        return self.second(jnp.tanh(self.first(x)))


class Half(eqx.Module):
    """Runs one of its two layers."""

    used: eqx.nn.Linear
    unused: eqx.nn.Linear

    def __call__(self, x):
        return self.used(x)


class Chain(eqx.Module):
    """Calls one layer three times."""

    cell: eqx.nn.Linear

    def __call__(self, x):
        for _ in range(3):
            x = jnp.tanh(self.cell(x))
        return x


class Seq(eqx.Module):
    """Runs its parts in order."""

    parts: list[Any]

    def __call__(self, x):
        for part in self.parts:
            x = part(x)
        return x


class Whole(eqx.Module):
    """Runs its part by a function."""

    part: Any
    run: collections.abc.Callable = eqx.field(static=True)

    def __call__(self, x):
        return self.run(self.part, x)


class Returning(eqx.Module):
    """Returns what a function makes of its arguments."""

    make: collections.abc.Callable = eqx.field(static=True)

    def __call__(self, *args, **kwargs):
        return self.make(*args, **kwargs)
