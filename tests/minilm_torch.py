"""MiniLM in plain PyTorch, and what PyTorch's own hooks record of it."""

import dataclasses
from typing import Any

import torch
from minilm import EPS, HEADS, HIDDEN, INNER, LAYERS, POSITIONS, TYPES, WORDS
from torch import nn


class Embeddings(nn.Module):
    def __init__(self):
        super().__init__()
        self.word_embeddings = nn.Embedding(WORDS, HIDDEN)
        self.position_embeddings = nn.Embedding(POSITIONS, HIDDEN)
        self.token_type_embeddings = nn.Embedding(TYPES, HIDDEN)
        self.LayerNorm = nn.LayerNorm(HIDDEN, eps=EPS)

    def forward(self, ids, types):
        words = self.word_embeddings(ids)
        # One row for all sentences, as in Hugging Face's BERT.
        positions = self.position_embeddings(
            torch.arange(ids.shape[-1], dtype=ids.dtype)
        )
        types = self.token_type_embeddings(types)
        return self.LayerNorm(words + types + positions)


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(HIDDEN, HIDDEN)
        self.key = nn.Linear(HIDDEN, HIDDEN)
        self.value = nn.Linear(HIDDEN, HIDDEN)
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x, mask):
        split = lambda y: y.unflatten(-1, (HEADS, -1)).transpose(-2, -3)
        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        hidden = ~mask[..., None, None, :]
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        return (self.softmax(scores) @ v).transpose(-2, -3).flatten(-2)


class Output(nn.Module):
    def __init__(self, in_size):
        super().__init__()
        self.dense = nn.Linear(in_size, HIDDEN)
        self.LayerNorm = nn.LayerNorm(HIDDEN, eps=EPS)

    def forward(self, x, residual):
        return self.LayerNorm(self.dense(x) + residual)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.self = SelfAttention()
        self.output = Output(HIDDEN)

    def forward(self, x, mask):
        return self.output(self.self(x, mask), x)


class Intermediate(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(HIDDEN, INNER)
        self.intermediate_act_fn = nn.GELU()

    def forward(self, x):
        return self.intermediate_act_fn(self.dense(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.intermediate = Intermediate()
        self.output = Output(INNER)

    def forward(self, x, mask):
        x = self.attention(x, mask)
        return self.output(self.intermediate(x), x)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x, mask):
        for layer in self.layer:
            x = layer(x, mask)
        return x


class Pooler(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(HIDDEN, HIDDEN)
        self.activation = nn.Tanh()

    def forward(self, x):
        return self.activation(self.dense(x[..., 0, :]))


class MiniLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = Embeddings()
        self.encoder = Encoder()
        self.pooler = Pooler()

    def forward(self, ids, types, mask):
        x = self.encoder(self.embeddings(ids, types), mask)
        return x, self.pooler(x)


def load(arrays):
    """MiniLM with the arrays of the checkpoint."""
    with torch.device("meta"):
        model = MiniLM()
    # Copies: the gradient of one model must not meet the arrays of another.
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    model.load_state_dict(tensors, strict=True, assign=True)
    return model.eval()


@dataclasses.dataclass
class Record:
    """What hooks recorded, by the names of modules, in the order of execution."""

    outputs: dict[str, Any] = dataclasses.field(default_factory=dict)
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    cotangents: dict[str, Any] = dataclasses.field(default_factory=dict)
    argument_cotangents: dict[str, Any] = dataclasses.field(default_factory=dict)
    grads: dict[str, Any] = dataclasses.field(default_factory=dict)


def numpy(value):
    """A copy of a tensor, or of several."""
    if isinstance(value, tuple):
        return tuple(map(numpy, value))
    return None if value is None else value.detach().clone().numpy()


def record(model, batch, **edits):
    """Runs model and loss with hooks on every module that has a `forward`.

    Each edit is a dict from names to functions. They act before the hooks that record.

    - `outputs`: what a module returned (forward hooks).
    - `arguments`: what it is called with (forward pre hooks).
    - `cotangents`: those of the output (tensor hooks, put on by forward hooks).
    - `argument_cotangents`: those of the arguments (full backward hooks).
    """
    made = Record()
    handles = []

    def hook_module(name, module):
        edit = {kind: edits.get(kind, {}).get(name) for kind in vars(made)}

        def before(_, args):
            args = edit["arguments"](args) if edit["arguments"] else args
            made.arguments[name] = numpy(args)
            return args

        def after(_, args, out):
            out = edit["outputs"](out) if edit["outputs"] else out
            made.outputs[name] = numpy(out)
            if isinstance(out, torch.Tensor):
                if edit["cotangents"]:
                    out.register_hook(edit["cotangents"])
                out.register_hook(keep)
            return out

        def keep(cotangent):
            made.cotangents[name] = numpy(cotangent)

        def backward(_, cotangents, __):
            change = edit["argument_cotangents"]
            cotangents = change(cotangents) if change else cotangents
            made.argument_cotangents[name] = tuple(
                # PyTorch makes zeros up for a mask.
                numpy(x) if x is not None and x.is_floating_point() else None
                for x in cotangents
            )
            return cotangents

        handles.append(module.register_forward_pre_hook(before))
        handles.append(module.register_forward_hook(after))
        # Integers have no cotangent; asked for it, PyTorch warns.
        if not isinstance(module, nn.Embedding | Embeddings | MiniLM):
            handles.append(module.register_full_backward_hook(backward))

    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList):
            hook_module(name or ".", module)
    model.zero_grad()
    x, pooled = model(*map(torch.tensor, batch))
    loss = x.sin().sum() + pooled.sin().sum()
    loss.backward()
    for handle in handles:
        handle.remove()
    made.loss = (10 * x).sin().sum() + (10 * pooled).sin().sum()
    made.grads = {name: numpy(p.grad) for name, p in model.named_parameters()}
    return made
