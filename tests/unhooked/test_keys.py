"""Every key that is listed can be given back; one call of a layer can be chosen; and
what was asked for and isn't there is an error.
"""

import collections
import dataclasses
import functools as ft
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close
from jax import lax
from parts import Half
from twin_case import linear

import peex as px


X = jnp.arange(3.0)


def chain(model, x):
    """All layers, in the order of the pytree."""
    is_layer = lambda m: isinstance(m, eqx.nn.Linear)
    for layer in jax.tree.leaves(model, is_leaf=is_layer):
        x = layer(x)
    return x


def layers(n):
    return [linear(3, 3, i) for i in range(n)]


class WithMethod(eqx.Module):
    layer: eqx.nn.Linear

    def q(self, x):
        return self.layer(x)

    def __call__(self, x):
        return self.q(x)


DICTS = {
    "dots": lambda a, b: {"a.b": a, "a": {"b": b}},
    "brackets": lambda a, b: {"conv[0]": a, "conv0": b},
    "colon": lambda a, b: {"p:q": a, "p": {"q": b}},
    "stars": lambda a, b: {"a*": a, "ab": b},
    "slash": lambda a, b: {"a/tanh": a, "a": b},
    "number": lambda a, b: {"a": b, "a#1": a},
    "empty": lambda a, b: {"": a, "a.": b},
    "types": lambda a, b: ({1: a}, {"1": b}),
    "odd": lambda a, b: {"a b": a, '"q"': b},
}


@pytest.mark.parametrize("name", DICTS)
def test_a_listed_key_can_be_given_back(name):
    model = DICTS[name](*layers(2))
    _, log = px.ForwardHook(model, method=chain)(X)
    assert len(log) == 2
    for key in log:
        _, one = px.ForwardHook(model, where=key, method=chain)(X)
        assert list(one) == [key]
        assert_close(one[key], log[key])
        hooks = {key: px.ZeroHook()}
        _, zeroed = px.ForwardHook(model, hooks, where=[key], method=chain)(X)
        np.testing.assert_array_equal(zeroed[key], jnp.zeros(3))
        assert key in px.sites(model) and key in px.report(model, X, method=chain)
    _, both = px.ForwardHook(model, where=list(log), method=chain)(X)
    assert list(both) == list(log)


def test_keys_with_dots_are_paths_where_nothing_else_is_there():
    a, b = layers(2)
    model = {"encoder.layer.0": a, "encoder.layer.1": b}
    _, log = px.ForwardHook(model, where="encoder.*.1", method=chain)(X)
    assert list(log) == ["encoder.layer.1"]


class Reused(eqx.Module):
    l: eqx.nn.Linear
    other: eqx.nn.Linear

    def __call__(self, x):
        for _ in range(3):
            x = jnp.tanh(self.l(x))
        return self.other(x)


def values(model, x, hook=lambda i, y: y):
    out = []
    for i in range(3):
        out.append(hook(i, model.l(x)))
        x = jnp.tanh(out[-1])
    return [*out, model.other(x)]


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_one_call_of_a_reused_layer(jit):
    model = Reused(*layers(2))
    wrap = eqx.filter_jit if jit else lambda f: f
    plain = values(model, X)
    for where in ("l#1", ["l#1"], ["l#1", "l#2"], ["l", "l#1"], ["l#2", "other"]):
        _, log = wrap(px.ForwardHook(model, where=where))(X)
        keys = [where] if isinstance(where, str) else where
        keys = ["l", "l#1", "l#2"] if "l" in keys else keys
        assert list(log) == keys
        named = dict(zip(["l", "l#1", "l#2", "other"], plain, strict=True))
        for key in keys:
            assert_close(log[key], named[key])
    for hook, f in (
        (px.AddHook(jnp.ones(3)), lambda y: y + 1),
        (lambda y: 2 * y, lambda y: 2 * y),
    ):
        out, log = wrap(px.ForwardHook(model, hook, where="l#1"))(X)
        expected = values(model, X, lambda i, y, f=f: f(y) if i == 1 else y)
        assert_close(out, expected[-1], rtol=1e-5)
        assert_close(log["l#1"], expected[1], rtol=1e-5)
    hooks = {"l#2": px.ZeroHook(), "l#1": lambda y: y + 1}
    out, _ = wrap(px.ForwardHook(model, hooks, None, where=["l#1", "l#2"]))(X)
    f = lambda i, y: [y, y + 1, 0 * y][i]
    assert_close(out, values(model, X, f)[-1], rtol=1e-5)


