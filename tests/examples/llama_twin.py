"""The Llama of `examples/llama.py`, by hand in NumPy: one head and one token after the
other, in float64, on arrays that are named and ordered as in a GGUF file.
"""

import numpy as np


def random_arrays(config, rng):
    """As a file would have them, with the matrices as `(out, in)`."""
    kv_width = config.width // config.heads * config.kv_heads
    matrices = {
        "attn_q": (config.width, config.width),
        "attn_k": (kv_width, config.width),
        "attn_v": (kv_width, config.width),
        "attn_output": (config.width, config.width),
        "ffn_gate": (config.hidden, config.width),
        "ffn_up": (config.hidden, config.width),
        "ffn_down": (config.width, config.hidden),
    }
    norm = lambda: rng.uniform(0.5, 1.5, config.width)
    arrays = {
        "token_embd.weight": rng.normal(size=(config.vocab, config.width)),
        "output_norm.weight": norm(),
    }
    for i in range(config.depth):
        for name in ("attn_norm", "ffn_norm"):
            arrays[f"blk.{i}.{name}.weight"] = norm()
        for name, shape in matrices.items():
            arrays[f"blk.{i}.{name}.weight"] = rng.normal(size=shape) * 0.8
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def turned(vector, position, theta):
    """Neighbouring features are a pair: that is how llama.cpp has them."""
    size = len(vector)
    new = np.empty(size)
    for i in range(size // 2):
        angle = position * theta ** (-2 * i / size)
        x, y = vector[2 * i], vector[2 * i + 1]
        new[2 * i] = x * np.cos(angle) - y * np.sin(angle)
        new[2 * i + 1] = x * np.sin(angle) + y * np.cos(angle)
    return new


def normed(x, weight, eps):
    return x / np.sqrt(np.mean(x**2) + eps) * weight


def attention(config, w, given):
    """What the last of the tokens gets from those up to it."""
    size = config.width // config.heads
    heads = lambda name: [(w(name) @ x).reshape(-1, size) for x in given]
    here, shared = len(given) - 1, config.heads // config.kv_heads
    queries, keys, values = heads("attn_q")[-1], heads("attn_k"), heads("attn_v")
    out = []
    for head in range(config.heads):
        query = turned(queries[head], here, config.theta)
        scores = [
            query @ turned(key[head // shared], position, config.theta) / np.sqrt(size)
            for position, key in enumerate(keys)
        ]
        weights = np.exp(scores) / np.sum(np.exp(scores))
        mine = [value[head // shared] for value in values]
        out.append(np.sum(weights[:, None] * mine, axis=0))
    return w("attn_output") @ np.concatenate(out)


def mlp(w, x):
    gate = w("ffn_gate") @ x
    return w("ffn_down") @ (gate / (1 + np.exp(-gate)) * (w("ffn_up") @ x))


def logits(config, arrays, tokens):
    arrays = {name: array.astype(np.float64) for name, array in arrays.items()}
    stream = [arrays["token_embd.weight"][token] for token in tokens]
    for i in range(config.depth):
        w = lambda name, i=i: arrays[f"blk.{i}.{name}.weight"]
        given = [normed(x, w("attn_norm"), config.eps) for x in stream]
        for position, x in enumerate(stream):
            x = x + attention(config, w, given[: position + 1])
            stream[position] = x + mlp(w, normed(x, w("ffn_norm"), config.eps))
    out = [normed(x, arrays["output_norm.weight"], config.eps) for x in stream]
    return np.stack(out) @ arrays["token_embd.weight"].T
