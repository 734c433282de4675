"""A hooked call runs the model once: its effects, its State, its random keys are those
of the unhooked call, whatever the process did before.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from closeness import assert_close
from jax import lax
from jax.experimental import io_callback
from pairs import pairs
from twin_case import linear

import peex as px


X = jnp.arange(3.0)


def _scan(f, x):
    return lax.scan(lambda x, _: (f(x), None), x, length=2)[0]


def _custom_jvp(f, x):
    g = jax.custom_jvp(f)
    g.defjvp(lambda primals, tangents: (f(*primals), tangents[0]))
    return g(x)


STAGES = {
    "open": lambda f, x: f(x),
    "jit": lambda f, x: eqx.filter_jit(f)(x),
    "checkpoint": lambda f, x: eqx.filter_checkpoint(f)(x),
    "scan": _scan,
    "cond": lambda f, x: lax.cond(x[0] < 9, lambda x: f(x), lambda x: x, x),
    "while": lambda f, x: lax.fori_loop(0, jnp.array(2), lambda _, x: f(x), x),
    "custom_jvp": _custom_jvp,
    "vmap": lambda f, x: jax.vmap(f)(x[None])[0],
    "grad": lambda f, x: jax.grad(lambda x: jnp.sum(f(x)))(x),
}


def fresh(cls, *args):
    """A model of a class of its own, of which nothing is remembered."""
    return type("Fresh", (cls,), {})(*args)


class Model(eqx.Module):
    """An effect, a layer in the open, a layer where `how` puts it."""

    first: eqx.nn.Linear
    second: eqx.nn.Linear
    how: str = eqx.field(static=True)

    def __call__(self, x, effect):
        x = effect(self.first(x))
        return STAGES[self.how](self.second, x)


def model(how):
    return fresh(Model, linear(3, 3, 0), linear(3, 3, 1), how)


class Layers(eqx.Module):
    """An effect, then layers that are stacked."""

    layers: list[eqx.nn.Linear]

    def __call__(self, x, effect):
        stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *self.layers)
        return lax.scan(lambda x, f: (f(x), None), effect(x), stacked)[0]


class Probing(eqx.Module):
    """An effect, then a probe."""

    layer: eqx.nn.Linear

    def __call__(self, x, effect):
        return self.layer(px.probe(effect(x), "mid"))


MODELS = {
    **{how: (lambda how=how: model(how)) for how in STAGES},
    "stacked": lambda: fresh(Layers, [linear(3, 3, i) for i in range(3)]),
    "probe": lambda: fresh(Probing, linear(3, 3, 0)),
}


def forward(m, x, effect):
    return px.ForwardHook(m)(x, effect)[0]


def backward(m, x, effect):
    # Without a log, since `init` is one more run (an abstract one).
    return px.BackwardHook(m, lambda c: c, None)(x, effect)


def both(m, x, effect):
    method = lambda m, x: m(x, effect)
    return px.ForwardHook(px.BackwardHook(m, px.ScaleHook(1.0), None, method=method))(
        x
    )[0]


CALLS = {"forward": forward, "backward": backward, "both": both}


REFUSED = ("while", "custom_jvp")  # cotangents there
WAYS = [
    *pairs([n for n in MODELS if n not in REFUSED], CALLS, [False, True]),
    *((name, "forward", jit) for name in REFUSED for jit in (False, True)),
]


@pytest.mark.parametrize(("name", "call", "jit"), WAYS)
def test_python_and_callbacks_run_as_often_as_without_hooks(name, call, jit):
    runs, data = [], iter(range(100))

    def load(_):
        return np.float32(next(data))

    def effect(x):
        runs.append("python")
        return x + io_callback(load, jax.ShapeDtypeStruct((), jnp.float32), 0)

    wrap = eqx.filter_jit if jit else lambda f: f
    run = wrap(lambda m, x: CALLS[call](m, x, effect))
    m = MODELS[name]()
    for i in range(3):
        # The batches come as they do without hooks: 0, 1, 2.
        expected = m(X, lambda x, i=i: x + i)
        assert_close(run(m, X), expected, rtol=1e-5)
    assert len(runs) == (1 if jit else 3)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", MODELS)
def test_a_mutable_array_is_written_once(name, jit):
    ref = jax.new_ref(jnp.zeros(()))

    def effect(x):
        ref[...] += 1
        return x

    wrap = eqx.filter_jit if jit else lambda f: f
    run = wrap(lambda m, x: forward(m, x, effect))
    m = MODELS[name]()
    for i in range(3):
        run(m, X)
        assert ref[...] == i + 1


@pytest.mark.parametrize("how", STAGES)
def test_a_log_function_with_a_callback_writes_once(how):
    written = []

    def log(x):
        jax.debug.callback(lambda x: written.append(x), jnp.sum(x))
        return jnp.sum(x)

    class Quiet(Model):
        def __call__(self, x):
            return STAGES[self.how](self.second, self.first(x))

    m = fresh(Quiet, linear(3, 3, 0), linear(3, 3, 1), how)
    run = eqx.filter_jit(lambda m, x: px.ForwardHook(m, None, log)(x))
    for i in range(2):
        _, logged = run(m, X)
        jax.effects_barrier()
        calls = sum(np.size(x) for x in logged.values())
        once_more = {"cond": 0, "while": -1}.get(how, 0)  # the last of two iterations
        assert len(written) == (i + 1) * (calls - once_more)


class Normed(eqx.Module):
    norm: eqx.nn.BatchNorm
    layers: list[eqx.nn.Linear]
    how: str = eqx.field(static=True)

    def __call__(self, x, state):
        x, state = jax.vmap(
            self.norm, axis_name="batch", in_axes=(0, None), out_axes=(0, None)
        )(x, state)
        if self.how == "stacked":
            stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *self.layers)
            return lax.scan(lambda x, f: (jax.vmap(f)(x), None), x, stacked)[0], state
        if self.how == "probe":
            return px.probe(x, "normed"), state
        return jax.vmap(lambda x: STAGES[self.how](self.layers[0], x))(x), state


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("how", [*STAGES, "stacked", "probe"])
def test_a_state_is_used_once(how, jit):
    cls = type("Fresh", (Normed,), {})
    make = lambda: cls(
        eqx.nn.BatchNorm(3, "batch", mode="ema"), [linear(3, 3, i) for i in (0, 1)], how
    )
    m, state = eqx.nn.make_with_state(make)()
    x = jr.normal(jr.key(0), (4, 3))
    wrap = eqx.filter_jit if jit else lambda f: f
    hooked = wrap(px.ForwardHook(m))
    copy = jax.tree.map(lambda x: x, state)
    for _ in range(3):
        expected, copy = m(x, copy)
        (out, state), log = hooked(x, state)
        assert_close(out, expected, rtol=1e-5)
        assert "norm" in log
    assert_close(state, copy)


class Branching(eqx.Module):
    """Stages its layer or not, as the call says."""

    layer: eqx.nn.Linear
    index: eqx.nn.StateIndex

    def __call__(self, x, state, staged):
        RUNS.append(staged)
        state = state.set(self.index, state.get(self.index) + 1)
        f = self.layer
        return (_scan(f, x) if staged else f(f(x))), state


RUNS: list[bool] = []


def test_the_one_case_that_runs_twice_takes_its_state_anew():
    make = lambda: fresh(Branching, linear(3, 3, 0), eqx.nn.StateIndex(jnp.zeros(())))
    m, state = eqx.nn.make_with_state(make)()
    hooked = px.ForwardHook(m)
    RUNS.clear()
    for staged in (False, False, True, False, True):
        (out, state), log = hooked(X, state, staged)
        assert_close(out, m.layer(m.layer(X)), rtol=1e-5)
        assert np.size(log["layer"]) == (6 if staged else 3)
    # Only the third call, in which an eager call takes that branch for the first time.
    assert RUNS == [False, False, True, True, False, True]


def test_reused_keys_are_found_where_they_are_reused_only():
    class Noisy(eqx.Module):
        layer: eqx.nn.Linear

        def __call__(self, x, key):
            return _scan(self.layer, x + jr.normal(key, x.shape))

    for jit in (False, True):
        m = fresh(Noisy, linear(3, 3, 0))
        wrap = eqx.filter_jit if jit else lambda f: f
        with jax.debug_key_reuse(True):
            for seed in range(2):
                out, _ = wrap(px.ForwardHook(m))(X, jr.key(seed))
                expected = m(X, jr.key(seed))
                assert_close(out, expected, rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_first_trace_is_the_second(name):
    m = MODELS[name]()
    programs = []
    for _ in range(2):
        # A new function, which JAX hasn't traced.
        run = lambda m, x: forward(m, x, lambda x: x)
        programs.append(str(eqx.filter_make_jaxpr(run)(m, X)[0]))
        forward(m, X, lambda x: x)
    assert programs[0] == programs[1]


@pytest.mark.parametrize("call", [forward, backward], ids=["forward", "backward"])
def test_a_fresh_function_as_method_runs_once(call):
    m = linear(3, 3, 0)
    for jit in (False, True):
        wrap = eqx.filter_jit if jit else lambda f: f
        runs = []

        def program(m, x, effect, runs=runs):
            runs.append(1)
            return _scan(m, x)

        for _ in range(3):
            method = lambda m, x: program(m, x, None)
            if call is forward:
                wrap(px.ForwardHook(m, method=method))(X)
            else:
                wrap(px.BackwardHook(m, lambda c: c, None, method=method))(X)
        assert len(runs) == 3


def test_a_model_that_catches_everything():
    class Catching(eqx.Module):
        layer: eqx.nn.Linear

        def __call__(self, x):
            try:
                return _scan(self.layer, px.probe(x, "x"))
            except BaseException:
                return x

    m = fresh(Catching, linear(3, 3, 0))
    for wrap in (eqx.filter_jit, lambda f: f):
        out, log = wrap(px.ForwardHook(m))(X)
        assert_close(out, m(X))
        assert list(log) == ["./x", "layer"]


def test_a_named_probe_where_python_looks_at_values():
    class Looking(eqx.Module):
        def __call__(self, x):
            RUNS.append(True)
            return px.probe(2 * x if float(x[1]) > 0 else x, "doubled")

    m = Looking()
    for n in (1, 2):
        RUNS.clear()
        out, log = px.ForwardHook(m, px.AddHook(float(n)), where="./doubled")(X)
        np.testing.assert_array_equal(out, 2 * X + n)
        np.testing.assert_array_equal(log["./doubled"], 2 * X + n)
        assert len(RUNS) == 1
    with pytest.raises(px.SiteLostError, match="Mark the value with `px.probe"):
        px.ForwardHook(m, where="./mul")(X)


def test_a_first_model_with_a_probe_compiles_once():
    m = fresh(Probing, linear(3, 3, 0))
    traces = []

    @eqx.filter_jit
    def run(m, x):
        traces.append(1)
        return forward(m, x, lambda x: x)

    for _ in range(3):
        run(m, X)
    assert len(traces) == 1
