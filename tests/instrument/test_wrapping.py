"""The wrapped model goes on working as it did, whatever it does with its parts, and
whatever its classes do: a table of models, each of which goes through `wrapped.check`.
"""

from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from parts import Outer
from wrapped import check, linear


X = jnp.array([0.5, -1.0])


# What a parent does with its layers


class Parent(eqx.Module):
    lin: eqx.nn.Linear

    def __call__(self, x):
        return self.lin.weight @ self.lin(x) + self.lin.out_features


class Checks(eqx.Module):
    layers: list[Any]

    def __call__(self, x):
        for layer in self.layers:
            if isinstance(layer, eqx.nn.Linear):
                assert type(layer).__name__ == "Linear"
                x = layer(x)
            elif isinstance(layer, eqx.nn.Lambda):
                x = 2 * layer(x)
            else:
                raise AssertionError
        return x


class Base(eqx.Module):
    lin: eqx.nn.Linear

    def __call__(self, x):
        return self.lin(x)

    @property
    def double(self):
        return 2 * self.lin.bias

    def helper(self, x):
        return self.double + self.lin(x)

    @staticmethod
    def static(x):
        return x + 1

    @classmethod
    def cls(cls, x):
        return x * len(cls.__name__)


class Derived(Base):
    extra: eqx.nn.Linear

    def __call__(self, x):
        x = super().__call__(x)
        x = self.helper(x) + self.static(x) + self.cls(x)
        return self.extra(super().helper(x)) + self.double


class ByClass(eqx.Module):
    lin: eqx.nn.Linear

    def __call__(self, x):
        # `type(lin).__call__` would be the site; the class's own is the plain method.
        return eqx.nn.Linear.__call__(self.lin, x) + self.lin(x)


class Nested(eqx.Module):
    layers: dict[str, Any]

    def __call__(self, x):
        for layer in self.layers["list"]:
            x = layer(x)
        first, (second,) = self.layers["tuple"]
        return second(first(x)) + self.layers["named"].head(x)


class Heads(NamedTuple):
    head: eqx.nn.Linear
    unused: None


class Odd(eqx.Module):
    self: eqx.nn.Linear
    key: eqx.nn.Linear
    model: eqx.nn.Linear
    log: eqx.nn.Linear
    plan: eqx.nn.Linear
    hook_fn: eqx.nn.Linear

    def __init__(this, *layers):
        names = ("self", "key", "model", "log", "plan", "hook_fn")
        for name, layer in zip(names, layers, strict=True):
            setattr(this, name, layer)

    def __call__(this, x):
        for layer in (this.self, this.key, this.model, this.log, this.plan):
            x = layer(x)
        return this.hook_fn(x)


# What its classes do


class Delegates(eqx.Module):
    lin: eqx.nn.Linear

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.lin, name)

    def __call__(self, x):
        return self.weight @ self.lin(x) + self.bias


class Registry(eqx.Module):
    classes: ClassVar[list[type]] = []
    lin: eqx.nn.Linear

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        Registry.classes.append(cls)

    def __call__(self, x):
        return self.lin(x)


class Registered(Registry):
    pass


class Refuses(eqx.Module):
    lin: eqx.nn.Linear

    def __init_subclass__(cls, *, allowed, **kwargs):
        raise TypeError("has no subclasses")

    def __call__(self, x):
        return self.lin(x)


T = TypeVar("T")


class Box(eqx.Module, Generic[T]):
    content: T

    def __call__(self, x):
        return self.content(x)


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


class Slots(eqx.Module):
    lin: eqx.nn.Linear
    inner: eqx.nn.Linear = eqx.field(static=True)

    def __call__(self, x):
        return self.inner.in_features * self.lin(x)


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


class Converts(eqx.Module):
    weight: jax.Array = eqx.field(converter=jnp.asarray)
    missing: Any = eqx.field(init=False)

    def __call__(self, x):
        assert not hasattr(self, "missing")
        return self.weight * x


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


# The table: a name, the model, the keys of its log (or None, if they don't matter), and
# where it is hooked


def nested():
    layers = {
        "list": [linear(0), linear(1)],
        "tuple": (linear(2), (linear(3),)),
        "named": Heads(linear(4), None),
    }
    return Nested(layers)


def derived():
    return Derived(linear(), linear(1))


def unset():
    model = object.__new__(Converts)
    object.__setattr__(model, "weight", jnp.asarray(3.0))
    return Outer(model)


def static():
    return Slots(linear(), jax.tree.map(lambda x: None, linear(9)))


def embeds():
    return Embeds(eqx.nn.Embedding(3, 2, key=jax.random.key(0)), jnp.tanh)


LAYERS = ["layers.0", "layers.1", "layers.2"]
IN_NESTED = ["list.0", "list.1", "tuple.0", "tuple.1.0", "named.head"]
ODD_NAMES = ["self", "key", "model", "log", "plan", "hook_fn"]
THREE = [linear(), eqx.nn.Lambda(jnp.tanh), linear(1)]
ATTENDS = [".:attend", ".:attend#1", "act", ".:attend#2"]

CASES = {
    "read by its parent": (Parent(linear()), ["lin"], None),
    "isinstance": (Checks(THREE), LAYERS, None),
    "super": (derived(), ["lin", "lin#1", "lin#2", "extra"], None),
    "super, all": (derived(), ["lin", "lin#1", "lin#2", "extra", "."], "**"),
    # One call of `inner`, though it calls its parent's `__call__` too.
    "super of a chosen one": (Outer(derived()), ["inner"], "inner"),
    "called through its class": (ByClass(linear()), ["lin"], None),
    "containers": (nested(), [f"layers.{k}" for k in IN_NESTED], None),
    "fields named like ours": (Odd(*map(linear, range(6))), ODD_NAMES, None),
    "__getattr__": (Delegates(linear()), None, None),
    "__getattr__, all": (Delegates(linear()), None, "**"),
    "no subclasses": (Refuses(linear()), ["lin", "."], "**"),
    "generic": (Box[eqx.nn.Linear](linear()), ["content", "."], "**"),
    "generic, by class": (Box(Box(linear())), ["content", "."], Box),
    "__hash__ and __eq__": (Hashes(linear(), "name"), ["lin", "."], "**"),
    "static module": (static(), ["lin"], None),
    "strict": (FinalLayer(linear()), ["lin", "."], "**"),
    "field never set": (unset(), ["inner"], None),
    "bound methods": (embeds(), ATTENDS, [".:attend", "act"]),
    "function": (embeds(), ["act"], "act"),
}


@pytest.mark.parametrize(("model", "keys", "where"), CASES.values(), ids=CASES)
def test_goes_on_working(model, keys, where):
    check(model, X, keys=keys, where=where)


def test_no_subclass_is_registered():
    check(Registered(linear()), X, where="**", keys=["lin", "."])
    assert Registry.classes == [Registered]
