"""What a hook doesn't change stays the very object: containers, their order, arrays."""

import collections

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from parts import Outer, Returning, Whole
from twin_case import linear

import peex as px


X = jnp.arange(3.0)
LOGS = {
    "post": dict(where="part"),
    "pre": dict(where="part", pre_hook=True),
    "kwargs": dict(where="part", pre_hook=True, with_kwargs=True),
}


def in_order(values):
    first, second = values
    return first - 2 * second


ORDERED = {
    "dict": lambda x: {"z": x, "a": -x},
    "default": lambda x: collections.defaultdict(list, {"z": x, "a": -x}),
    "nested": lambda x: ({"z": {"y": x, "b": -x}, "a": [x]},),
    "ordered": lambda x: collections.OrderedDict([("z", x), ("a", -x)]),
}


def order(value):
    """Keys and values of dicts, in order, all the way down."""
    if isinstance(value, dict):
        return [(key, order(v)) for key, v in value.items()], type(value)
    if isinstance(value, list | tuple):
        return [order(v) for v in value], type(value)
    return np.asarray(value).tolist()


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("hook", [None, px.ScaleHook(1.0), px.AddHook(jnp.zeros(3))])
@pytest.mark.parametrize("name", ORDERED)
def test_dicts_keep_their_order(name, hook, jit):
    seen = []

    def run(part, x):
        out = part(x)
        seen.append(jax.tree.map(lambda x: x, out) if jit else out)
        seen.append(order(out) if not jit else list(_first_dict(out)))
        return jax.tree.leaves(out)[0]

    model = Whole(Returning(ORDERED[name]), run)
    wrap = eqx.filter_jit if jit else lambda f: f
    wrap(model)(X)
    wrap(px.ForwardHook(model, hook, where="part"))(X)
    wrap(px.BackwardHook(model, hook, None, where="part"))(X)
    assert seen[1] == seen[3] == seen[5]


def _first_dict(value):
    return value if isinstance(value, dict) else value[0]["z"]


@pytest.mark.parametrize("hook", [None, lambda x: x, px.ScaleHook(1.0)])
@pytest.mark.parametrize("how", ["pre", "kwargs"])
def test_arguments_keep_their_order(how, hook):
    seen = []

    def make(d, **kwargs):
        seen.append((list(d), list(kwargs)))
        return in_order(d.values()) + in_order(kwargs.values())

    model = Whole(Returning(make), lambda part, x: part({"z": x, "a": -x}, q=x, b=-x))
    expected = model(X)
    for wrapper in (px.ForwardHook, px.BackwardHook):
        out = wrapper(model, hook, None, **LOGS[how])(X)
        out = out[0] if wrapper is px.ForwardHook else out
        np.testing.assert_array_equal(out, expected)
    assert seen == [(["z", "a"], ["q", "b"])] * 3


@pytest.mark.parametrize("hook", [None, px.IdentityHook(), lambda x: x])
@pytest.mark.parametrize("how", LOGS)
@pytest.mark.parametrize("staged", [False, True], ids=["open", "scan"])
def test_logging_hands_the_very_containers_on(how, hook, staged):
    same = []

    def run(part, x):
        cache = {"keys": [], "kept": [x]}
        alias = cache["keys"]

        def step(x, _):
            out = part(x, cache=cache)
            same.append(out[1] is cache and out[1]["keys"] is alias)
            return out[0], None

        if staged:
            return lax.scan(step, x, length=1)[0]
        for _ in range(2):
            x, _ = step(x, None)
        return x * len(cache["keys"])

    def make(x, cache):
        cache["keys"].append(x if not staged else None)
        return x + 1, cache

    model = Whole(Returning(make), run)
    expected = model(X)
    for _ in range(2):
        out, _ = px.ForwardHook(model, hook, **LOGS[how])(X)
        np.testing.assert_array_equal(out, expected)
    assert all(same)


def test_a_list_of_the_caller_is_appended_to():
    class Cached(eqx.Module):
        layer: eqx.nn.Linear

        def __call__(self, x, cache):
            cache.append(self.layer(x))
            return cache[-1]

    model = Cached(linear(3, 3, 0))
    for where in (".", "layer", "**"):
        for pre in (False, True):
            cache: list = []
            hooked = px.ForwardHook(model, where=where, pre_hook=pre)
            for n in (1, 2, 3):
                hooked(X, cache)
                assert len(cache) == n


def in_the_open(f):
    return f


