"""A log with all that the tests of what one is made into look at."""

import equinox as eqx
import jax
import jax.numpy as jnp

import peex as px


class Recurrent(eqx.Module):
    """A layer that is called twice, one in a loop of four steps, and one in a branch
    that only the odd steps take; of two examples.
    """

    twice: eqx.nn.Linear
    cell: eqx.nn.Linear
    odd: eqx.nn.Linear

    def __call__(self, xs):
        return jax.vmap(self.one)(xs)

    def one(self, x):
        x = self.twice(jnp.tanh(self.twice(x)))

        def step(x, i):
            x = jnp.tanh(self.cell(x))
            return jax.lax.cond(i % 2 == 1, lambda x: self.odd(x), lambda x: x, x), None

        return jax.lax.scan(step, x, jnp.arange(4))[0]


MODEL = Recurrent(*(eqx.nn.Linear(3, 3, key=jax.random.key(i)) for i in range(3)))
XS = jnp.array([[0.5, -1.0, 2.0], [0.1, 0.2, -0.3]])


def record(log_fn):
    _, log = px.ForwardHook(MODEL, log_fn=log_fn)(XS)
    return log
