"""Modules that are returned, rebuilt, copied; arguments of any name; and keys that look
like those of further calls.
"""

import copy
import dataclasses
import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from closeness import assert_close
from wrapped import check, linear, same

import peex as px


X = jnp.array([0.5, -1.0])


class Holds(eqx.Module):
    lin: eqx.nn.Linear

    def __call__(self, x):
        return self.lin(x)


class Returns(eqx.Module):
    lin: eqx.nn.Linear
    scale: float = 2.0

    def __call__(self, x):
        return self.lin(x), self, self.lin, [self.lin]


def test_returned_modules_are_plain():
    model = Returns(linear())
    for where in (None, "**", "lin"):
        for wrap in (px.ForwardHook, px.BackwardHook):
            hooked = wrap(model, log_fn=None, where=where)
            out = hooked(X)
            _, self, lin, (again,) = out[0] if wrap is px.ForwardHook else out
            assert type(self) is Returns and type(self.lin) is eqx.nn.Linear
            assert type(lin) is eqx.nn.Linear and type(again) is eqx.nn.Linear
            same(self, model)
            same(lin, model.lin)
            same(again, model.lin)


class Counter(eqx.Module):
    lin: eqx.nn.Linear
    count: jax.Array

    def __call__(self, x):
        new = dataclasses.replace(self, count=self.count + 1)
        return new.lin(x), new

    def rebuilt(self, x):
        new = type(self)(self.lin, self.count + 1)
        return new.lin(x), new

    def tree_at(self, x):
        new = eqx.tree_at(lambda m: m.count, self, self.count + 1)
        return new.lin(x), new

    def cloned(self, x):
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        new = self.__class__(**{**fields, "count": self.count + 1})
        return new.lin(x), new


@pytest.mark.parametrize("method", ["__call__", "rebuilt", "tree_at", "cloned"])
@pytest.mark.parametrize("where", [None, ["lin", "."]])
def test_module_that_rebuilds_itself(method, where):
    model = Counter(linear(), jnp.array(0))
    for _ in range(3):
        (out, model), log = px.ForwardHook(model, where=where, method=method)(X)
        assert type(model) is Counter and type(model.lin) is eqx.nn.Linear
        assert log["lin"].shape == out.shape == (2,)
    assert model.count == 3


def test_rebuilt_module_that_is_called():
    class Outer(eqx.Module):
        inner: Holds

        def __call__(self, x):
            weight = lambda m: m.lin.weight
            doubled = eqx.tree_at(weight, self.inner, replace_fn=lambda w: 2 * w)
            return doubled(x) + self.inner(x)

    keys = ["inner.lin", "inner", "inner.lin#1", "inner#1", "."]
    lin = linear()
    log = check(Outer(Holds(lin)), X, where="**", keys=keys)
    expected = 2 * lin.weight @ X + lin.bias
    assert_close(log["inner.lin"], expected)


@pytest.mark.parametrize("make", [px.ForwardHook, lambda m: px.BackwardHook(m).init(X)])
def test_copies_of_a_wrapper(make, tmp_path):
    hooked = make(Holds(linear()))
    file = tmp_path / "hooked.eqx"
    eqx.tree_serialise_leaves(file, hooked)
    like = jax.tree.map(jnp.zeros_like, hooked)
    copies = [
        copy.copy(hooked),
        copy.deepcopy(hooked),
        pickle.loads(pickle.dumps(hooked)),
        eqx.tree_deserialise_leaves(file, like),
        jax.tree.map(lambda x: x, hooked),
        eqx.combine(*eqx.partition(hooked, eqx.is_array)),
    ]
    for other in copies:
        assert type(other) is type(hooked)
        same(other, hooked)
        same(other(X), hooked(X))


def test_arguments_of_any_name():
    # Those of peex's own functions don't stand in the way.
    net = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    names = ("self", "model", "hooked", "args", "kwargs", "loss")

    class Model(eqx.Module):
        net: eqx.nn.Linear

        def __call__(model, x, **named):
            return model.net(x) + sum(named.values())

    model, x = Model(net), jnp.ones(2)
    # The model's own first parameter is taken.
    named = {name: 1.0 for name in names if name != "model"}
    out, _ = px.ForwardHook(model)(x, **named)
    assert_close(out, net(x) + len(named))
    # (What Equinox makes of a method has a `self`.)
    hooked = px.BackwardHook.init(px.BackwardHook(model), x, **named)
    assert_close(hooked(x, **named), out)

    def loss(m, x, **named):
        return jnp.sum(m(x)) + sum(named.values())

    named = dict.fromkeys(names, 1.0)
    (value, _), _ = px.value_and_grad(loss)(net, x, **named)
    assert_close(value, jnp.sum(net(x)) + len(names))


@pytest.mark.parametrize("out", [jnp.ones(2), 1.0, (1.0, 2, 3)])
def test_a_loss_without_its_aux(out):
    net = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    run = px.value_and_grad(lambda m, x: (m(x), out)[1], has_aux=True)
    with pytest.raises(TypeError, match=r"expects a loss that returns a pair `\(value"):
        run(net, jnp.ones(2))


def test_a_module_that_is_called_as_a_further_call():
    make = lambda i: eqx.nn.Linear(2, 2, key=jax.random.key(i))
    model, x = {"a": make(0), "a#1": make(1)}, jnp.ones(2)
    run = lambda m, x: m["a#1"](m["a"](m["a"](x)))
    _, log = px.ForwardHook(model, method=run)(x)
    first = model["a"](x)
    second = model["a"](first)
    expected = [first, second, model["a#1"](second)]
    assert list(log) == ["a", "a#1", '"a#1"']
    for found, value in zip(log.values(), expected, strict=True):
        assert_close(found, value)