@pytest.mark.parametrize("how", ["post", "pre"])
@pytest.mark.parametrize("wrap", [in_the_open, eqx.filter_checkpoint, eqx.filter_jit])
def test_one_array_twice_stays_one(wrap, how):
    seen = []

    def make(q, k):
        seen.append(q is k)
        return (q, k)

    def run(part, x):
        out = wrap(lambda part, x: part(x, x))(part, x)
        seen.append(out[0] is out[1])
        return out[0]

    model = Whole(Returning(make), run)
    model(X)
    expected = list(seen)
    for hook in (None, px.ScaleHook(2.0), px.AddHook(1.0), px.ZeroHook()):
        seen.clear()
        px.ForwardHook(model, hook, **LOGS[how])(X)
        # A compiled function returns each of its results anew.
        upto = 2 if hook is None or wrap is in_the_open else 1
        assert seen[:upto] == expected[:upto]
    seen.clear()
    px.BackwardHook(model, px.ScaleHook(2.0), None, **LOGS[how])(X)
    assert seen[:1] == expected[:1]


class Branchy(eqx.Module):
    """Another program where its arguments are one array; another layer, too."""

    same: eqx.nn.Linear
    other: eqx.nn.Linear

    def __call__(self, q, k):
        return self.same(q) if q is k else self.other(q) + k


def test_init_and_report_see_one_array_twice_as_the_call_does():
    model = Branchy(linear(3, 3, 0), linear(3, 3, 1))
    assert list(px.ForwardHook(model)(X, X)[1]) == ["same"]
    hooked = px.BackwardHook(model).init(X, X)
    assert list(hooked.log) == ["same"]
    hooked(X, X)
    assert list(px.BackwardHook(model).init(X, X + 1).log) == ["other"]
    assert list(px.report(model, X, X)) == ["same"]
    assert list(px.report(model, X, X + 1)) == ["other"]


class Tied(eqx.Module):
    shared: eqx.nn.Shared

    def __init__(self):
        key = jax.random.key(0)
        embedding = eqx.nn.Embedding(3, 3, key=key)
        head = eqx.nn.Linear(3, 3, use_bias=False, key=key)
        where = lambda pair: pair[1].weight
        get = lambda pair: pair[0].weight
        self.shared = eqx.nn.Shared((embedding, head), where, get)

    def __call__(self, i):
        embedding, head = self.shared()
        x = embedding(i)
        return head(x) if embedding.weight is head.weight else x


def test_tied_weights_are_one_array_in_init_and_report():
    model, i = Tied(), jnp.array(1)
    keys = list(px.ForwardHook(model, where="**")(i)[1])
    assert any("1" in key.split(".") for key in keys)  # the head ran
    assert list(px.BackwardHook(model, where="**").init(i).log) == keys
    assert set(px.report(model, i, where="**")) == set(keys)


class Distribution:
    """As there are in libraries: of its attributes those are children that are arrays,
    and all others static.
    """

    def __init__(self, **attributes):
        self.attributes = attributes


def _flatten(distribution):
    items = distribution.attributes.items()
    children = {k: v for k, v in items if isinstance(v, jax.Array)}
    static = tuple((k, v) for k, v in items if k not in children)
    return tuple(children.values()), (tuple(children), static)


def _unflatten(aux, children):
    names, static = aux
    return Distribution(**dict(zip(names, children, strict=True)), **dict(static))


jax.tree_util.register_pytree_node(Distribution, _flatten, _unflatten)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_containers_that_keep_what_is_no_array_to_themselves(jit):
    class Actor(eqx.Module):
        scale: jax.Array

        def __call__(self, x):
            return Distribution(mean=self.scale * x, name="normal", scale=self.scale)

    def run(hook):
        hooked = px.ForwardHook(Outer(Actor(jnp.array(2.0))), hook, where="**")
        out, log = hooked(jnp.arange(3.0))
        return out.attributes["mean"], log["inner"].attributes

    run = eqx.filter_jit(run) if jit else run
    for hook in (None, px.ScaleHook(2.0)):
        mean, logged = run(hook)
        np.testing.assert_array_equal(
            mean, jnp.arange(3.0) * (2 if hook is None else 8)
        )
        assert logged["name"] == "normal" and logged["scale"] == (2 if not hook else 4)
    report = px.report(Outer(Actor(jnp.array(2.0))), jnp.ones(3), where="**")
    assert list(report.entries) == ["inner", "."]
