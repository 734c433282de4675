"""Calls that are recorded directly, and those that turn out to need a trace."""

import copy
import gc
import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from closeness import assert_close
from jax import lax
from twin_case import linear

import peex as px
from peex import _compat


X = jr.normal(jr.key(5), (3,))


class Two(eqx.Module):
    """One layer in the open, one where `how` puts it."""

    first: eqx.nn.Linear
    second: eqx.nn.Linear
    how: str

    def __call__(self, x):
        CALLS.append(_compat.current_trace())
        return HOW[self.how](self.second, jnp.tanh(self.first(x)))


CALLS = []
HOW = {
    "open": lambda f, x: f(x),
    "vmap": lambda f, x: jax.vmap(f)(x[None])[0],
    "jvp": lambda f, x: jax.jvp(f, (x,), (x,))[0],
    "grad": lambda f, x: jax.value_and_grad(lambda x: jnp.sum(f(x)))(x)[0] * x,
    "jit": lambda f, x: eqx.filter_jit(f)(x),
    "scan": lambda f, x: lax.scan(lambda x, _: (f(x), None), x, length=1)[0],
    "cond": lambda f, x: lax.cond(x[0] < 9, lambda x: f(x), lambda x: x, x),
    "checkpoint": lambda f, x: eqx.filter_checkpoint(f)(x),
    "while": lambda f, x: lax.fori_loop(0, jnp.array(1), lambda _, x: f(x), x),
}
STAGED = ("jit", "scan", "cond", "checkpoint", "while")
OUTSIDE = {
    "eager": lambda f, x: f(x),
    "jit": lambda f, x: eqx.filter_jit(f)(x),
    "vmap": lambda f, x: jax.vmap(f)(x[None]),
    "grad": lambda f, x: jax.jvp(f, (x,), (x,))[0],
}


def two(how):
    return Two(linear(3, 3, 0), linear(3, 3, 1), how)


SOME = ("open", "grad", "scan")
PAIRS = [(h, o) for o in OUTSIDE for h in HOW if o in ("eager", "jit") or h in SOME]


@pytest.mark.parametrize(("how", "outside"), PAIRS)
def test_both_layers_are_heard_once(how, outside):
    model = two(how)
    out, log = OUTSIDE[outside](px.ForwardHook(model), X)
    first = model.first(X)
    second = model.second(jnp.tanh(first))
    assert list(log) == ["first", "second"]
    assert_close(log["first"].reshape(3), first)
    assert_close(log["second"].reshape(3), second)
    assert_close(out.reshape(3), model(X))
    steered = px.ForwardHook(model, px.AddHook(jnp.ones(3)), where="first")
    _, log = OUTSIDE[outside](steered, X)
    assert_close(log["first"].reshape(3), first + 1)


@pytest.mark.parametrize("how", HOW)
def test_the_forward_pass_runs_once(how):
    class Fresh(Two):
        """A class that hasn't been seen to stage anything."""

    model = Fresh(linear(3, 3, 0), linear(3, 3, 1), how)
    hooked = px.ForwardHook(model)
    runs = []
    for _ in range(3):
        CALLS.clear()
        hooked(X)
        runs.append(len(CALLS))
    assert runs == [1, 1, 1]
    # Not of this wrapper alone.
    CALLS.clear()
    px.ForwardHook(model)(X)
    assert len(CALLS) == 1


@pytest.mark.parametrize("how", [h for h in HOW if h not in STAGED])
def test_jax_runs_eager_calls_as_without_hooks(how):
    class Fresh(Two):
        """A class that hasn't been seen to stage anything."""

    CALLS.clear()
    for _ in range(3):
        # A wrapper of its own: what the first call has learned is of the class.
        px.ForwardHook(Fresh(linear(3, 3, 0), linear(3, 3, 1), how))(X)
    assert [_compat.is_eval_trace(t) for t in CALLS] == [False, True, True]


