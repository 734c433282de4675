"""Hooks and logs that were given something wrong, or themselves in the wrong way; and
what of a log isn't trained.
"""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hooked_mlp import loss, MODEL, X
from jax import lax

import peex as px


# The class in the place of an instance.

CLASSES = [px.HistogramLog, px.MeanLog, px.IdentityLog, px.AddHook, px.ZeroHook]


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("wrapper", [px.ForwardHook, px.BackwardHook])
def test_a_class_in_the_place_of_an_instance(cls, wrapper):
    name = "log_fn" if issubclass(cls, px.AbstractLog) else "hook_fn"
    match = rf"^`{name}` is the class {cls.__name__} itself; give an instance of it, as"
    with pytest.raises(TypeError, match=f"{match} `{cls.__name__}"):
        wrapper(MODEL, **{name: cls})
    match = rf"`{name}\['linear1'\]` is the class {cls.__name__} itself"
    with pytest.raises(TypeError, match=match):
        wrapper(MODEL, **{name: {"linear1": cls}})


def test_a_class_inside_of_another_hook():
    with pytest.raises(TypeError, match="Hook 1 of a Chain is the class ZeroHook itse"):
        px.Chain(px.AddHook(1.0), px.ZeroHook)
    with pytest.raises(TypeError, match="hook of an AtStep is the class AddHook itsel"):
        px.AtStep(px.AddHook, 0)


def test_a_class_in_value_and_grad():
    scalar = lambda model, x: loss(model(x))
    for name in ("forward", "backward"):
        with pytest.raises(TypeError, match="is the class HistogramLog itself; give"):
            px.value_and_grad(scalar, **{name: px.HistogramLog})(MODEL, X)


# The edges of a histogram.

NO_EDGES = {
    "none": [],
    "a number": 20,
    "a numpy number": np.float32(2.0),
    "an array without axes": jnp.array(1.0),
    "decreasing": [1, 0],
    "decreasing array": jnp.array([0.0, 2.0, 1.0]),
    "decreasing numpy array": np.array([0.0, -1.0]),
    "twice the same": [0.0, 1.0, 1.0],
    "nan": [0.0, np.nan, 1.0],
    "two axes": [[0.0, 1.0], [2.0, 3.0]],
    "an array of two axes": jnp.zeros((2, 2)),
    "text": "auto",
    "complex": jnp.array([1j, 2j]),
    "nothing": None,
}


@pytest.mark.parametrize("edges", NO_EDGES.values(), ids=NO_EDGES)
def test_what_edges_are_not(edges):
    match = (
        r"(?s)^The `edges` of a HistogramLog are an increasing sequence of at least "
        r"one number, as in `px.HistogramLog\(\[-1, 0, 1\]\)`; got "
        rf"{re.escape(repr(edges))}\. "
        r"Twenty bins of one width are `px.HistogramLog\(jnp.linspace\(low, high, 21\)"
    )
    with pytest.raises(ValueError, match=match):
        px.HistogramLog(edges)


def test_traced_edges_are_checked_for_their_shape():
    log = jax.jit(lambda edges: px.HistogramLog(edges)(X))
    np.testing.assert_array_equal(log(jnp.array([0.0, 1.0])), [1, 1, 1])
    one = jax.jit(lambda edge: px.HistogramLog([0.0, edge])(X))
    np.testing.assert_array_equal(one(1.0), [1, 1, 1])
    with pytest.raises(ValueError, match="The `edges` of a HistogramLog are"):
        log(jnp.array(0.0))


@pytest.mark.parametrize("edges", [[0, 1], (0.0, 1.0), np.array([0.0, 1.0])])
def test_edges_that_are_numbers_are_static(edges):
    log = px.HistogramLog(edges)
    assert log.edges == (0.0, 1.0)
    assert not jax.tree.leaves(eqx.filter(log, eqx.is_array))


@pytest.mark.parametrize("edges", [[0.0, 1.0], jnp.array([0.0, 1.0])])
@pytest.mark.parametrize("method", ["forward", "backward"])
def test_edges_are_not_trained(edges, method):
    log = px.HistogramLog(edges)

    def scalar(h):
        out = h(X)
        # Of the log, something that a gradient would flow through.
        return loss(out[0]) + jnp.sum(out[1]["linear1"].astype(jnp.float32))

    if method == "forward":
        hooked = px.ForwardHook(MODEL, log_fn=log)
    else:
        hooked = px.BackwardHook(MODEL, log_fn=log).init(X)
        scalar = lambda h: loss(h(X))
    grads = eqx.filter_grad(scalar)(hooked)
    assert jnp.any(grads.model.linear1.bias)
    if isinstance(edges, list):
        assert jax.tree.leaves(grads.log_fn) == []
    else:
        np.testing.assert_array_equal(grads.log_fn.edges, [0.0, 0.0])
    # As any optimiser does it: what has no gradient, or none but zeros, stays.
    params = eqx.filter(hooked, eqx.is_inexact_array)
    updates = jax.tree.map(lambda p, g: -0.1 * g, params, grads)
    trained = eqx.apply_updates(hooked, updates)
    np.testing.assert_array_equal(trained.log_fn.edges, edges)


# The steps of an AtStep.


def recurrent(m, x):
    step = lambda x, _: (jnp.tanh(m.linear1(x))[:3], None)
    return lax.scan(step, x, length=5)[0]


OUTSIDE = (
    "^AtStep was given step 7, but the loop around the site 'linear1' has 5 steps: 0 "
    "to 4, or negative ones from the end"
)


def hooked(steps):
    hook = px.AtStep(px.ZeroHook(), steps)
    return px.ForwardHook(MODEL, hook, where="linear1", method=recurrent)


@pytest.mark.parametrize("steps", [7, [7], [0, 7], range(6, 8), np.array([1, 7])])
def test_steps_that_the_loop_does_not_have(steps):
    steps = range(7, 9) if isinstance(steps, range) else steps
    with pytest.raises(px.HookShapeError, match=OUTSIDE):
        hooked(steps)(X)
    # Known under jit as well, where the hook is made inside.
    with pytest.raises(px.HookShapeError, match=OUTSIDE):
        eqx.filter_jit(lambda x: hooked(steps)(x))(X)


def test_traced_steps_that_the_loop_does_not_have_choose_nothing():
    _, expected = hooked(jnp.zeros(0, int))(X)
    for steps in ([7], jnp.array([7])):
        _, log = eqx.filter_jit(lambda h, x: h(x))(hooked(steps), X)
        np.testing.assert_allclose(log["linear1"], expected["linear1"], rtol=1e-6)


def test_steps_in_a_list_may_be_traced():
    run = eqx.filter_jit(lambda i, x: hooked([0, i])(x)[1]["linear1"])
    for i in (1, 3):
        zero = np.all(np.asarray(run(jnp.array(i), X)) == 0, axis=-1)
        np.testing.assert_array_equal(np.flatnonzero(zero), [0, i])


def test_other_steps_in_a_list_compile_nothing_anew():
    traces = []

    @eqx.filter_jit
    def run(hooked, x):
        traces.append(hooked)
        return hooked(x)

    for i in range(3):
        run(hooked([i]), X)
    assert len(traces) == 1
