"""A site speaks to the call that owns it, and to no other."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close
from jax import lax
from twin_case import linear

import peex as px


X = jnp.arange(3.0)
KINDS = pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])


def wrapped(jit):
    return eqx.filter_jit if jit else lambda f: f


class Deferring(eqx.Module):
    """Returns a function that runs its layer later."""

    layer: eqx.nn.Linear

    def __call__(self, x):
        self.layer(x)
        return lambda y: self.layer(y)


class Calling(eqx.Module):
    """Runs a function that it is given, next to its own layer."""

    layer: eqx.nn.Linear

    def __call__(self, x, f):
        return self.layer(f(x))


@KINDS
@pytest.mark.parametrize("staged", [False, True], ids=["open", "scan"])
def test_a_closure_of_a_call_that_has_ended_says_nothing_to_another(jit, staged):
    deferring, calling = Deferring(linear(3, 3, 0)), Calling(linear(3, 3, 1))

    def later(x):
        f, log = px.ForwardHook(deferring, px.ScaleHook(2.0))(x)
        assert list(log) == ["layer"]
        if staged:
            return lambda x: lax.scan(lambda x, _: (f(x), None), x, length=1)[0]
        return f

    def program(x):
        f = later(x)
        hooked = px.ForwardHook(calling, px.AddHook(jnp.ones(3)))
        return f(x), hooked(x, f)

    for _ in range(2):
        alone, (out, log) = wrapped(jit)(program)(X)
        assert_close(alone, deferring.layer(X))
        expected = calling.layer(deferring.layer(X)) + 1
        assert_close(out, expected, rtol=1e-5)
        assert list(log) == ["layer"]
        assert_close(log["layer"], expected, rtol=1e-5)


def test_a_closure_that_outlives_the_arrays_of_its_hook():
    hooked = px.ForwardHook(Deferring(linear(3, 3, 0)), px.AddHook(jnp.ones(3)))
    f, _ = hooked(X)
    match = "'layer' ran.*after the hooked call had ended"
    with pytest.raises(px.SiteLostError, match=match):
        f(X)
    with pytest.raises(px.SiteLostError, match=match):
        px.ForwardHook(Calling(linear(3, 3, 1)), px.AddHook(jnp.ones(3)))(X, f)


class Threaded(eqx.Module):
    layers: list[eqx.nn.Linear]

    def __call__(self, x):
        with ThreadPoolExecutor(2) as pool:
            return sum(pool.map(lambda f: f(x), self.layers))


def test_layers_that_run_on_other_threads():
    model = Threaded([linear(3, 3, i) for i in range(2)])
    for wrapper in (px.ForwardHook(model), px.BackwardHook(model, None, None)):
        if wrapper.log_fn is None:
            assert_close(wrapper(X), model(X))
            continue
        for _ in range(2):
            match = r"'layers\.[01]' ran.*on another thread.*list\(map"
            with pytest.raises(px.SiteLostError, match=match):
                wrapper(X)


class Lazy(eqx.Module):
    layer: eqx.nn.Linear
    how: str

    def __call__(self, x):
        if self.how == "generator":
            return (self.layer(x) for _ in range(3))
        if self.how == "map":
            return map(self.layer, [x, x])
        return self.step(x)

    async def step(self, x):
        return self.layer(x)


@pytest.mark.parametrize("how", ["generator", "map", "coroutine"])
def test_a_model_that_returns_before_it_has_run(how):
    model = Lazy(linear(3, 3, 0), how)
    match = f"returned a {how}, .*after the hooked call has ended.*list"
    with pytest.raises(px.SiteLostError, match=match):
        px.ForwardHook(model)(X)
    if how == "coroutine":
        return
    together = lambda m, x: list(m(x))
    out, log = px.ForwardHook(model, method=together)(X)
    assert len(log) == len(out)
    assert_close(out[1], model.layer(X))


def _apply(layer, x):
    return layer(x)


class Shaped(eqx.Module):
    a: eqx.nn.Linear
    b: eqx.nn.Linear

    def __call__(self, x):
        shape = jax.eval_shape(_apply, self.a, x).shape
        return self.b(x + jnp.ones(shape))


@KINDS
def test_a_layer_of_which_only_the_shape_is_asked_for_has_not_run(jit):
    model = Shaped(linear(3, 3, 0), linear(3, 3, 1))
    hooked = wrapped(jit)(px.ForwardHook(model))
    asked = wrapped(jit)(px.ForwardHook(model, where=["a", "b"]))
    for _ in range(2):  # JAX knows the shape the second time
        out, log = hooked(X)
        assert_close(out, model(X))
        assert list(log) == ["b"]
        with pytest.raises(px.SiteNotFiredError, match="'a' was never.*eval_shape"):
            asked(X)


class Called(eqx.Module):
    """Runs its layer in a callback."""

    layer: eqx.nn.Linear
    how: str

    def __call__(self, x):
        if self.how == "scan":
            step = lambda x, _: (self._call(x), None)
            return lax.scan(step, x, length=2)[0]
        return self._call(x)

    def _call(self, x):
        if self.how == "module":
            return eqx.filter_pure_callback(
                self.layer, x, result_shape_dtypes=jax.ShapeDtypeStruct((3,), x.dtype)
            )
        return jax.pure_callback(
            lambda x: np.asarray(self.layer(jnp.asarray(x))),
            jax.ShapeDtypeStruct((3,), x.dtype),
            x,
        )


@KINDS
@pytest.mark.parametrize("how", ["closure", "module", "scan"])
def test_a_layer_in_a_callback_is_lost_by_name(how, jit):
    model = Called(linear(3, 3, 0), how)
    # Closed over, so that its weights aren't traced.
    hooked = (jax.jit if jit else lambda f: f)(lambda x: px.ForwardHook(model)(x)[0])
    match = "'layer' ran.*can't be brought out"
    if jit:  # it runs after the hooked call has ended
        match = "site, 'layer', didn't run.* in a callback"
    for _ in range(2):
        with pytest.raises(Exception, match=match):
            jax.block_until_ready(hooked(X))


def test_threads_that_hook_a_new_class_at_once():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            cls = type("New", (eqx.nn.Linear,), {})
            model = cls(3, 3, key=jax.random.key(0))
            barrier, logs = threading.Barrier(4), []

            def run(model=model, barrier=barrier, logs=logs):
                barrier.wait()
                logs.append(px.ForwardHook(model, where=".")(X)[1])

            threads = [threading.Thread(target=run) for _ in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            assert [list(log) for log in logs] == [["."]] * 4
    finally:
        sys.setswitchinterval(interval)


class Loss(eqx.Module):
    scale: jax.Array

    def __call__(self, model, x):
        return self.scale * model(x)


@KINDS
def test_a_module_with_arrays_as_method_after_an_unrelated_probe(jit):
    px.probe(X, "unrelated")
    layer = linear(3, 3, 0)
    hooked = px.ForwardHook(layer, method=Loss(jnp.array(2.0)))
    out, log = (eqx.filter_jit(lambda x: hooked(x)) if jit else hooked)(X)
    assert_close(out, 2 * layer(X))
    assert list(log) == ["."]
    _, log = px.ForwardHook(layer, where="./mid", method=_probed)(X)
    assert list(log) == ["./mid"]


def _probed(model, x):
    return px.probe(model(x), "mid")
