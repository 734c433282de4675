"""The wrapped model goes on working as it did, whatever its classes do."""

from typing import Any, ClassVar, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from wrapped import check, linear


X = jnp.array([0.5, -1.0])


class Delegates(eqx.Module):
    lin: eqx.nn.Linear

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.lin, name)

    def __call__(self, x):
        return self.weight @ self.lin(x) + self.bias


@pytest.mark.parametrize("where", [None, "**"])
def test_getattr_delegation(where):
    check(Delegates(linear()), X, where=where)


class Registry(eqx.Module):
    classes: ClassVar[list[type]] = []
    lin: eqx.nn.Linear

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        Registry.classes.append(cls)

    def __call__(self, x):
        return self.lin(x)


class Refuses(eqx.Module):
    lin: eqx.nn.Linear

    def __init_subclass__(cls, *, allowed, **kwargs):
        raise TypeError("has no subclasses")

    def __call__(self, x):
        return self.lin(x)


class Registered(Registry):
    pass


def test_init_subclass():
    check(Registered(linear()), X, where="**", keys=["lin", "."])
    assert Registry.classes == [Registered]
    check(Refuses(linear()), X, where="**", keys=["lin", "."])


T = TypeVar("T")


class Box(eqx.Module, Generic[T]):
    content: T

    def __call__(self, x):
        return self.content(x)


def test_generic():
    check(Box[eqx.nn.Linear](linear()), X, where="**", keys=["content", "."])
    check(Box(Box(linear())), X, where=Box, keys=["content", "."])


class Hashes(eqx.Module):
    lin: eqx.nn.Linear
    name: str = eqx.field(static=True)

    def __hash__(self):
        return hash(self.name)

    def __eq__(self, other):
        return isinstance(other, Hashes) and self.name == other.name

    def __call__(self, x):
        table = {self: 3.0}
        assert (self == self) is True and (self != self) is False
        return table[self] * self.lin(x) + len({self, self})


def test_custom_hash_and_eq():
    check(Hashes(linear(), "name"), X, where="**", keys=["lin", "."])


class Slots(eqx.Module):
    lin: eqx.nn.Linear
    inner: eqx.nn.Linear = eqx.field(static=True)

    def __call__(self, x):
        return self.inner.in_features * self.lin(x)


def test_modules_in_static_fields_are_left_alone():
    inner = eqx.nn.Linear(2, 2, key=jax.random.key(9))
    static = jax.tree.map(lambda x: None, inner)
    check(Slots(linear(), static), X, keys=["lin"])


class AbstractLayer(eqx.Module):
    lin: eqx.AbstractVar[eqx.nn.Linear]
    checked: eqx.AbstractClassVar[bool]

    def __call__(self, x):
        return self.lin(x)


class FinalLayer(AbstractLayer, strict=True):
    lin: eqx.nn.Linear
    checked: ClassVar[bool] = True

    def __check_init__(self):
        if not isinstance(self.lin, eqx.nn.Linear):
            raise ValueError("lin")


def test_strict_modules_and_check_init():
    check(FinalLayer(linear()), X, where="**", keys=["lin", "."])


class Converts(eqx.Module):
    weight: jax.Array = eqx.field(converter=jnp.asarray)
    missing: Any = eqx.field(init=False)

    def __call__(self, x):
        assert not hasattr(self, "missing")
        return self.weight * x


def test_converters_and_fields_never_set():
    model = object.__new__(Converts)
    object.__setattr__(model, "weight", jnp.asarray(3.0))
    check(Box(model), X, keys=["content"])


class Embeds(eqx.Module):
    embed: eqx.nn.Embedding
    act: Any

    def attend(self, x):
        return self.embed.weight @ x

    def __call__(self, x):
        # Equinox's bound methods are pytrees, and can be jitted and mapped.
        y = eqx.filter_jit(self.attend)(x)
        ys = eqx.filter_vmap(self.attend)(jnp.stack([x, 2 * x]))
        zs = jax.jit(self.act)(y)
        return eqx.filter_checkpoint(self.attend)(x) + zs + jnp.sum(ys, 0)


def test_bound_methods_and_functions_under_transformations():
    model = Embeds(eqx.nn.Embedding(3, 2, key=jax.random.key(0)), jnp.tanh)
    keys = [".:attend", ".:attend#1", "act", ".:attend#2"]
    check(model, X, where=[".:attend", "act"], keys=keys)
    check(model, X, where="act", keys=["act"])
