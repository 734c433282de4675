"""Dicts are in a hooked call what they are in an unhooked one: in their own order where
JAX doesn't take them apart, by sorted keys where it does; and their keys needn't be
such as can be sorted.
"""

import collections
import copy
import gc
import weakref
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close
from dicts import arrays_in, Each, folded, items, Kind, UNSORTED, X
from parts import Outer, Returning, Seq, Whole
from wrapped import linear

import peex as px


LAYERS = {
    "dict": lambda: dict(items()),
    "default": lambda: collections.defaultdict(list, items()),
    "ordered": lambda: collections.OrderedDict(items()),
    "in a list": lambda: [linear(5), dict(items()), (linear(6), dict(items()))],
    "nested": lambda: {"z": dict(items()), "y": {"n": linear(3), "m": linear(4)}},
    "in a module": lambda: {"z": Each(dict(items())), "y": linear(3)},
    "numbers": lambda: {10: linear(0), 9: linear(1), 2: linear(2)},
}
# Which sites: all, some, those inside of a layer, a function in a field.
WHERE = {
    "default": None,
    "all": "**",
    "one": lambda m: jax.tree.leaves(m, is_leaf=_is_layer)[1],
    "root": ".",
}


def _is_layer(x):
    return isinstance(x, eqx.nn.Linear)


WRAPPERS = {
    "forward": px.ForwardHook,
    "backward": lambda model, **how: px.BackwardHook(model, None, None, **how),
    "logging": px.BackwardHook,
}


def initialised(hooked, *args):
    is_logging = isinstance(hooked, px.BackwardHook) and hooked.plan.logs
    return hooked.init(*args) if is_logging else hooked


def run(model, *args):
    out = model(*args)
    return out[0] if isinstance(model, px.ForwardHook) else out


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("layers", LAYERS)
def test_a_model_runs_its_dicts_in_their_order(layers, wrapper, where):
    model = Each(LAYERS[layers]())
    hooked = initialised(WRAPPERS[wrapper](model, where=WHERE[where]), X)
    for _ in range(3):  # from the second on, calls go direct
        np.testing.assert_array_equal(run(hooked, X), model(X))
    jitted = eqx.filter_jit(run)
    assert_close(jitted(hooked, X), jitted(model, X))


@pytest.mark.parametrize("layers", ["dict", "default", "nested"])
def test_the_order_matters_in_these_tests(layers):
    model = Each(LAYERS[layers]())
    assert not np.allclose(model(X), eqx.filter_jit(run)(model, X))


def test_a_log_is_in_the_order_of_execution():
    hooked = px.ForwardHook(Each(dict(items())))
    for _ in range(3):
        assert list(hooked(X)[1]) == ["layers.c", "layers.a", "layers.b"]
    _, log = eqx.filter_jit(lambda hooked, x: hooked(x))(hooked, X)
    assert list(log) == ["layers.a", "layers.b", "layers.c"]


def test_where_is_given_the_model_in_its_order():
    model = Each(dict(items()))
    hooked = px.ForwardHook(model, where=lambda m: list(m.layers.values())[0])
    assert list(hooked(X)[1]) == ["layers.c"]


def test_two_models_that_differ_in_the_order_alone():
    # To JAX these are of one structure, and what is learned of one is used for both.
    first = Each(dict(items()))
    second = Each(dict(reversed(items())))
    hooked = px.ForwardHook(first)
    for model in (first, second, first, second):
        again = copy.copy(hooked)  # with the same plan
        object.__setattr__(again, "model", model)
        np.testing.assert_array_equal(again(X)[0], model(X))


def test_nested_wrappers_keep_the_order():
    model = Each({"z": Each(dict(items())), "y": linear(3)})
    hooked = px.ForwardHook(px.ForwardHook(model, where="**"), pre_hook=True)
    for _ in range(3):
        (out, _), _ = hooked(X)
        np.testing.assert_array_equal(out, model(X))


