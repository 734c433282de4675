"""What the tests of dicts share: layers in dicts, and keys that can't be sorted."""

import collections
import enum
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from wrapped import linear


X = jnp.arange(2.0)


class Kind(enum.Enum):
    ONE = 1
    TWO = 2


class Each(eqx.Module):
    """Runs the layers in all of its dicts, in their order."""

    layers: Any

    def __call__(self, x):
        def run(part, x):
            if isinstance(part, dict):
                for value in part.values():
                    x = run(value, x)
                return x
            if isinstance(part, list | tuple):
                for value in part:
                    x = run(value, x)
                return x
            return jnp.tanh(part(x))

        return run(self.layers, x)


def items():
    return [("c", linear(0)), ("a", linear(1)), ("b", linear(2))]


UNSORTED = {
    "enums": lambda x: {Kind.TWO: x, Kind.ONE: 2 * x},
    "mixed": lambda x: {"z": x, 1: 2 * x},
    "default": lambda x: collections.defaultdict(list, {Kind.TWO: x, "a": 2 * x}),
    "nested": lambda x: [({"b": {Kind.TWO: x, 1: 2 * x}}, x)],
}


def arrays_in(node):
    """In the order of the dicts."""
    if isinstance(node, dict):
        return [x for value in node.values() for x in arrays_in(value)]
    if isinstance(node, list | tuple):
        return [x for value in node for x in arrays_in(value)]
    return [node]


def folded(node):
    result = 0.0
    for x in arrays_in(node):
        result = jnp.tanh(x - 2 * result)
    return result
