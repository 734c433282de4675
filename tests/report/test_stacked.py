"""Which axes are those of stacked layers."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

import peex as px


class Layer(eqx.Module):
    linear: eqx.nn.Linear

    def __call__(self, x):
        return jnp.tanh(self.linear(x))


def layer(key):
    return Layer(eqx.nn.Linear(3, 3, key=key))


def stacked(n):
    return eqx.filter_vmap(layer)(jax.random.split(jax.random.key(0), n))


class Model(eqx.Module):
    """A stack of three over three steps, the one loop in the other both ways."""

    layers: Layer
    places: jax.Array
    rates: jax.Array

    def layers_over_time(self, xs):
        def one(xs, given):
            layer, rate = given
            step = lambda h, x: (layer(h + rate * x),) * 2
            return lax.scan(step, jnp.zeros(3), xs)[1], None

        rates = jax.lax.stop_gradient(self.rates)
        return lax.scan(jax.checkpoint(one), xs, (self.layers, rates))[0]

    def time_over_layers(self, xs):
        def step(h, given):
            x, place = given
            one = lambda h, layer: (layer(h), None)
            return lax.scan(one, h + x + place, self.layers)[0], None

        return lax.scan(step, jnp.zeros(3), (xs, self.places))[0]

    def in_a_branch(self, xs):
        one = lambda x, layer: (layer(x), None)
        run = lambda x: jax.jit(lambda x: lax.scan(one, x, self.layers)[0])(x)
        return lax.cond(xs[0, 0] > 0, lambda x: x, run, xs[0])

    def by_number(self, xs):
        """A loop over numbers: which layer is taken is seen by nobody."""
        take = lambda i: jax.tree.map(lambda x: x[i], self.layers)
        return lax.fori_loop(0, 3, lambda i, x: take(i)(x), xs[0])


MODEL = Model(stacked(3), jnp.ones((3, 3)), jnp.ones(3))
XS = jnp.ones((2, 3, 3))


def flags(method):
    run = lambda model, xs: jax.vmap(lambda x: getattr(model, method)(x))(xs)
    call = px.report(MODEL, XS, method=run)["layers.linear"]
    kinds = [axis.kind for axis in call.axes]
    return list(zip(kinds, call.stacked, strict=True))


def test_layers_and_time():
    """The sizes are the same, so that they tell nothing."""
    batch = ("batch", False)
    both = [("step", True), ("step", False), batch]
    assert flags("layers_over_time") == both
    assert flags("time_over_layers") == [both[1], both[0], batch]


def test_in_a_branch():
    assert flags("in_a_branch") == [("step", True), ("batch", False)]


def test_what_is_no_stack():
    assert flags("by_number") == [("step", False), ("batch", False)]
    run = lambda model, xs: jax.vmap(jax.vmap(model.layers.linear))(xs)
    single = Model(layer(jax.random.key(0)), jnp.ones(3), jnp.ones(3))
    call = px.report(single, XS, method=run)["layers.linear"]
    assert call.stacked == (False, False)
