"""The models that are measured, written in Equinox as anybody would write them, and for
each the same model edited by hand so that it returns what its layers compute.

A `Case` is a model with its input. To add a model: a class, its twin by hand, a case.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float


# From the keys of the layers to what they return, or to what is added to that.
Values = dict[str, Any]


class Sizes(NamedTuple):
    """How large the models are. The chains' lengths are in their names."""

    width: int = 256
    heads: int = 4
    layers: int = 12
    tokens: int = 64
    batch: int = 8
    chain_width: int = 64
    steps: int = 256
    vit_layers: int = 30
    # Of a language model, whose weights are too many for a cache: a third of the layers
    # of SmolLM2-135M, 40 million parameters.
    lm_width: int = 576
    lm_heads: int = 9
    lm_layers: int = 10

    def of_lm(self) -> "Sizes":
        return self._replace(
            width=self.lm_width, heads=self.lm_heads, layers=self.lm_layers
        )


FULL = Sizes()
TINY = Sizes(
    width=8,
    heads=2,
    layers=2,
    tokens=5,
    batch=2,
    chain_width=4,
    steps=5,
    vit_layers=1,
    lm_width=8,
    lm_heads=2,
    lm_layers=2,
)  # for tests


class Block(eqx.Module):
    """A layer of a transformer, with the norms before attention and MLP."""

    norm1: eqx.nn.LayerNorm
    q: eqx.nn.Linear
    k: eqx.nn.Linear
    v: eqx.nn.Linear
    o: eqx.nn.Linear
    norm2: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    heads: int = eqx.field(static=True)

    def __init__(self, width: int, heads: int, *, key: Array):
        keys = jr.split(key, 6)
        self.norm1 = eqx.nn.LayerNorm(width)
        self.q = eqx.nn.Linear(width, width, key=keys[0])
        self.k = eqx.nn.Linear(width, width, key=keys[1])
        self.v = eqx.nn.Linear(width, width, key=keys[2])
        self.o = eqx.nn.Linear(width, width, key=keys[3])
        self.norm2 = eqx.nn.LayerNorm(width)
        self.up = eqx.nn.Linear(width, 4 * width, key=keys[4])
        self.down = eqx.nn.Linear(4 * width, width, key=keys[5])
        self.heads = heads

    def __call__(self, x: Float[Array, "t d"]) -> Float[Array, "t d"]:
        y = jax.vmap(self.norm1)(x)
        q, k, v = (jax.vmap(layer)(y) for layer in (self.q, self.k, self.v))
        x = x + jax.vmap(self.o)(attend(q, k, v, self.heads))
        y = jax.vmap(self.norm2)(x)
        return x + jax.vmap(self.down)(jax.nn.gelu(jax.vmap(self.up)(y)))


BLOCK_KEYS = ("norm1", "q", "k", "v", "o", "norm2", "up", "down")


def attend(
    q: Float[Array, "t d"], k: Float[Array, "t d"], v: Float[Array, "t d"], heads: int
) -> Float[Array, "t d"]:
    """Every token attends to every token: `softmax(q k^T / sqrt(d / heads)) v`."""
    q, k, v = (x.reshape(len(x), heads, -1) for x in (q, k, v))
    scores = jnp.einsum("thd,shd->hts", q, k) / jnp.sqrt(q.shape[-1])
    out = jnp.einsum("hts,shd->thd", jax.nn.softmax(scores), v)
    return out.reshape(len(out), -1)


class Transformer(eqx.Module):
    """A list of blocks."""

    layers: list[Block]

    def __init__(self, sizes: Sizes, *, key: Array):
        keys = jr.split(key, sizes.layers)
        self.layers = [Block(sizes.width, sizes.heads, key=k) for k in keys]

    def __call__(self, x: Float[Array, "t d"]) -> Float[Array, "t d"]:
        for layer in self.layers:
            x = layer(x)
        return x