def test_patching_one_call():
    model = Reused(*layers(2))
    clean = values(model, X)
    for keys in (["l#1"], ["l#2", "other"], ["l", "l#1", "l#2", "other"]):
        _, log = px.ForwardHook(model, where=keys)(X)
        assert list(log) == keys
        patched = px.ForwardHook(model, px.PatchHook(log), where=list(log))
        out, found = patched(-X)
        names = ["l", "l#1", "l#2", "other"]
        place = {name: i for i, name in enumerate(names)}
        f = lambda i, y, keys=keys, names=names: clean[i] if names[i] in keys else y
        expected = values(model, -X, f)
        if "other" in keys:
            expected[3] = clean[3]
        assert_close(out, expected[-1])
        for key in keys:
            assert_close(found[key], expected[place[key]])


def test_the_cotangent_of_one_call():
    model = Reused(*layers(2))
    full = px.BackwardHook(model).init(X)
    one = px.BackwardHook(model, where=["l#1"]).init(X)
    grad = eqx.filter_grad(lambda h, x: jnp.sum(jnp.sin(h(x))))
    expected, found = grad(full, X), grad(one, X)
    assert list(found.log) == ["l#1"]
    assert_close(found.log["l#1"], expected.log["l#1"])
    assert_close(found.model, expected.model)
    scaled = px.BackwardHook(model, px.ScaleHook(2.0), None, where="l#1")

    def twice(m, x):
        @jax.custom_vjp
        def double(y):
            return y

        double.defvjp(lambda y: (y, None), lambda _, c: (2 * c,))
        return values(m, x, lambda i, y: double(y) if i == 1 else y)[-1]

    expected = eqx.filter_grad(lambda m, x: jnp.sum(jnp.sin(twice(m, x))))(model, X)
    assert_close(grad(scaled, X).model, expected, rtol=1e-5)


def test_one_call_in_a_report_and_one_that_never_comes():
    model = Reused(*layers(2))
    assert list(px.report(model, X, where="l#1")) == ["l#1"]
    with pytest.raises(px.SiteNotFiredError, match=r"where='l#3'.*'l' ran 3 times"):
        px.ForwardHook(model, where="l#3")(X)
    with pytest.raises(px.SiteNotFiredError, match=r"where='l#3'"):
        px.BackwardHook(model, where="l#3").init(X)


#
# Values that JAX doesn't see into.
#


@dataclasses.dataclass
class Plain:
    y: jax.Array


class SubDict(dict):
    pass


CONTAINERS = {
    "Plain": Plain,
    "SimpleNamespace": lambda y: types.SimpleNamespace(y=y),
    "SubDict": lambda y: SubDict(y=y),
    "deque": lambda y: collections.deque([y]),
}


class Packing(eqx.Module):
    layer: eqx.nn.Linear
    name: str = eqx.field(static=True)

    def __call__(self, x):
        return CONTAINERS[self.name](self.layer(x))


class Unpacking(eqx.Module):
    part: Packing

    def __call__(self, x):
        packed = self.part(x)
        return getattr(packed, "y", None) if hasattr(packed, "y") else x


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_that_is_no_pytree(name):
    model = Unpacking(Packing(linear(3, 3, 0), name))
    match = f"'part' ran.*holds a {name}, which isn't a pytree.*Register the type"
    for kwargs in (dict(where="part"), dict(where="**"), dict(where=Packing)):
        with pytest.raises(px.SiteLostError, match=match):
            px.ForwardHook(model, **kwargs)(X)
    with pytest.raises(px.SiteLostError, match=match):
        px.BackwardHook(model, where="part").init(X)
    report = px.report(model, X, where="**")
    assert "isn't a pytree" in report.missing["part"].why
    # By default only leaf modules are sites, here one with an array.
    assert list(px.ForwardHook(model)(X)[1]) == ["part.layer"]


#
# Patterns that never fire, models without a module.
#


def test_a_pattern_of_a_dict_that_never_fires():
    model = Half(*layers(2))
    for kwargs in (
        dict(hook_fn={"unused": px.ZeroHook()}),
        dict(log_fn={"used": px.IdentityLog(), "unused": px.NormLog()}),
    ):
        (what,) = kwargs
        match = f"pattern 'unused' of `{what}` chooses sites, but none ran"
        with pytest.raises(px.SiteNotFiredError, match=match):
            px.ForwardHook(model, **kwargs)(X)
        with pytest.raises(px.SiteNotFiredError, match=match):
            px.BackwardHook(model, **kwargs).init(X)
    # `None` is nothing, and another pattern may have what this one matches, too.
    px.ForwardHook(model, {"unused": None, "*": px.ZeroHook()})(X)
    px.ForwardHook(model, {"u*": px.ZeroHook(), "unused": px.ZeroHook()})(X)


