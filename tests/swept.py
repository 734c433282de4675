"""A small attention model, its layers under a scan or in a list, with a hand-written
twin in which a value can be replaced; for the tests of experiments with two runs.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr


LAYERS, TOKENS, WIDTH, HEADS = 3, 4, 6, 2


class Attention(eqx.Module):
    q: eqx.nn.Linear
    k: eqx.nn.Linear
    v: eqx.nn.Linear
    o: eqx.nn.Linear

    def __init__(self, *, key):
        keys = jr.split(key, 4)
        self.q, self.k, self.v, self.o = (
            eqx.nn.Linear(WIDTH, WIDTH, use_bias=False, key=key) for key in keys
        )

    def __call__(self, x):
        return jax.vmap(self.o)(mixed(self, x))


def mixed(attn, x):
    """What the output projection is given."""
    heads = lambda y: y.reshape(len(x), HEADS, -1)
    q, k, v = (heads(x @ w.weight.T) for w in (attn.q, attn.k, attn.v))
    scores = jnp.einsum("shd,thd->hst", q, k)
    scores = jnp.where(jnp.tri(len(x), dtype=bool)[None], scores, -1e9)
    z = jnp.einsum("hst,thd->shd", jax.nn.softmax(scores), v)
    return z.reshape(len(x), -1)


class Block(eqx.Module):
    attn: Attention
    mlp: eqx.nn.Linear

    def __init__(self, *, key):
        key1, key2 = jr.split(key)
        self.attn = Attention(key=key1)
        self.mlp = eqx.nn.Linear(WIDTH, WIDTH, key=key2)

    def __call__(self, x):
        x = x + self.attn(x)
        return x + jax.nn.tanh(jax.vmap(self.mlp)(x))


class Scanned(eqx.Module):
    layers: Block
    head: eqx.nn.Linear

    def __call__(self, x):
        x, _ = jax.lax.scan(lambda x, layer: (layer(x), None), x, self.layers)
        return self.head(x[-1])


class Unrolled(eqx.Module):
    layers: list[Block]
    head: eqx.nn.Linear

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x[-1])


def models():
    """The same, scanned and unrolled."""
    layers = eqx.filter_vmap(lambda key: Block(key=key))(jr.split(jr.key(0), LAYERS))
    head = eqx.nn.Linear(WIDTH, 3, key=jr.key(1))
    each = [jax.tree.map(lambda x: x[i], layers) for i in range(LAYERS)]  # noqa: B023
    return Scanned(layers, head), Unrolled(each, head)


def inputs(*batch):
    return jr.normal(jr.key(2), (*batch, TOKENS, WIDTH)), jr.normal(
        jr.key(3), (*batch, TOKENS, WIDTH)
    )


def twin(model: Scanned, x: Any, replaced: Any = None):
    """The output, and the values by name and layer.

    - `replaced`: of which value, at which layers, and what of it (an index), by what.
    """
    values = {name: [] for name in ("z", "attn", "mlp", "resid")}

    def see(name, value):
        layer = len(values[name])
        if replaced is not None and name == replaced[0] and layer in replaced[1]:
            _, _, at, new = replaced
            value = value.at[at].set(new[name][layer][at])
        values[name].append(value)
        return value

    for i in range(LAYERS):
        layer = jax.tree.map(lambda leaf: leaf[i], model.layers)  # noqa: B023
        z = see("z", mixed(layer.attn, x))
        x = x + see("attn", z @ layer.attn.o.weight.T)
        y = see("mlp", x @ layer.mlp.weight.T + layer.mlp.bias[None])
        x = see("resid", x + jnp.tanh(y))
    return x[-1] @ model.head.weight.T + model.head.bias, values


# The names of the twin's values, and where the scanned model has them.
WHERE = {
    "resid": "layers",
    "attn": "layers.attn",
    "z": "layers.attn.o:in",
    "mlp": "layers.mlp",
}