class ScannedTransformer(eqx.Module):
    """The same, with the parameters stacked and a scan over the layers."""

    layers: Block

    def __init__(self, sizes: Sizes, *, key: Array):
        keys = jr.split(key, sizes.layers)
        make = lambda k: Block(sizes.width, sizes.heads, key=k)
        self.layers = eqx.filter_vmap(make)(keys)

    def __call__(self, x: Float[Array, "t d"]) -> Float[Array, "t d"]:
        return jax.lax.scan(_apply, x, self.layers)[0]


def _apply(x: Array, layer: Block) -> tuple[Array, None]:
    # Not a closure, of which JAX would compile a new one in each eager call.
    return layer(x), None


class JittedTransformer(Transformer):
    """With a `filter_jit` around each block, as where a library has put one."""

    def __call__(self, x: Float[Array, "t d"]) -> Float[Array, "t d"]:
        for layer in self.layers:
            x = _jitted(layer, x)
        return x


@eqx.filter_jit
def _jitted(layer: Block, x: Array) -> Array:
    return layer(x)


class ViT(eqx.Module):
    """A classifier of images of 16 by 16 pixels, in patches of 4 by 4."""

    patches: eqx.nn.Conv2d
    position: Float[Array, "16 d"]
    body: Transformer
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, sizes: Sizes, *, key: Array):
        keys = jr.split(key, 3)
        self.patches = eqx.nn.Conv2d(3, sizes.width, 4, stride=4, key=keys[0])
        self.position = jnp.zeros((16, sizes.width))
        sizes = sizes._replace(layers=sizes.vit_layers)
        self.body = Transformer(sizes, key=keys[1])
        self.norm = eqx.nn.LayerNorm(sizes.width)
        self.head = eqx.nn.Linear(sizes.width, 10, key=keys[2])

    def __call__(self, image: Float[Array, "3 16 16"]) -> Float[Array, "10"]:
        patches = self.patches(image)
        x = patches.reshape(len(patches), -1).T + self.position
        return self.head(jnp.mean(jax.vmap(self.norm)(self.body(x)), 0))


class AbstractChain(eqx.Module):
    """Linears one after the other, each in a field of its own (the kind of model that
    peex 0.0.3 can hook too).
    """

    names = ()  # in the order in which they are called

    def __call__(self, x: Float[Array, "d"]) -> Float[Array, "d"]:
        for name in self.names:
            x = jnp.tanh(getattr(self, name)(x))
        return x


class ListedChain(eqx.Module):
    """Linears one after the other, in a list."""

    layers: list[eqx.nn.Linear]

    def __call__(self, x: Float[Array, "d"]) -> Float[Array, "d"]:
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return x


def linears(length: int, width: int) -> list[eqx.nn.Linear]:
    keys = jr.split(jr.key(0), length)
    return [eqx.nn.Linear(width, width, key=k) for k in keys]


class GRU(eqx.Module):
    """A cell in a scan; returns the last state."""

    cell: eqx.nn.GRUCell

    def __call__(self, xs: Float[Array, "s d"]) -> Float[Array, "d"]:
        step = lambda state, x: (self.cell(x, state), None)
        return jax.lax.scan(step, jnp.zeros(self.cell.hidden_size), xs)[0]


class Case(NamedTuple):
    """A model, its input, and `by_hand(model, x, added=None)`: the model edited so that
    it returns `(output, values)`, and so that something can be added to each value
    (that of which the derivative is the cotangent).
    """

    name: str
    model: Any
    x: Array
    by_hand: Callable[..., tuple[Array, Values]]


def _transformer_by_hand(
    model: Transformer, x: Array, added: Values | None = None
) -> tuple[Array, Values]:
    values: Values = {}

    def see(key: str, value: Array) -> Array:
        values[key] = value if added is None else value + added[key]
        return values[key]

    for i, layer in enumerate(model.layers):
        x = _block_by_hand(layer, x, lambda name, y, i=i: see(f"layers.{i}.{name}", y))
    return x, values


