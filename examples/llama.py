"""A language model of the Llama family, in plain Equinox.

Blocks of grouped-query attention and of a gated MLP, each behind an RMSNorm and added
to the residual stream; rotary positions; an embedding that is also the output. The
blocks are stacked, with a leading axis on each of their arrays, and run in a
`jax.lax.scan`:

```python
config = Config(vocab=11, width=8, hidden=16, depth=2, heads=2, kv_heads=1)
model = Llama(config, key=jax.random.key(0))
logits = model(jnp.array([3, 1, 4, 1, 5]))  # shape (5, 11)
tokens = generate(model, jnp.array([3, 1, 4, 1, 5]), 10)  # shape (15,)
```

`smollm2.py` loads trained parameters into it.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray


Start = int | Int[Array, ""]


class Config(NamedTuple):
    """Sizes. `theta` and `eps` are those of the rotary embedding and of the norms."""

    vocab: int
    width: int
    hidden: int
    depth: int
    heads: int
    kv_heads: int
    theta: float = 1e5
    eps: float = 1e-5


class Cache(NamedTuple):
    """What attention has seen so far. That of a whole model has one more axis in front,
    of its layers.
    """

    keys: Float[Array, "*layers kv_heads length size"]
    values: Float[Array, "*layers kv_heads length size"]


def rotate(
    x: Float[Array, "heads pos size"], positions: Int[Array, "pos"], theta: float
) -> Float[Array, "heads pos size"]:
    """Rotary position embedding ([Su et al., 2021](https://arxiv.org/abs/2104.09864)):
    turns the pair of features `i` and `i + size / 2` of a token at `position` by the
    angle `position * theta^(-2i / size)`.
    """
    half = x.shape[-1] // 2
    speeds = theta ** (-jnp.arange(half, dtype=x.dtype) / half)
    angles = positions[:, None].astype(x.dtype) * speeds
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate(
        [first * cos - second * sin, second * cos + first * sin], axis=-1
    )


class Attention(eqx.Module):
    """Causal attention, in which several heads share their keys and values
    ([Ainslie et al., 2023](https://arxiv.org/abs/2305.13245)).
    """

    q_proj: eqx.nn.Linear
    k_proj: eqx.nn.Linear
    v_proj: eqx.nn.Linear
    o_proj: eqx.nn.Linear
    heads: int = eqx.field(static=True)
    kv_heads: int = eqx.field(static=True)
    theta: float = eqx.field(static=True)

    def __init__(self, config: Config, *, key: PRNGKeyArray):
        linear = lambda i, o, key: eqx.nn.Linear(i, o, use_bias=False, key=key)
        width, kv_width = config.width, config.width // config.heads * config.kv_heads
        qkey, kkey, vkey, okey = jr.split(key, 4)
        self.q_proj = linear(width, width, qkey)
        self.k_proj = linear(width, kv_width, kkey)
        self.v_proj = linear(width, kv_width, vkey)
        self.o_proj = linear(width, width, okey)
        self.heads, self.kv_heads = config.heads, config.kv_heads
        self.theta = config.theta

    def __call__(
        self, x: Float[Array, "pos width"], start: Start, cache: Cache | None = None
    ) -> Any:
        """As of a `Block`."""
        q = _split(jax.vmap(self.q_proj)(x), self.heads)
        k = _split(jax.vmap(self.k_proj)(x), self.kv_heads)
        v = _split(jax.vmap(self.v_proj)(x), self.kv_heads)
        positions = start + jnp.arange(len(x))
        q, k = (rotate(a, positions, self.theta) for a in (q, k))
        if cache is not None:
            put = lambda all, new: jax.lax.dynamic_update_slice_in_dim(
                all, new, start, 1
            )
            cache = Cache(put(cache.keys, k), put(cache.values, v))
            k, v = cache
        k, v = (jnp.repeat(a, self.heads // self.kv_heads, axis=0) for a in (k, v))
        scores = jnp.einsum("hqd,hkd->hqk", q, k) * q.shape[-1] ** -0.5
        seen = jnp.arange(k.shape[1]) <= positions[:, None]
        pattern = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
        z = jnp.einsum("hqk,hkd->qhd", pattern, v).reshape(len(x), -1)
        out = jax.vmap(self.o_proj)(z)
        return out if cache is None else (out, cache)


def _split(x: Float[Array, "pos all"], heads: int) -> Float[Array, "heads pos size"]:
    return x.reshape(len(x), heads, -1).swapaxes(0, 1)


class MLP(eqx.Module):
    """The gated MLP of [Shazeer, 2020](https://arxiv.org/abs/2002.05202): SwiGLU."""

    gate_proj: eqx.nn.Linear
    up_proj: eqx.nn.Linear
    down_proj: eqx.nn.Linear

    def __init__(self, config: Config, *, key: PRNGKeyArray):
        linear = lambda i, o, key: eqx.nn.Linear(i, o, use_bias=False, key=key)
        gkey, ukey, dkey = jr.split(key, 3)
        self.gate_proj = linear(config.width, config.hidden, gkey)
        self.up_proj = linear(config.width, config.hidden, ukey)
        self.down_proj = linear(config.hidden, config.width, dkey)

    def __call__(self, x: Float[Array, "width"]) -> Float[Array, "width"]:
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(eqx.Module):
    """Adds what attention, and then what the MLP makes of the residual stream to it."""

    attn_norm: eqx.nn.RMSNorm
    attn: Attention
    mlp_norm: eqx.nn.RMSNorm
    mlp: MLP

    def __init__(self, config: Config, *, key: PRNGKeyArray):
        akey, mkey = jr.split(key)
        norm = eqx.nn.RMSNorm(config.width, eps=config.eps, use_bias=False)
        self.attn_norm = self.mlp_norm = norm
        self.attn = Attention(config, key=akey)
        self.mlp = MLP(config, key=mkey)

    def __call__(
        self, x: Float[Array, "pos width"], start: Start, cache: Cache | None = None
    ) -> Any:
        """**Arguments:**

        - `x`: the residual stream.
        - `start`: the position of the first of it in the text.
        - `cache`: a `Cache` with the keys and values of earlier positions, or `None`
            if there are none.

        **Returns:**

        The new residual stream; with a cache, a pair of it and the new cache.
        """
        out = self.attn(jax.vmap(self.attn_norm)(x), start, cache)
        if cache is not None:
            out, cache = out
        x = x + out
        x = x + jax.vmap(self.mlp)(jax.vmap(self.mlp_norm)(x))
        return x if cache is None else (x, cache)


class Llama(eqx.Module):
    """The whole model."""

    embedding: eqx.nn.Embedding
    layers: Block
    norm: eqx.nn.RMSNorm
    config: Config = eqx.field(static=True)

    def __init__(self, config: Config, *, key: PRNGKeyArray):
        """With random parameters. `key` is a `jax.random.key`."""
        ekey, lkey = jr.split(key)
        self.embedding = eqx.nn.Embedding(config.vocab, config.width, key=ekey)
        block = lambda key: Block(config, key=key)
        self.layers = eqx.filter_vmap(block)(jr.split(lkey, config.depth))
        self.norm = eqx.nn.RMSNorm(config.width, eps=config.eps, use_bias=False)
        self.config = config

    def __call__(
        self, tokens: Int[Array, "pos"], start: Start = 0, cache: Cache | None = None
    ) -> Any:
        """**Arguments:**

        - `tokens`: their ids.
        - `start`: the position of the first of them in the text.
        - `cache`: a `Cache` with the keys and values of earlier positions, as made by
            `empty_cache`, or `None` if there are none.

        **Returns:**

        For each token the logits of the next one, of shape `(pos, vocab)`; with a
        cache, a pair of these and the new cache.
        """
        arrays, static = eqx.partition(self.layers, eqx.is_array)

        def step(x, layer):
            arrays, cache = layer
            block = eqx.combine(arrays, static)
            out = block(x, start, cache)
            return (out, None) if cache is None else out

        x = jax.vmap(self.embedding)(tokens)
        x, new = jax.lax.scan(step, x, (arrays, cache))
        logits = jax.vmap(self.norm)(x) @ self.embedding.weight.T
        return logits if cache is None else (logits, new)


def empty_cache(model: Llama, length: int) -> Cache:
    """Room for the keys and values of `length` tokens."""
    config = model.config
    size = config.width // config.heads
    shape = (config.depth, config.kv_heads, length, size)
    zeros = jnp.zeros(shape, model.embedding.weight.dtype)
    return Cache(zeros, zeros)


def generate(
    model: Llama, prompt: Int[Array, "prompt"], new: int
) -> Int[Array, "prompt+new"]:
    """Continues a prompt by `new` tokens, the likeliest one each time.

    A scan over all positions, that of the prompt included: step `i` reads token `i`.
    The last token is only written, so there is one step less than there are tokens.
    """
    length = len(prompt) + new
    given = jnp.concatenate([prompt, jnp.full(new, -1, prompt.dtype)])

    def step(carry, position):
        tokens, cache = carry
        logits, cache = model(tokens[position][None], position, cache)
        written = jnp.argmax(logits[0]).astype(tokens.dtype)
        following = jnp.where(tokens[position + 1] < 0, written, tokens[position + 1])
        return (tokens.at[position + 1].set(following), cache), None

    carry = (given, empty_cache(model, length - 1))
    (tokens, _), _ = jax.lax.scan(step, carry, jnp.arange(length - 1))
    return tokens