@pytest.mark.parametrize("around", [eqx.filter_jit, eqx.filter_checkpoint, lambda m: m])
def test_in_a_dict_stand_wrappers_of_equinox(around):
    layers = {key: around(layer) for key, layer in items()}
    model = Each(layers)
    hooked = px.ForwardHook(model)
    for _ in range(3):
        out, log = hooked(X)
        assert_close(out, model(X))
        assert list(log) == ["layers.c", "layers.a", "layers.b"]


@pytest.mark.parametrize("around", [eqx.filter_jit, eqx.filter_checkpoint])
def test_wrappers_of_equinox_around_dicts(around):
    model = Outer(around(Each(dict(items()))))
    hooked = px.ForwardHook(model)
    for _ in range(3):
        assert_close(hooked(X)[0], model(X))


def test_functions_in_a_dict_are_sites_in_their_order():
    model = Each({"t": jnp.sin, "s": jnp.cos, "r": linear()})
    hooked = px.ForwardHook(model, where=["layers.t", "layers.s"])
    for _ in range(3):
        out, log = hooked(X)
        np.testing.assert_array_equal(out, model(X))
        assert list(log) == ["layers.t", "layers.s"]


def test_what_holds_no_site_is_the_very_object():
    table = {"b": X, "a": [X, {"d": X, "c": 1}]}
    seen = []

    class Model(eqx.Module):
        layer: eqx.nn.Linear
        table: dict
        rest: list

        def __call__(self, x):
            seen.append((self.table, self.rest))
            return self.layer(x)

    model = Model(linear(), table, [Seq([jnp.tanh])])
    hooked = px.ForwardHook(model, where="layer")
    for _ in range(3):
        hooked(X)
    for kept, rest in seen:
        assert kept is model.table and rest is model.rest


def test_a_model_isnt_kept_by_what_is_remembered_of_it():
    hooked = px.ForwardHook(Each(dict(items())), where="**")
    fresh = jax.tree.map(lambda x: x + 0, hooked.model)
    arrays = [weakref.ref(x) for x in jax.tree.leaves(fresh)]
    hooked = eqx.tree_at(lambda h: h.model, hooked, fresh)
    hooked(X)
    plan = hooked.plan
    del hooked, fresh
    gc.collect()
    assert plan.memo and not any(ref() is not None for ref in arrays)


# Arguments.


class Given(eqx.Module):
    """Notes what it is given, and runs its layer."""

    part: Any
    seen: list = eqx.field(static=True)

    def __call__(self, given):
        self.seen.append(given)
        return self.part(folded(given))


@pytest.mark.parametrize("wrapper", ["forward", "backward"])
@pytest.mark.parametrize("name", UNSORTED)
def test_keys_of_an_argument_that_cant_be_sorted(name, wrapper):
    given = UNSORTED[name](X)
    model = Given(linear(), [])
    hooked = WRAPPERS[wrapper](model)
    for _ in range(3):
        np.testing.assert_array_equal(run(hooked, given), model(given))
    assert all(seen is given for seen in model.seen)


@pytest.mark.parametrize("name", UNSORTED)
def test_keys_of_an_output_that_cant_be_sorted(name):
    model = Outer(Returning(UNSORTED[name]))
    hooked = px.ForwardHook(model, lambda x: 2 * x, where="inner:in")
    for _ in range(3):
        out = hooked(X)[0]
        expected = model(2 * X)
        np.testing.assert_array_equal(arrays_in(out), arrays_in(expected))


@pytest.mark.parametrize("how", [{}, {"pre_hook": True}])
def test_a_value_whose_keys_cant_be_sorted_passes_by(how):
    model = Whole(
        Returning(lambda d: {**d, "new": X}),
        lambda part, x: folded(part({Kind.TWO: x, Kind.ONE: 2 * x})),
    )
    hooked = px.ForwardHook(model, lambda value: value, **how)
    for _ in range(3):
        np.testing.assert_array_equal(hooked(X)[0], model(X))


