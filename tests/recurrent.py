"""Recurrent models, unedited Equinox, and the pattern of their Jacobians."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np


WIDTH = 3


def key(n=0):
    return jax.random.key(n)


def linear(n_in, n_out=WIDTH, seed=0, **kwargs):
    return eqx.nn.Linear(n_in, n_out, key=key(seed), **kwargs)


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


class GRU(eqx.Module):
    """A cell with a readout."""

    cell: eqx.nn.GRUCell
    out: eqx.nn.Linear

    def __init__(self, n_in=2, width=WIDTH, n_out=1):
        self.cell = eqx.nn.GRUCell(n_in, width, key=key(0))
        self.out = linear(width, n_out, 1)

    def __call__(self, x, h):
        h = self.cell(x, h)
        return self.out(h), h


class TwoGRUs(eqx.Module):
    r1: eqx.nn.GRUCell
    r2: eqx.nn.GRUCell
    out: eqx.nn.Linear

    def __init__(self, n_in=2, width=WIDTH):
        self.r1 = eqx.nn.GRUCell(n_in, width, key=key(0))
        self.r2 = eqx.nn.GRUCell(width, width, key=key(1))
        self.out = linear(width, 1, 2)

    def __call__(self, x, h1, h2):
        h1 = self.r1(x, h1)
        h2 = self.r2(h1, h2)
        return self.out(h2), h1, h2


class LinearGRU(eqx.Module):
    """Of three Linears, each on what is given and the state."""

    Wz: eqx.nn.Linear
    Wr: eqx.nn.Linear
    Wh: eqx.nn.Linear

    def __init__(self):
        self.Wz, self.Wr, self.Wh = (linear(2 + WIDTH, seed=i) for i in range(3))

    def __call__(self, x, h):
        xh = jnp.concatenate([x, h])
        z, r = jax.nn.sigmoid(self.Wz(xh)), jax.nn.sigmoid(self.Wr(xh))
        new = jnp.tanh(self.Wh(jnp.concatenate([x, r * h])))
        return (1 - z) * h + z * new


class MinimalGated(eqx.Module):
    Wf: eqx.nn.Linear
    Wh: eqx.nn.Linear

    def __init__(self):
        self.Wf, self.Wh = (linear(2 + WIDTH, seed=i) for i in range(2))

    def __call__(self, x, h):
        f = jax.nn.sigmoid(self.Wf(jnp.concatenate([x, h])))
        new = jnp.tanh(self.Wh(jnp.concatenate([x, f * h])))
        return (1 - f) * h + f * new


class LinearLSTM(eqx.Module):
    """Of four Linears."""

    Wi: eqx.nn.Linear
    Wf: eqx.nn.Linear
    Wg: eqx.nn.Linear
    Wo: eqx.nn.Linear

    def __init__(self):
        self.Wi, self.Wf, self.Wg, self.Wo = (
            linear(2 + WIDTH, seed=i) for i in range(4)
        )

    def __call__(self, x, h, c):
        xh = jnp.concatenate([x, h])
        i, f, o = (jax.nn.sigmoid(w(xh)) for w in (self.Wi, self.Wf, self.Wo))
        c = f * c + i * jnp.tanh(self.Wg(xh))
        return o * jnp.tanh(c), c


class LSTM(eqx.Module):
    cell: eqx.nn.LSTMCell

    def __init__(self, n_in=2, width=WIDTH):
        self.cell = eqx.nn.LSTMCell(n_in, width, key=key())

    def __call__(self, x, state):
        return self.cell(x, state)


class Multiplied(eqx.Module):
    """tanh(m + W2 m), where m = W1 [x, h]."""

    W1: eqx.nn.Linear
    W2: eqx.nn.Linear

    def __init__(self):
        self.W1, self.W2 = linear(2 + WIDTH), linear(WIDTH, seed=1)

    def __call__(self, x, h):
        m = self.W1(jnp.concatenate([x, h]))
        return jnp.tanh(m + self.W2(m))


class Vanilla(eqx.Module):
    W: eqx.nn.Linear
    U: eqx.nn.Linear

    def __init__(self, n_in=2, width=WIDTH, seed=0):
        self.W = linear(n_in, width, seed)
        self.U = linear(width, width, seed + 1, use_bias=False)

    def __call__(self, x, h):
        return jnp.tanh(self.W(x) + self.U(h))


class ThreeVanilla(eqx.Module):
    v0: Vanilla
    v1: Vanilla
    v2: Vanilla

    def __init__(self):
        self.v0, self.v1, self.v2 = Vanilla(), Vanilla(WIDTH), Vanilla(WIDTH)

    def __call__(self, x, h0, h1, h2):
        h0 = self.v0(x, h0)
        h1 = self.v1(h0, h1)
        h2 = self.v2(h1, h2)
        return h2[:1], (h0, h1, h2)


def name(path):
    return jtu.keystr(path, simple=True, separator=".")


def random_like(tree, seed):
    """Normal numbers in the place of floating point ones."""

    def one(x, k):
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            return jnp.zeros(x.shape, x.dtype) if not eqx.is_array(x) else x
        return jax.random.normal(k, x.shape, x.dtype)

    leaves, treedef = jtu.tree_flatten(tree)
    return treedef.unflatten(map(one, leaves, jax.random.split(key(seed), len(leaves))))


def jacobian_pattern(model, args, new_state, seeds=(1, 2, 3)):
    """Which parameter has a derivative of which array of the new state that isn't zero
    for some random weights and arguments, as pairs of name and position.

    `new_state` takes it out of the output.
    """
    dynamic, static = eqx.partition(model, eqx.is_inexact_array)

    def run(dynamic, args):
        out = eqx.combine(dynamic, static)(*args)
        return [x for x in jtu.tree_leaves(new_state(out))]

    is_inexact = lambda x: jnp.issubdtype(x.dtype, jnp.inexact)
    only = lambda d, a: list(filter(is_inexact, run(d, a)))
    pattern = set()
    for seed in seeds:
        given = random_like(dynamic, seed), random_like(args, seed + 100)
        inexact = [is_inexact(x) for x in run(*given)]
        try:
            jacobians = iter(jax.jacfwd(only)(*given))
        except TypeError:  # of a `custom_vjp`
            jacobians = iter(jax.jacrev(only)(*given))
        for j, yes in enumerate(inexact):
            if yes:
                for path, x in jtu.tree_flatten_with_path(next(jacobians))[0]:
                    if np.any(np.asarray(x) != 0):
                        pattern.add((name(path), j))
    return pattern


def reached_pattern(reach):
    """The same as `px.reach` says."""
    states = list(reach.states)
    return {
        (parameter, states.index(state))
        for parameter, reached in reach.parameters.items()
        for state, link in reached.states.items()
        if link.how != "value"
    }
