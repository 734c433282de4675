"""Models made of a part and of functions."""

import collections.abc

import equinox as eqx


class Whole(eqx.Module):
    """Runs its part by a function."""

    part: eqx.Module
    run: collections.abc.Callable = eqx.field(static=True)

    def __call__(self, x):
        return self.run(self.part, x)


class Returning(eqx.Module):
    """Returns what a function makes of its arguments."""

    make: collections.abc.Callable = eqx.field(static=True)

    def __call__(self, *args, **kwargs):
        return self.make(*args, **kwargs)