def test_a_value_whose_keys_cant_be_sorted_is_missed_where_it_is_named():
    model = Outer(Returning(lambda x: ({Kind.TWO: x, 1: x},)))
    hooked = px.ForwardHook(model, where="inner")
    match = r"(?s)'inner' ran.*a dict whose keys JAX can't sort, \[<Kind.TWO: 2>, 1\]"
    with pytest.raises(px.SiteLostError, match=match):
        hooked(X)


def test_a_state_in_such_a_dict_is_as_before_when_a_call_is_made_again():
    norm, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(
        2, axis_name="batch", mode="batch"
    )

    class Model(eqx.Module):
        norm: eqx.nn.BatchNorm
        layer: eqx.nn.Linear

        def __call__(self, given, staged):
            run = lambda x, s: self.norm(x, s)
            out, state = jax.vmap(
                run, axis_name="batch", in_axes=(0, None), out_axes=(0, None)
            )(given["x"], given[Kind.ONE])
            if staged:
                out = jax.lax.map(self.layer, out)
            return out, state

    model = Model(norm, linear())
    hooked = px.ForwardHook(model)
    xs = jnp.linspace(0.0, 1.0, 8).reshape(4, 2)
    fresh = lambda: jax.tree.map(lambda x: x, state)
    for staged in (False, False, True):
        # The third is begun as a direct call, and finds a scan.
        expected, _ = model({"x": xs, Kind.ONE: fresh()}, staged)
        (out, _), log = hooked({"x": xs, Kind.ONE: fresh()}, staged)
        assert_close(out, expected)
    assert log["layer"].shape == (4, 2)


def test_an_error_of_the_model_stays_the_same():
    def fail(given):
        raise KeyError("mine")

    hooked = px.ForwardHook(Outer(Returning(fail)))
    with pytest.raises(KeyError, match="mine") as caught:
        hooked({Kind.TWO: X, 1: X})
    assert "given a dict" in caught.value.__notes__[0]


# What comes back.


def test_a_returned_module_leaves_dicts_around_it_as_they_are():
    def run(layers, x):
        inside = [x, {"y": x, "b": 1}]
        return {"z": layers["c"], "k": inside, "a": layers["a"](x)}, inside

    model = Whole(dict(items()), run)
    out, inside = px.ForwardHook(model)(X)[0]
    expected, _ = model(X)
    assert list(out) == list(expected) == ["z", "k", "a"]
    assert out["k"] is inside and list(inside[1]) == ["y", "b"]
    assert type(out["z"]) is eqx.nn.Linear


def test_a_returned_module_has_its_dicts_in_their_order():
    model = Whole(Each(dict(items())), lambda part, x: (part, part(x)))
    (out, _), _ = px.ForwardHook(model, where="part.**")(X)
    assert type(out) is Each and list(out.layers) == ["c", "a", "b"]


# Values inside of a forward pass, for which a module is traced.


def test_named_values_leave_the_order_as_it_is():
    class Model(eqx.Module):
        scales: dict
        seen: list = eqx.field(static=True)

        def __call__(self, given, kept):
            self.seen.append((list(self.scales), list(given), kept))
            out = folded(self.scales) * folded(given)
            return {"z": out, "kept": kept, "a": jnp.exp(out)}

    model = Model({"b": 2.0 * X, "a": X}, [])
    kept = {"z": 1, "y": 2}
    hooked = px.ForwardHook(model, where="./exp")
    for given in ({"z": X, "a": 2 * X}, {Kind.TWO: X, 1: 2 * X}):
        for _ in range(2):
            expected = model(given, kept)
            out, log = hooked(given, kept)
            assert list(out) == list(expected) == ["z", "kept", "a"]
            assert out["kept"] is kept
            assert_close(out, expected)
            assert_close(log["./exp"], expected["a"])
            unhooked, seen = model.seen[-2:]
            assert seen[:2] == unhooked[:2] and seen[2] is kept