def test_a_function_that_does_not_stage_is_remembered():
    traces = []

    def method(m, x):
        traces.append(_compat.is_eval_trace(_compat.current_trace()))
        return m(x)

    layer = linear(3, 3, 0)
    for _ in range(3):
        px.ForwardHook(layer, method=method)(X)
    assert traces == [False, True, True]
    # Other sites of the same model may be elsewhere.
    px.ForwardHook(layer, px.ZeroHook(), method=method, where=".")(X)
    assert traces[3:] == [False]


def test_the_signal_does_not_stop_at_a_wrapper_inside():
    class Outer(eqx.Module):
        inner: px.ForwardHook
        last: eqx.nn.Linear

        def __call__(self, x):
            x, log = self.inner(x)
            return self.last(x), log

    for how in HOW:
        inner = two(how)
        model = Outer(px.ForwardHook(inner, where="second"), linear(3, 3, 2))
        for _ in range(2):
            (_, inner_log), log = px.ForwardHook(model)(X)
            assert list(inner_log) == ["second"]
            assert list(log) == ["inner.first", "inner.second", "last"]
            assert_equal = np.testing.assert_array_equal
            assert_equal(inner_log["second"], log["inner.second"])


def test_programs_kept_by_jit_are_not_shared_between_the_two_kinds():
    @eqx.filter_jit
    def helper(layer, x):
        return layer(x)

    class Model(eqx.Module):
        a: eqx.nn.Linear
        b: eqx.nn.Linear

        def __call__(self, x):
            return helper(self.b, helper(self.a, x))

    model = Model(linear(3, 3, 0), linear(3, 3, 1))
    expected = model.a(X), model.b(model.a(X))
    for _ in range(2):
        # No log, and a hook without arrays: nothing of it must come out of `helper`.
        out, _ = px.ForwardHook(model, px.ScaleHook(1.0), None)(X)
        assert_close(out, expected[1])
        _, log = px.ForwardHook(model, px.ScaleHook(1.0))(X)
        assert list(log) == ["a", "b"]
        for entry, value in zip(log.values(), expected, strict=True):
            assert_close(entry, value)


#
# Remembered structures.
#


def test_a_wrapper_around_another_model():
    hooked = px.ForwardHook(two("open"))
    hooked(X)
    other = eqx.tree_at(lambda h: h.model.first, hooked, eqx.nn.Identity())
    _, log = other(X)
    np.testing.assert_array_equal(log["first"], X)
    scaled = jax.tree.map(lambda x: 2 * x if eqx.is_array(x) else x, hooked)
    _, log = scaled(X)
    assert_close(log["first"], 2 * hooked.model.first(X))
    _, log = hooked(X)
    assert_close(log["first"], hooked.model.first(X))


def test_a_wrapper_that_was_called_can_be_copied():
    hooked = px.ForwardHook(linear(3, 3, 0))
    expected = hooked(X)
    for copied in (copy.deepcopy(hooked), pickle.loads(pickle.dumps(hooked))):
        assert jax.tree.structure(copied) == jax.tree.structure(hooked)
        jax.tree.map(np.testing.assert_array_equal, copied(X), expected)


def test_static_fields_that_cannot_be_hashed():
    class Odd(eqx.Module):
        layer: eqx.nn.Linear
        table: list = eqx.field(static=True)  # can't be hashed

        def __call__(self, x):
            return self.layer(x) + jnp.array(self.table)

    for table in ([1.0, 1, 1], [0.0, 0, 0]):
        hooked = px.ForwardHook(Odd(linear(3, 3, 0), table))
        for _ in range(2):
            out, log = hooked(X)
            expected = log["layer"] + jnp.array(table)
            assert_close(out, expected)


def test_a_function_in_a_field_is_not_mixed_up():
    mlp = eqx.nn.MLP(3, 3, 4, 1, activation=jnp.tanh, key=jr.key(0))
    hooked = px.ForwardHook(mlp, where="activation")
    other = eqx.tree_at(lambda h: h.model.activation, hooked, jnp.sin)
    for h, fn in ((hooked, jnp.tanh), (other, jnp.sin), (hooked, jnp.tanh)):
        _, log = h(X)
        expected = jax.vmap(fn)(mlp.layers[0](X))
        assert_close(log["activation"].reshape(4), expected)