LAYER = linear(3, 3, 0)
WITHOUT = {
    "vmap": jax.vmap(LAYER),
    "jit": jax.jit(LAYER),
    "partial": ft.partial(LAYER),
    "lambda": lambda x: LAYER(x),
    "method": LAYER.__call__.__func__.__get__(LAYER),
    "dict": {"f": jnp.tanh},
}


@pytest.mark.parametrize("name", WITHOUT)
def test_a_model_in_which_no_module_is_to_be_seen(name):
    match = r"no module to be seen.*`eqx.filter_vmap\(module\)`.*method="
    for wrapper in (px.ForwardHook, px.BackwardHook):
        with pytest.raises(TypeError, match=match):
            wrapper(WITHOUT[name])
    with pytest.raises(TypeError, match=match):
        px.value_and_grad(lambda f, x: jnp.sum(f(x)))(WITHOUT[name], X)


#
# Masks by pattern.
#


def test_masks_by_pattern():
    model = Reused(*layers(2))
    _, log = px.ForwardHook(model)(X)
    mask = jnp.array([True, False, True])
    for masks, at in (
        ({"l#1": mask}, {"l#1": mask}),
        ({"other": mask, "l": None}, {"l": 1, "l#1": 1, "l#2": 1, "other": mask}),
        ({"l#1": True, "l": mask}, {"l": mask, "l#1": 1, "l#2": mask}),
    ):
        hook = px.At(px.PatchHook(log), masks)
        for wrap in (lambda f: f, eqx.filter_jit):
            _, found = wrap(px.ForwardHook(model, hook))(-X)
            where = lambda i, y, at=at: jnp.where(
                at.get(["l", "l#1", "l#2"][i], False),
                list(log.values())[i],
                y,
            )
            expected = values(model, -X, where)
            last = jnp.where(at.get("other", False), log["other"], expected[3])
            for got, value in zip(found.values(), [*expected[:3], last], strict=True):
                assert_close(got, value, rtol=1e-5)


def test_a_pattern_of_a_mask_that_chooses_nothing():
    model = Reused(*layers(2))
    for masks, name in (({"z*": True}, r"'z\*'"), ({"l": True, "l#1": True}, "'l#1'")):
        hook = px.Chain(px.At(px.ZeroHook(), masks))
        with pytest.raises(px.SiteNotFiredError, match=f"pattern {name} of the mask"):
            px.ForwardHook(model, hook)(X)


#
# Integer logs.
#


def test_the_largest_absolute_value_of_integers():
    for dtype in (jnp.int8, jnp.int16, jnp.int32):
        least = jnp.iinfo(dtype).min
        found = px.MaxAbsLog()(jnp.array([least, 5], dtype))
        assert int(found) == -int(least)


def backward_log(n, value, outer):
    """An integer log, summed over `n` examples by a vmap around the wrapper."""
    layer = eqx.nn.Identity()
    hooked = px.BackwardHook(layer, log_fn=lambda c: jnp.int32(value)).init(X[0])

    def loss(h):
        return jnp.sum(jax.vmap(h)(jnp.ones(n)) if outer else h(X[0]))

    return eqx.filter_jit(eqx.filter_grad(loss))(hooked).log


def test_backward_integer_logs_are_linear():
    for value in (65536, 3, -3, 2**31 - 1, -(2**31), 16777217):
        log = backward_log(1, value, outer=False)
        assert int(log["."]) == value
        halved = jax.tree.map(lambda x: x / 2, log)
        assert int(halved["."]) == int(value / 2)


def test_backward_integer_logs_are_summed_exactly_or_refused():
    for n, value in ((1000, 65537), (1000, -65537), (30000, 2047), (60000, -255)):
        assert int(backward_log(n, value, outer=True)["."]) == n * value
    log = backward_log(70000, 255, outer=True)
    with pytest.raises(px.LogValueError, match="summed over 70000.*Map inside"):
        log["."]


def test_a_scan_sums_nothing():
    layer = eqx.nn.Identity()
    run = lambda m, x: lax.scan(lambda x, _: (m(x), None), x, length=3)[0]
    hooked = px.BackwardHook(layer, log_fn=lambda c: jnp.int32(65537), method=run)
    grad = eqx.filter_grad(lambda h: jnp.sum(h(X)))(hooked.init(X))
    np.testing.assert_array_equal(grad.log["."], [65537] * 3)
