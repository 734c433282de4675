"""Small models that overflow, or whose gradient does, at a place that is known."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp


class Act(eqx.Module):
    """Overflows in float32 above 88.7."""

    def __call__(self, x):
        return jnp.exp(x)


class Block(eqx.Module):
    """`x / 8` through a diagonal, then through `exp`."""

    scale: jax.Array
    act: Act

    def __init__(self, scale):
        self.scale = jnp.asarray(scale)
        self.act = Act()

    def __call__(self, x):
        return jnp.minimum(x, 50.0) + 0 * jnp.log1p(self.act(self.scale * x))


def scales(at=2, num=6):
    """At the layer `at` what is above 40 overflows, at all others nothing does."""
    return jnp.zeros(num).at[at].set(2.0)


class Scanned(eqx.Module):
    """Six layers under a scan and a checkpoint."""

    layers: Block

    def __init__(self, scale=None):
        self.layers = jax.vmap(Block)(scales() if scale is None else scale)

    def __call__(self, x):
        @jax.checkpoint
        def body(x, layer):
            return layer(x), None

        return jax.lax.scan(body, x, self.layers)[0]


class Unrolled(eqx.Module):
    """The same in a list."""

    layers: list[Block]

    def __init__(self):
        self.layers = [Block(scale) for scale in scales()]

    def __call__(self, x):
        for layer in self.layers:
            x = jax.checkpoint(lambda layer, x: layer(x))(layer, x)
        return x


class Scale(eqx.Module):
    factor: jax.Array

    def __call__(self, x):
        return self.factor * x


class Cell(eqx.Module):
    """`h / 2 + x`: what it is given is in `h` from then on."""

    def __call__(self, h, x):
        return h / 2 + x


class Recurrent(eqx.Module):
    """In half precision, 65504 is the largest number."""

    scale: Scale
    cell: Cell

    def __init__(self):
        self.scale = Scale(jnp.asarray(1000.0, jnp.float16))
        self.cell = Cell()

    def __call__(self, xs):
        def step(h, x):
            return self.cell(h, self.scale(x)), None

        return jax.lax.scan(step, jnp.zeros(xs.shape[1:], xs.dtype), xs)[0]


class Fn(eqx.Module):
    """Any function, as a module without parameters."""

    fn: Any = eqx.field(static=True)

    def __call__(self, *args):
        return self.fn(*args)


class Chain(eqx.Module):
    """A gain for each input, then any parts."""

    gain: Scale
    parts: list[Any]

    def __init__(self, *parts, gain=1.0):
        self.gain = Scale(jnp.asarray(gain))
        self.parts = list(parts)

    def __call__(self, x):
        x = self.gain(x)
        for part in self.parts:
            x = part(x)
        return x


def mean(model, xs):
    """A loss over a batch, of which each example is computed by itself."""
    return jnp.mean(jax.vmap(model)(xs))


def find(model, xs, method=mean, **kwargs):
    import peex as px

    return px.debug.find_nonfinite(model, xs, method=method, **kwargs)
