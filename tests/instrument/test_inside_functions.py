"""Named values of functions of one's own: jitted, shared, called in loops, marked."""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from closeness import assert_close
from inside_models import (
    Marked,
    TWO,
    V,
    Weighted,
)

import peex as px


@pytest.mark.parametrize("jit", [False, True])
def test_two_modules_that_share_a_jitted_function(jit):
    TWO(V)  # JAX has traced it
    hooked = px.ForwardHook(TWO, where=["*/shared", "*/helper"])
    _, log = (eqx.filter_jit(hooked) if jit else hooked)(V)
    y = jnp.tanh(V + 1) + 2 * V + 1
    expected = {
        "a/helper": V + 1,
        "a/shared": jnp.tanh(V + 1),
        "a/helper#1": 2 * V + 1,
        "b/helper": 0.6 * y + 1,
        "b/shared": jnp.tanh(0.6 * y + 1),
        "b/helper#1": 2 * y + 1,
    }
    assert list(log) == list(expected)
    for key, value in expected.items():
        assert_close(log[key], value)


def test_editing_in_one_of_two_modules_that_share_a_jitted_function():
    TWO(V)
    out, _ = px.ForwardHook(TWO, px.ZeroHook(), None, where="b/helper")(V)
    y = jnp.tanh(V + 1) + 2 * V + 1
    assert_close(out, jnp.tanh(jnp.zeros(2)) + jnp.zeros(2))
    out, _ = px.ForwardHook(TWO, px.ZeroHook(), None, where="b/tanh")(V)
    assert_close(out, 2 * y + 1)


def activation(x):
    return jnp.sin(x) * x


def repeated(x):
    for _ in range(3):
        x = 2 * x
    return x


class Loops(eqx.Module):
    def __call__(self, x):
        for _ in range(3):
            x = activation(x)
        y = repeated(x)
        return activation(y) + activation(x), y

    def body(self, x):
        return jax.lax.scan(lambda x, _: (activation(x), x), x, None, length=3)[0]

    def branch(self, x):
        return jax.lax.cond(x[0] > 0, activation, lambda x: 3 * x, x)

    def both(self, x):
        x = jax.lax.cond(x[0] > 0, activation, lambda x: activation(3 * x), x)
        return activation(x)

    def while_(self, x):
        return jax.lax.while_loop(lambda x: x[0] > 0.1, activation, x)

    def remat(self, x):
        return jax.checkpoint(activation)(x) + activation(x)


def by_hand(x):
    return jnp.sin(x) * x


def test_calls_in_python_loops_are_told_apart():
    (out, y), log = px.ForwardHook(Loops(), where=["./activation", "./repeated"])(V)
    x = V
    values = [x := by_hand(x) for _ in range(3)]
    assert list(log) == [
        "./activation",
        "./activation#1",
        "./activation#2",
        "./repeated",
        "./activation#3",
        "./activation#4",
    ]
    values += [8 * x, by_hand(8 * x), by_hand(x)]
    for value, expected in zip(log.values(), values, strict=True):
        assert_close(value, expected)


def test_in_the_body_of_a_scan():
    hooked = px.ForwardHook(Loops(), where=["./activation", "./sin"], method="body")
    out, log = hooked(V)
    x = V
    values = [x := by_hand(x) for _ in range(3)]
    assert list(log) == ["./sin", "./activation"]
    assert_close(log["./activation"], jnp.stack(values))
    assert_close(out, values[-1])
    hooked = px.BackwardHook(Loops(), where="./activation", method="body").init(V)
    log = eqx.filter_grad(lambda h: h(V).sum())(hooked).log
    cotangents, g = [], jnp.ones(2)
    for x in [values[1], values[0], None]:
        cotangents.insert(0, g)
        if x is not None:
            g = g * (jnp.cos(x) * x + jnp.sin(x))
    assert_close(log["./activation"], jnp.stack(cotangents))


@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize("sign", [1, -1])
def test_in_the_branches_of_a_cond(sign):
    hooked = px.ForwardHook(Loops(), where="./activation", method="branch")
    x = sign * V
    out, log = hooked(x)
    assert list(log) == ["./activation"]
    assert_close(log["./activation"], by_hand(x) if sign > 0 else jnp.zeros(2))
    assert log.counts["./activation"] == (sign > 0)
    assert_close(out, by_hand(x) if sign > 0 else 3 * x)


@pytest.mark.parametrize("sign", [1, -1])
def test_in_both_branches_of_a_cond(sign):
    hooked = px.ForwardHook(Loops(), where="./activation", method="both")
    out, log = hooked(sign * V)
    assert list(log) == ["./activation", "./activation#1"]
    assert_close(log["./activation"], by_hand(V if sign > 0 else -3 * V))
    assert_close(out, by_hand(log["./activation"]))
    assert_close(out, log["./activation#1"])