def _block_by_hand(block: Block, x: Array, see: Callable[[str, Array], Array]) -> Array:
    y = see("norm1", jax.vmap(block.norm1)(x))
    q = see("q", jax.vmap(block.q)(y))
    k = see("k", jax.vmap(block.k)(y))
    v = see("v", jax.vmap(block.v)(y))
    x = x + see("o", jax.vmap(block.o)(attend(q, k, v, block.heads)))
    y = see("norm2", jax.vmap(block.norm2)(x))
    y = jax.nn.gelu(see("up", jax.vmap(block.up)(y)))
    return x + see("down", jax.vmap(block.down)(y))


def _chain_by_hand(
    model: AbstractChain, x: Array, added: Values | None = None
) -> tuple[Array, Values]:
    values: Values = {}
    for name in model.names:
        x = getattr(model, name)(x)
        if added is not None:
            x = x + added[name]
        values[name] = x
        x = jnp.tanh(x)
    return x, values


def _gru_by_hand(
    model: GRU, xs: Array, added: Values | None = None
) -> tuple[Array, Values]:
    def step(state: Array, x: Any) -> tuple[Array, Array]:
        x, offset = x
        state = model.cell(x, state)
        if offset is not None:
            state = state + offset
        return state, state

    offsets = None if added is None else added["cell"]
    init = jnp.zeros(model.cell.hidden_size)
    out, states = jax.lax.scan(step, init, (xs, offsets))
    return out, {"cell": states}


EDGES = (-1.0, 0.0, 1.0)


def mean_std(value: Float[Array, "t d"]) -> tuple[Array, Array]:
    return jnp.mean(value, -1), jnp.std(value, -1)


def histogram(value: Float[Array, "t d"]) -> Array:
    bins = zip((-jnp.inf, *EDGES), (*EDGES, jnp.inf), strict=True)
    counts = [jnp.sum((low <= value) & (value < high), -1) for low, high in bins]
    return jnp.stack(counts, -1)


def statistics_by_hand(
    model: ScannedTransformer,
    x: Float[Array, "t d"],
    statistics: Callable[[Array], Any],
) -> tuple[Array, Values]:
    """Statistics of what each layer returns for each token."""

    def body(x: Array, layer: Block) -> tuple[Array, Values]:
        values: Values = {}

        def see(key: str, value: Array) -> Array:
            values[f"layers.{key}"] = statistics(value)
            return value

        return _block_by_hand(layer, x, see), values

    return jax.lax.scan(body, x, model.layers)


def _transformer(sizes: Sizes) -> Case:
    x = jr.normal(jr.key(1), (sizes.tokens, sizes.width))
    model = Transformer(sizes, key=jr.key(0))
    return Case("transformer", model, x, _transformer_by_hand)


def chain(length: int) -> Callable[[Sizes], Case]:
    """Makes a case of so many Linears."""
    names = tuple(f"layer{i}" for i in range(length))
    fields = dict.fromkeys(names, eqx.nn.Linear)
    namespace = {"__annotations__": fields, "names": names}
    cls: Any = type(f"Chain{length}", (AbstractChain,), namespace)

    def make(sizes: Sizes) -> Case:
        x = jr.normal(jr.key(1), (sizes.chain_width,))
        model = cls(*linears(length, sizes.chain_width))
        return Case(f"chain {length}", model, x, _chain_by_hand)

    return make


def _gru(sizes: Sizes) -> Case:
    x = jr.normal(jr.key(1), (sizes.steps, sizes.width))
    cell = eqx.nn.GRUCell(sizes.width, sizes.width, key=jr.key(0))
    return Case("GRU", GRU(cell), x, _gru_by_hand)


CASES: dict[str, Callable[[Sizes], Case]] = {
    "transformer": _transformer,
    "chain 32": chain(32),
    "chain 128": chain(128),
    "GRU": _gru,
}