def tracers():
    gc.collect()
    return [o for o in gc.get_objects() if type(o).__name__ == "DynamicJaxprTracer"]


# `eqx.filter_checkpoint` leaves tracers behind without peex, too.
@pytest.mark.parametrize("how", [h for h in STAGED if h != "checkpoint"])
def test_a_call_that_is_made_again_leaves_nothing_behind(how):
    class Fresh(Two):
        """A class that hasn't been seen to stage anything."""

    hooked = px.ForwardHook(Fresh(linear(3, 3, 0), linear(3, 3, 1), how))
    before = len(tracers())
    eqx.filter_jit(hooked)(X)
    CALLS.clear()
    assert len(tracers()) <= before
    with jax.checking_leaks():
        eqx.filter_jit(lambda h, x: h(x))(hooked, X)
    CALLS.clear()


#
# A call inside of another one that is made again is heard once by that.
#


class Staging(eqx.Module):
    a: eqx.nn.Linear
    b: eqx.nn.Linear

    def __call__(self, x):
        x = self.a(x)
        return jax.lax.scan(lambda x, _: (self.b(x), None), x, length=3)[0]


class Probing(Staging):
    def __call__(self, x):
        return self.b(px.probe(self.a(x), "mid"))


class Stacking(eqx.Module):
    layers: list[eqx.nn.Linear]

    def __call__(self, x):
        layers = jax.tree.map(lambda *xs: jnp.stack(xs), *self.layers)
        return jax.lax.scan(lambda x, layer: (layer(x), None), x, layers)[0]


AGAIN = {
    Staging: ["a", "b"],
    Probing: ["a", "./mid", "b"],
}


def two_layers(cls):
    # A class of its own, of which nothing is remembered.
    return type("Own", (cls,), {})(linear(3, 3, 0), linear(3, 3, 1))


@pytest.mark.parametrize("known", [False, True], ids=["new", "known"])
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("cls", AGAIN)
def test_a_call_inside_that_is_made_again(cls, jit, known):
    model, x, keys = two_layers(cls), jnp.ones(3), AGAIN[cls]
    wrap = eqx.filter_jit if jit else lambda f: f
    if known:
        px.ForwardHook(model)(x)

    def program(model, x):
        return px.ForwardHook(model, method=lambda m, x: m(x))(x)[0]

    out, log = wrap(px.ForwardHook(model, method=program))(x)
    assert_close(out, model(x))
    assert list(log) == keys
    inner = px.ForwardHook(model, method=lambda m, x: m(x))
    assert list(px.BackwardHook(inner).init(x).log) == keys
    run = px.value_and_grad(lambda m, x: jnp.sum(m(x)), forward=px.IdentityLog())
    (_, logs), _ = wrap(run)(model, x)
    assert list(logs.forward) == list(logs.backward) == keys
    patched = px.ForwardHook(model, px.PatchHook(log), method=program)
    assert_close(wrap(patched)(x)[0], out)


def test_layers_that_turn_out_to_be_stacked_inside():
    def both(m, x):
        return m["then"](m["first"](x))

    def program(m, x):
        return px.ForwardHook(m, where=["first", "then.**"], method=both)(x)[0]

    layers = [linear(3, 3, seed) for seed in range(2)]
    model = {"first": linear(3, 3, 2), "then": Stacking(layers)}
    _, log = px.ForwardHook(model, where="first", method=program)(jnp.ones(3))
    assert list(log) == ["first"]


@pytest.mark.parametrize("wraps", [1, 2])
def test_jitted_functions_keep_no_entry_for_each_eager_call(wraps):
    without_sites = jax.jit(lambda x: x + 1)
    with_sites = jax.jit(lambda layer, x: layer(x))

    def model(layer, x):
        return without_sites(with_sites(layer, x))

    run, method, x = linear(3, 3, 0), model, jnp.ones(3)
    for _ in range(wraps):
        run, method = px.ForwardHook(run, method=method), "__call__"
    sizes = []
    for _ in range(10):
        run(x)
        sizes.append((without_sites._cache_size(), with_sites._cache_size()))
    assert sizes[-1] == sizes[3]
