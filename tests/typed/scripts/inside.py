"""Values inside of a forward pass, arguments, methods."""

import equinox as eqx
import jax
import jax.numpy as jnp

import peex as px


class Block(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    embedding: eqx.nn.Embedding

    def __init__(self, key: jax.Array):
        self.attention = eqx.nn.MultiheadAttention(2, 8, key=key)
        self.embedding = eqx.nn.Embedding(5, 8, key=key)

    def encode(self, tokens: jax.Array) -> jax.Array:
        xs = px.probe(jax.vmap(self.embedding)(tokens), "embedded")
        return self.attention(xs, xs, xs)


model = Block(jax.random.key(0))
tokens = jnp.arange(3)
hooked = px.ForwardHook(model, where="attention/softmax", method="encode")
_, log = hooked(tokens)
print(log["attention/softmax"].shape)
_, log = px.ForwardHook(model, method="encode")(tokens)
print(log[".:encode/embedded"] if ".:encode/embedded" in log else list(log))
inputs = px.ForwardHook(
    model, where="attention", pre_hook=True, with_kwargs=True, method=Block.encode
)
_, log = inputs(tokens)
args, kwargs = log["attention"]
print(args[0].shape, kwargs)