def test_in_the_body_of_a_while_loop():
    hooked = px.ForwardHook(Loops(), where="./activation", method="while_")
    out, log = hooked(V)
    x, n = V, 0
    while x[0] > 0.1:
        x, n = by_hand(x), n + 1
    assert log.counts["./activation"] == n
    assert_close(log["./activation"], x)
    assert_close(out, x)


def test_in_a_checkpoint():
    hooked = px.ForwardHook(Loops(), px.ScaleHook(2.0), where="./sin", method="remat")
    out, log = hooked(V)
    assert list(log) == ["./sin", "./sin#1"]
    assert_close(out, 4 * by_hand(V))
    remat = lambda x: hooked(x)[0]
    assert "remat" in str(jax.make_jaxpr(remat)(V)) or "checkpoint" in str(
        jax.make_jaxpr(remat)(V)
    )


def test_marks():
    out, log = px.ForwardHook(Marked(), px.ScaleHook(3.0), where="./wave")(V)
    assert_close(log["./wave"], 3 * jnp.sin(V))
    assert_close(out, 3 * jnp.sin(V) + jax.nn.relu(V))


def test_a_function_with_a_derivative_rule_by_its_name():
    out, log = px.ForwardHook(Marked(), px.ScaleHook(3.0), where="./relu")(V)
    assert_close(log["./relu"], 3 * jax.nn.relu(V))
    assert_close(out, jnp.sin(V) + 3 * jax.nn.relu(V))


class Splits(eqx.Module):
    def __call__(self, x):
        a, b = jnp.split(x, 2)
        return a * b


def test_several_results_are_a_tuple():
    out, log = px.ForwardHook(Splits(), where="./split")(V)
    assert_close(log["./split"][0], V[:1])
    assert_close(log["./split"][1], V[1:])
    out, _ = px.ForwardHook(Splits(), px.ScaleHook(2.0), where="./split")(V)
    assert_close(out, 4 * V[:1] * V[1:])


class Mixed(eqx.Module):
    linear: eqx.nn.Linear

    def __call__(self, x):
        return self.scaled(self.linear(x)) * jnp.sqrt(2.0)

    def scaled(self, x):
        return x * 3 * self.linear(x)

    @eqx.filter_jit
    def jitted(self, x):
        return self.scaled(x)


MIXED = Mixed(eqx.nn.Linear(2, 2, key=jr.key(7)))


def test_hooks_and_logs_of_other_sites_are_not_inside():
    hooks = {"linear": px.ScaleHook(1.0), "**": None, "./*": None}
    logs = {"linear": lambda x: jnp.sqrt(jnp.sum(x * x)), "./*": px.IdentityLog()}
    where = ["linear", "./mul", "./scaled"]
    out, log = px.ForwardHook(MIXED, hooks, logs, where=where)(V)
    assert [k for k in log if k.startswith(".")] == [
        "./mul",
        "./mul#1",
        "./scaled",
        "./mul#2",
    ]
    y = MIXED.linear(V)
    assert_close(log["./mul"], 3 * y)
    assert_close(log["./scaled"], 3 * y * MIXED.linear(y))
    assert_close(log["./mul#2"], out)
    assert_close(log["linear#1"], jnp.linalg.norm(MIXED.linear(y)))


def test_cotangents_of_sites_and_values_inside_of_one_module():
    hooked = px.BackwardHook(MIXED, where=["linear", "./scaled"]).init(V)
    log = eqx.filter_grad(lambda hooked: jnp.sum(hooked(V)))(hooked).log
    assert list(log) == ["linear", "linear#1", "./scaled"]
    assert_close(log["./scaled"], jnp.sqrt(2.0) * jnp.ones(2))
    y = MIXED.linear(V)
    assert_close(log["linear#1"], jnp.sqrt(2.0) * 3 * y)


def test_inside_of_a_jitted_method():
    hooked = px.ForwardHook(MIXED, where="./scaled", method="jitted")
    out, log = hooked(V)
    assert_close(log["./scaled"], V * 3 * MIXED.linear(V))
    assert_close(out, log["./scaled"])


def test_a_module_inside_of_one_of_its_own_class():
    class Node(eqx.Module):
        scale: float
        child: "Node | None" = None

        def __call__(self, x):
            x = jnp.tanh(self.scale * x)
            return x if self.child is None else self.child(x)

    model = Node(1.0, Node(2.0))
    _, log = px.ForwardHook(model, where=["./tanh", "child/tanh"])(V)
    assert list(log) == ["./tanh", "child/tanh"]
    assert_close(log["child/tanh"], jnp.tanh(2 * jnp.tanh(V)))


