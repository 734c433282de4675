"""Functions of the arrays of one log and of several, and differences."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close
from parts import Seq, Whole

import peex as px


def linear(seed, size=2):
    return eqx.nn.Linear(size, size, key=jax.random.key(seed))


MODEL = Seq([linear(0), linear(1)])
X = jnp.array([0.5, -1.0])
_, LOG = px.ForwardHook(MODEL)(X)
_, OTHER = px.ForwardHook(MODEL)(X + 1)


def test_each_array():
    found = LOG.map(lambda x: 2 * x)
    assert isinstance(found, px.Log) and list(found) == list(LOG)
    for key in LOG:
        assert_close(found[key], 2 * LOG[key])


def test_of_several_logs():
    turned = px.Log(dict(reversed(list(OTHER.items()))))
    found = LOG.map(lambda x, y, z: x + y * z, turned, dict(LOG))
    assert list(found) == list(LOG)
    for key in LOG:
        assert_close(found[key], LOG[key] + OTHER[key] * LOG[key])


def test_of_pytrees():
    _, log = px.ForwardHook(MODEL, log_fn=lambda x: {"a": x, "b": (x.max(), None)})(X)
    found = log.map(lambda x: (jnp.sum(x), x.ndim))
    entry = found["parts.0"]
    assert_close(entry["a"][0], jnp.sum(LOG["parts.0"]))
    assert entry["a"][1] == 1 and entry["b"][0][1] == 0 and entry["b"][1] is None


def test_under_transformations():
    norms = jax.jit(lambda log: log.map(jnp.linalg.norm))(LOG)
    assert_close(norms["parts.0"], jnp.linalg.norm(LOG["parts.0"]))
    grads = jax.grad(lambda log: (log - OTHER).map(jnp.sum)["parts.1"])(LOG)
    assert isinstance(grads, px.Log)
    assert_close(dict(grads), {"parts.0": jnp.zeros(2), "parts.1": jnp.ones(2)})


def test_integers_of_a_backward_log():
    log = px.BackwardHook(MODEL, log_fn=lambda x: x >= 0).init(X).log
    assert log.map(lambda x: x.dtype)["parts.0"] == bool
    assert log.map(jnp.logical_not)["parts.0"].tolist() == [True, True]
    assert (log - log.map(jnp.logical_not))["parts.0"].tolist() == [-1, -1]


def test_counts_are_kept():
    def branches(part, x):
        return jax.lax.cond(x[0] > 0, lambda x: part(x), lambda x: x, x)

    _, log = px.ForwardHook(Whole(linear(0), branches))(X)
    assert log.counts["part"] == 1
    assert log.map(jnp.sum).counts == (log - log).counts == log.counts


# Axes


def scanned(cell, xs):
    def step(carry, x):
        carry = jax.vmap(cell)(carry)
        return carry, None

    return jax.lax.scan(step, xs, length=3)[0]


def axes_of(shape, f):
    """Of 3 steps and a batch of the first size of the shape."""
    model = Whole(eqx.nn.Linear(shape[1], shape[1], key=jax.random.key(0)), scanned)
    _, log = px.ForwardHook(model)(jnp.ones(shape))
    assert [tuple(axis) for axis in log.axes["part"]] == [
        ("step", 3),
        ("batch", shape[0]),
    ]
    return [axis.kind for axis in log.map(f).axes["part"]]


AXES = {
    "the same shape": ((5, 2), jnp.tanh, ["step", "batch"]),
    "without the value's own": ((5, 2), lambda x: x.mean(-1), ["step", "batch"]),
    "without the batch": ((5, 2), lambda x: x.mean((1, 2)), ["step"]),
    "a new one behind": ((5, 2), lambda x: x[..., None], ["step", "batch"]),
    "numbers": ((5, 2), jnp.mean, []),
    "without the steps": ((5, 2), lambda x: x.mean(0), []),
    "moved": ((5, 2), lambda x: jnp.moveaxis(x, 0, 1), []),
    "which of two of one size isn't known": ((3, 2), lambda x: x.mean((0, 2)), []),
    "nor here, of the value's own": ((5, 3), lambda x: x.mean((0, 1)), []),
    "several results": ((5, 2), lambda x: (x, x.mean((1, 2))), ["step"]),
}


@pytest.mark.parametrize("case", AXES)
def test_axes(case):
    shape, f, expected = AXES[case]
    assert axes_of(shape, f) == expected


def test_axes_behind_those_of_a_transformation_around():
    model = Whole(linear(0), scanned)
    _, log = jax.vmap(px.ForwardHook(model))(jnp.ones((7, 5, 2)))
    assert log["part"].shape == (7, 3, 5, 2)
    kinds = lambda f: [axis.kind for axis in log.map(f).axes["part"]]
    assert kinds(lambda x: x.mean(-1)) == ["step", "batch"]
    assert kinds(lambda x: x.mean((2, 3))) == ["step"]
    assert kinds(lambda x: x.mean(0)) == []


# Differences


def test_difference():
    found = OTHER - LOG
    assert isinstance(found, px.Log) and list(found) == list(LOG)
    for key in LOG:
        assert_close(found[key], OTHER[key] - LOG[key])
    assert found.axes == LOG.axes
    traced = jax.jit(lambda a, b: a - b)(OTHER, LOG)
    assert_close(dict(traced), dict(found))
    assert_close(dict(LOG - dict(LOG)), {key: jnp.zeros(2) for key in LOG})


def test_difference_to_a_run_in_half_precision():
    half = LOG.map(lambda x: x.astype(jnp.bfloat16))
    found = LOG - half
    for key in LOG:
        assert found[key].dtype == jnp.float32
        exact = np.asarray(LOG[key]) - np.asarray(half[key]).astype(np.float32)
        assert_close(np.asarray(found[key]), exact)
        assert np.any(exact)


# Errors


def test_other_keys():
    match = (
        r"^The logs have different keys: 'parts\.1' only in the first; 'c' only in the "
        r"other\. Choose what both have"
    )
    other = px.Log({"parts.0": X, "c": X})
    for call in (lambda: LOG - other, lambda: LOG.map(jnp.add, LOG, other)):
        with pytest.raises(px.LogShapeError, match=match):
            call()
    many = px.Log({f"a.{i}": X for i in range(9)})
    match = r"keys: 'a\.0', .*, 'a\.4' and 4 more only in the first; 'parts\.0', 'parts"
    with pytest.raises(px.LogShapeError, match=match):
        many - LOG


def test_other_shapes():
    _, wide = px.ForwardHook(eqx.filter_vmap(MODEL))(jnp.ones((3, 2)))
    match = (
        r"^The logs differ in shape at 'parts\.0': f32\[3,2\] and f32\[2\]\. Subtract"
    )
    with pytest.raises(px.LogShapeError, match=match):
        wide - LOG
    # What the message says to write.
    assert (wide.map(jnp.mean) - LOG.map(jnp.mean))["parts.0"].shape == ()


def test_other_structures():
    _, pairs = px.ForwardHook(MODEL, log_fn=lambda x: (x, x))(X)
    match = (
        r"^The logs hold different things at 'parts\.0': PyTreeDef\(\*\) and "
        r"PyTreeDef\(\(\*, \*\)\)\. Make both with the same `log_fn`\."
    )
    for call in (lambda: LOG - pairs, lambda: LOG.map(jnp.add, pairs)):
        with pytest.raises(px.LogShapeError, match=match):
            call()


def test_what_is_no_log():
    match = (
        r"^`log\.map` takes a function and further logs with the same keys; got a float"
        r"\. Write other arguments into the function, as in `log\.map\(lambda x: x / 2"
    )
    with pytest.raises(TypeError, match=match):
        LOG.map(jnp.add, 2.0)
    with pytest.raises(TypeError, match="unsupported operand"):
        LOG - 2.0


def test_a_function_that_fails_is_told_where():
    with pytest.raises(TypeError) as error:
        LOG.map(lambda x: jnp.dot(x, jnp.ones((5, 5))))
    note = "A function of the arrays of logs was given those at 'parts.0': f32[2]."
    assert note in error.value.__notes__
