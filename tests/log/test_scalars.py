"""A log as Python numbers by name."""

import json

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
FIRST = MODEL.parts[0](X)


def test_numbers():
    _, log = px.ForwardHook(MODEL, log_fn=px.NormLog())(X)
    found = log.scalars("norm/")
    assert list(found) == ["norm/parts.0", "norm/parts.1"]
    assert all(type(x) is float for x in found.values())
    assert_close(found["norm/parts.0"], np.linalg.norm(np.asarray(FIRST)))
    assert list(log.scalars()) == ["parts.0", "parts.1"]


def test_numbers_inside_of_entries():
    fn = lambda x: {"n": (jnp.sum(x > 0), None), "first": x[0], "all": jnp.all(x > 0)}
    _, log = px.ForwardHook(MODEL, log_fn=fn, where="parts.0")(X)
    found = log.scalars()
    assert found == {
        "parts.0/all": bool(np.all(np.asarray(FIRST) > 0)),
        "parts.0/first": float(FIRST[0]),
        "parts.0/n/0": int(np.sum(np.asarray(FIRST) > 0)),
    }
    assert [type(x) for x in found.values()] == [bool, float, int]
    assert json.loads(json.dumps(found)) == found
    _, log = px.ForwardHook(MODEL, log_fn=px.MeanStdLog())(X)
    assert list(log.scalars())[:2] == ["parts.0/mean", "parts.0/std"]


def test_of_gradients():
    step = px.value_and_grad(lambda m, x: jnp.sum(m(x)), backward=lambda ct: ct > 0)
    (_, logs), _ = step(MODEL, X)
    found = logs.backward.map(jnp.sum).scalars("grad/")
    assert found["grad/parts.1"] == 2 and type(found["grad/parts.1"]) is int


def test_of_half_precision():
    log = px.Log({"a": jnp.array(1.5, jnp.bfloat16)})
    assert log.scalars() == {"a": 1.5}


def test_traced():
    names = []

    @jax.jit
    def run(log):
        found = log.scalars("a/")
        names.extend(found)
        return list(found.values())

    _, log = px.ForwardHook(MODEL, log_fn=px.NormLog())(X)
    values = run(log)
    assert names == ["a/parts.0", "a/parts.1"]
    assert_close(values, list(log.values()))
    # What is known in a trace is a number there too.
    assert jax.jit(lambda x: x + log.scalars()["parts.0"])(0.0) == log["parts.0"]


def test_each_step():
    def run(part, x):
        step = lambda x, _: (jnp.tanh(part(x)), None)
        return jax.lax.scan(step, x, length=3)[0]

    _, log = px.ForwardHook(Whole(linear(0), run), log_fn=px.MeanStdLog())(X)
    found, x = log.scalars("a/"), X
    assert list(found) == [
        f"a/part[{i}]/{n}" for n in ("mean", "std") for i in (0, 1, 2)
    ]
    for i in range(3):
        y = linear(0)(x)
        assert_close(found[f"a/part[{i}]/mean"], float(jnp.mean(y)))
        x = jnp.tanh(y)
    assert list(jax.eval_shape(lambda log: log.scalars(), log)) == sorted(log.scalars())

    def twice(part, x):
        step = lambda x, _: (run(part, x), None)
        return jax.lax.scan(step, x, length=2)[0]

    _, log = px.ForwardHook(Whole(linear(0), twice), log_fn=px.NormLog())(X)
    assert list(log.scalars())[1:4] == ["part[0,1]", "part[0,2]", "part[1,0]"]


def test_steps_that_are_left():
    def run(part, xs):
        step = lambda xs, _: (jax.vmap(part)(xs), None)
        return jax.lax.scan(step, xs, length=3)[0]

    hooked = px.ForwardHook(Whole(linear(0), run), log_fn=px.NormLog())
    _, log = hooked(jnp.ones((5, 2)))
    match = (
        r"'part' is f32\[3,5\], with a batch axis\. Reduce that first, as in "
        r"`log\.map\(lambda x: jnp\.mean\(x, axis=1\)\)\.scalars\(\)`\.$"
    )
    with pytest.raises(px.LogShapeError, match=match):
        log.scalars()
    # What the message says to write.
    found = log.map(lambda x: jnp.mean(x, axis=1)).scalars()
    assert list(found) == ["part[0]", "part[1]", "part[2]"]
    assert_close(found["part[1]"], float(jnp.mean(log["part"][1])))


def test_no_numbers():
    _, log = px.ForwardHook(MODEL)(X)
    match = (
        r"but 'parts\.0' is f32\[2\]\. Record numbers, as by `log_fn=px\.NormLog\(\)`, "
        r"or reduce it first, as in `log\.map\(jnp\.mean\)\.scalars\(\)`\.$"
    )
    with pytest.raises(px.LogShapeError, match=match):
        log.scalars()
    assert list(log.map(jnp.mean).scalars()) == ["parts.0", "parts.1"]
    with pytest.raises(px.LogShapeError, match=r"'key' is key<fry>\[\]\. Record numb"):
        px.Log({"key": jax.random.key(0)}).scalars()
    assert px.Log({"a": None}).scalars() == px.Log().scalars() == {}


def test_two_of_one_name():
    log = px.Log({"a": {"b": jnp.ones(())}, "a/b": jnp.ones(())})
    match = r"^Two numbers of the log have the name 'x/a/b'\. Give the sites names"
    with pytest.raises(ValueError, match=match):
        log.scalars("x/")