def test_a_function_around_a_module_with_values_inside():
    class Outer(eqx.Module):
        part: Weighted

        def __call__(self, x):
            return 3 * self.around(x)

        def around(self, x):
            return jnp.sin(self.part(2 * x)) + 1

    model = Outer(Weighted(jnp.array(0.7)))
    out, log = px.ForwardHook(model, where=["./around", "part/tanh"])(V)
    assert list(log) == ["part/tanh", "./around"]
    assert_close(log["part/tanh"], jnp.tanh(1.4 * V))
    assert_close(log["./around"], jnp.sin(jnp.tanh(1.4 * V)) + 1)


def test_a_function_named_as_one_of_peex_s_own():
    # Which are on the stack, too, where a part is called.
    class Outer(eqx.Module):
        part: Weighted

        def __call__(self, x):
            return 3 * self.method(x)

        def method(self, x):
            return jnp.sin(self.around(x)) + 1

        def around(self, x):
            return 2 * self.part(x)

    model = Outer(Weighted(jnp.array(0.7)))
    where = ["./around", "./method"]
    _, log = px.ForwardHook(model, where=where)(V)
    assert list(log) == where
    assert_close(log["./around"], 2 * model.part(V))


class Turns(eqx.Module):
    """A function that begins with sin and cos by turns, called in all ways."""

    how: str = eqx.field(static=True)

    def __call__(self, x):
        def step(i, x):
            return (jnp.sin(x) if i % 2 else jnp.cos(x)) + x

        if self.how == "loop":
            for i in range(4):
                x = step(i, x)
            return x
        if self.how == "map":
            return sum(map(step, range(4), [x] * 4))
        if self.how == "scan":
            run = lambda x, _: (step(1, step(0, x)), None)
            return jax.lax.scan(run, x, length=2)[0]
        if self.how == "vmap":
            return jax.vmap(lambda y: step(1, step(0, y)))(x)
        if self.how == "grad":
            return jax.grad(lambda y: jnp.sum(step(1, step(0, y))))(x)
        return eqx.filter_jit(lambda x: step(1, step(0, x)))(x)


def turns(i, x):
    return (jnp.sin(x) if i % 2 else jnp.cos(x)) + x


@pytest.mark.parametrize("how", ["loop", "map", "scan", "vmap", "grad", "jit"])
def test_calls_of_a_function_that_begins_in_two_ways(how):
    for _ in range(2):  # JAX keeps what it has traced
        out, log = px.ForwardHook(Turns(how), where="./step")(V)
        assert_close(out, Turns(how)(V))
        values = []
        x = V
        for i in range(4):
            y = turns(i, V if how == "map" else x)
            values.append(y)
            x = y
        keys = ["./step", "./step#1", "./step#2", "./step#3"]
        if how in ("loop", "map"):
            assert list(log) == keys
        else:
            assert list(log) == keys[:2]
        if how == "scan":
            values = [jnp.stack(values[::2]), jnp.stack(values[1::2])]
        for value, expected in zip(log.values(), values, strict=False):
            assert_close(value, expected)
    scaled, _ = px.ForwardHook(Turns(how), px.ScaleHook(1.0), where="./step#1")(V)
    assert_close(scaled, out)


class Several(eqx.Module):
    def __call__(self, x):
        def pair(x):
            second = jnp.cos(x)
            first = jnp.sin(x)
            return first, {"y": second, "x": x}

        a, rest = pair(x)
        return a - 2 * rest["y"]


def test_values_are_in_the_order_in_which_they_are_returned():
    out, log = px.ForwardHook(Several(), where="./pair")(V)
    first, second = log["./pair"]  # what it was given is none of its values
    assert_close(first, jnp.sin(V))
    assert_close(second, jnp.cos(V))
    double = lambda pair: (pair[0], 2 * pair[1])
    out, _ = px.ForwardHook(Several(), double, where="./pair")(V)
    assert_close(out, jnp.sin(V) - 4 * jnp.cos(V))


def test_a_profiler_goes_on():
    seen = []
    profiler = lambda frame, event, arg: seen.append(event)
    before = sys.getprofile()
    sys.setprofile(profiler)
    try:
        px.ForwardHook(Several(), where="./pair")(V)
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(before)
    assert seen


def test_a_program_with_names_inside_holds_nothing_of_them():
    run = lambda x: px.ForwardHook(Turns("scan"), where="./cos")(x)[1]
    assert "peex" not in str(jax.make_jaxpr(run)(V))
