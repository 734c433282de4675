"""Several choices of sites in one wrapper: their names, and which are first."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import parts
import pytest

import peex as px
from peex.patching.groups import Times, together


KEY = jax.random.key(0)
MODEL = parts.Seq(
    [
        parts.Chain(eqx.nn.Linear(3, 3, key=KEY)),
        parts.Pair(eqx.nn.Linear(3, 3, key=KEY), eqx.nn.Linear(3, 3, key=KEY)),
        eqx.nn.Linear(3, 3, key=KEY),
    ]
)
X = jnp.ones(3)


@pytest.mark.parametrize(
    "where",
    [
        None,
        "parts.*",
        "**",
        ["parts.0.cell", "parts.1.*:in"],
        "parts.0.cell#1",
        ["parts.0.cell#1", "parts.0.cell"],
        "parts.1/tanh",
        "parts.0/tanh#1",
        lambda m: [m.parts[2], m.parts[1].first],
        eqx.nn.Linear,
        {"cell": "parts.0.cell"},
        {"cell": "parts.0.cell:in", "second": "parts.0.cell#1"},
        {"one": "parts.*.first", "other": "parts.2:in"},
        {"linear": eqx.nn.Linear},
        {"act": "parts.0/tanh", "other": "parts.1/tanh"},
        {"last": "parts.0/tanh#2"},
        {"any": "parts.0/*"},
        {"whole": ".", "given": ".:in"},
    ],
    ids=range(18),
)
def test_names_are_those_of_a_wrapper_alone(where):
    _, expected = px.ForwardHook(MODEL, where=where)(X)
    logging, groups = together(
        MODEL, "__call__", {"a": where, "b": ["parts.*", "parts.1/tanh"]}
    )
    _, log = logging(X)
    names = groups["a"].names(log)
    assert list(names.values()) == list(expected)
    for key, name in names.items():
        np.testing.assert_array_equal(log[key], expected[name])


def test_two_names_for_one_site():
    where = {"act": "parts.0/tanh", "last": "parts.0/tanh#2"}
    logging, groups = together(MODEL, "__call__", {"a": where})
    match = "^'act/tanh#2' and 'last' are names of one site, 'parts.0/tanh#2'. Give it"
    with pytest.raises(TypeError, match=match):
        groups["a"].names(logging(X)[1])


def test_stacked_layers_have_one_name():
    def run(model, x):
        stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *model)
        return jax.lax.scan(lambda x, layer: (layer(x), None), x, stacked)[0]

    model = [eqx.nn.Linear(3, 3, key=KEY) for _ in range(2)]
    logging, groups = together(model, run, {"a": ["0", "1"]})
    shapes = eqx.filter_eval_shape(logging, X)[1]
    assert list(groups["a"].names(shapes)) == list(shapes) == ["*"]


class Cells(eqx.Module):
    a: eqx.nn.Identity
    b: eqx.nn.Identity
    c: eqx.nn.Identity
    d: eqx.nn.Identity
    e: eqx.nn.Identity

    def __init__(self):
        self.a, self.b, self.c, self.d, self.e = (eqx.nn.Identity() for _ in range(5))


def nested(cells, x):
    """A loop with a loop in it, and another one after it."""

    def inner(x, _):
        return cells.b(x), None

    def outer(x, _):
        x = cells.a(x)
        x, _ = jax.lax.scan(inner, x, length=2)
        return cells.c(x), None

    def other(x, _):
        return cells.d(x), None

    x, _ = jax.lax.scan(outer, x, length=3)
    x, _ = jax.lax.scan(other, x, length=2)
    return cells.e(x)


def events():
    """The calls of sites in order, each with its step over all loops around it."""
    steps = dict.fromkeys("abcde", 0)
    order = []

    def call(site):
        order.append((site, steps[site]))
        steps[site] += 1

    for _ in range(3):
        for site in "abbc":
            call(site)
    for site in "dde":
        call(site)
    return order


def test_order_of_calls_in_loops():
    logging, _ = together(Cells(), nested, {"a": "*"})
    times = Times(eqx.filter_eval_shape(logging, X)[1])
    order = events()
    for first, second in itertools.product("abcde", repeat=2):
        before = times.before(first, second)
        for i, j in np.ndindex(before.shape):
            expected = order.index((first, i)) < order.index((second, j))
            assert before[i, j] == expected, (first, i, second, j)


def test_order_of_further_calls():
    logging, _ = together(MODEL, "__call__", {"a": ["parts.0.cell", "parts.0.cell:in"]})
    times = Times(eqx.filter_eval_shape(logging, X)[1])
    assert times.before("parts.0.cell:in#1", "parts.0.cell#1").item()
    assert times.before("parts.0.cell", "parts.0.cell:in#1").item()
    assert not times.before("parts.0.cell#2", "parts.0.cell:in#1").item()
    assert not times.before("parts.0.cell", "parts.0.cell").item()
