"""Hooks around calls: what is replaced isn't run, and one call of several can be."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from called_twice import BATCH, NET, XS
from closeness import assert_close
from jax import lax
from twin_case import linear

import peex as px


RUNS = {"eager": lambda f: f, "jit": eqx.filter_jit}


def twin(x, first=None, second=None):
    """By hand, with a function in the place of each call of `b.shared`."""
    shared = NET.b.shared
    h = (first or shared)(NET.a(x))
    return NET.c((second or shared)(jnp.tanh(h)))


def zeros(x):
    return jnp.zeros(4)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("act", ("zero", "replace"))
def test_one_call_of_a_shared_layer(act, run):
    hook = px.ZeroHook() if act == "zero" else px.ReplaceCall(zeros)
    _, plain = px.ForwardHook(NET, method=BATCH)(XS)
    second = px.ForwardHook(NET, {"b.shared#1": hook}, method=BATCH)
    out, log = run(second)(XS)
    np.testing.assert_array_equal(out, jnp.broadcast_to(NET.c.bias, (3, 2)))
    assert list(log) == list(plain)
    assert_close(log["b.shared"], plain["b.shared"], rtol=1e-6)
    assert not np.any(log["b.shared#1"])
    first = px.ForwardHook(NET, {"b.shared#0": hook}, method=BATCH)
    out, log = run(first)(XS)
    assert_close(out, jax.vmap(lambda x: twin(x, first=zeros))(XS), rtol=1e-5)
    assert not np.any(log["b.shared"])
    assert np.any(out != jnp.broadcast_to(NET.c.bias, (3, 2)))


def test_called_again():
    """What was made for one call of the wrapper is used for the next."""
    for hooks in (
        {"b.shared#1": px.AddHook(jnp.ones(4))},
        {"b.shared#1": px.ReplaceCall(px.AddHook(jnp.ones(4)))},
    ):
        for where in (None, "b.shared", "b.shared#1"):
            hooked = px.ForwardHook(NET, hooks, where=where)
            first, _ = hooked(XS[0])
            assert_close(hooked(XS[0])[0], first)


def test_each_call_has_the_first_hook_that_matches():
    add = lambda value: lambda x: x + value
    hooks = {"b.shared#1": add(1.0), "b.shared": add(2.0)}
    out, log = px.ForwardHook(NET, hooks)(XS[0])
    shared = NET.b.shared
    moved = lambda value: lambda x: shared(x) + value
    assert_close(out, twin(XS[0], moved(2.0), moved(1.0)), rtol=1e-5)
    assert list(log) == ["a", "b.shared", "b.shared#1", "c"]
    assert_close(log["b.shared"], shared(NET.a(XS[0])) + 2.0, rtol=1e-5)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_another_replacement_for_each_call(run):
    """Which call this is is asked of each, whatever the others do."""
    hooks = {
        f"b.shared#{i}": px.ReplaceCall(f) for i, f in enumerate((jnp.sin, jnp.cos))
    }
    expected = jax.vmap(lambda x: twin(x, jnp.sin, jnp.cos))(XS)
    assert_close(run(px.ForwardHook(NET, hooks, method=BATCH))(XS)[0], expected)
    jitted = lambda net, xs: jax.vmap(jax.jit(lambda x: net(x)))(xs)
    assert_close(run(px.ForwardHook(NET, hooks, method=jitted))(XS)[0], expected)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_around_a_call(run):
    """Once, twice, never, and with other arguments."""
    shared = NET.b.shared
    for fn, by_hand in (
        (lambda call, x: x + call(x), lambda x: x + shared(x)),
        (lambda call, x: call(call(2 * x)), lambda x: shared(shared(2 * x))),
        (lambda call, x: jnp.sin(x), jnp.sin),
    ):
        hooked = px.ForwardHook(NET, px.AroundCall(fn), where="b.shared", method=BATCH)
        out, _ = run(hooked)(XS)
        expected = jax.vmap(lambda x, by=by_hand: twin(x, by, by))(XS)
        assert_close(out, expected, rtol=1e-5)


class Inner(eqx.Module):
    lin: eqx.nn.Linear

    def __call__(self, x):
        return self.lin(x)


def test_nothing_of_an_original_that_is_not_run_is_logged():
    ran = []

    class Loud(eqx.Module):
        inner: Inner

        def __call__(self, x):
            jax.debug.callback(lambda: ran.append(1))
            return self.inner(x)

    class Outer(eqx.Module):
        loud: Loud
        last: eqx.nn.Linear

        def __call__(self, x):
            return self.last(self.loud(x))

    model = Outer(Loud(Inner(linear(4, 4, 0))), linear(4, 2, 1))
    hooks = {"loud": px.ReplaceCall(jnp.tanh)}
    for run in RUNS.values():
        hooked = px.ForwardHook(model, hooks, where=["loud", "last"])
        out, log = run(hooked)(XS[0])
        jax.effects_barrier()
        assert not ran
        assert_close(out, model.last(jnp.tanh(XS[0])))
        assert list(log) == ["loud", "last"]
    both = px.ForwardHook(model, {"loud": px.ReplaceCall(jnp.tanh)}, where="**")
    assert list(both(XS[0])[1]) == ["loud", "last", "."]


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("number", (0, 1))
def test_one_call_of_a_jitted_function(number, run):
    jitted = eqx.filter_jit(lambda layer, x: layer(x))

    class Jitted(eqx.Module):
        lin: eqx.nn.Linear

        def __call__(self, x):
            return jitted(self.lin, jnp.tanh(jitted(self.lin, x)))

    model = Jitted(linear(4, 4, 0))
    hooked = px.ForwardHook(model, {f"lin#{number}": px.ReplaceCall(jnp.sin)})
    out, log = run(hooked)(XS[0])
    calls = [jnp.sin if i == number else model.lin for i in range(2)]
    first = calls[0](XS[0])
    assert_close(out, calls[1](jnp.tanh(first)), rtol=1e-5)
    assert_close(log["lin"], first, rtol=1e-5)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_in_a_scan_with_a_checkpoint_and_an_inner_vmap(run):
    def model(net, xs):
        step = jax.checkpoint(lambda xs, _: (jax.vmap(net.b)(xs), None))
        return lax.scan(step, xs, length=3)[0]

    other = linear(4, 4, 7)
    hooks = {"b.shared#1": px.ReplaceCall(other)}
    hooked = px.ForwardHook(NET, hooks, where="b.shared", method=model)

    def by_hand(other, xs):
        for _ in range(3):
            xs = jax.vmap(lambda x: other(jnp.tanh(NET.b.shared(x))))(xs)
        return xs

    assert_close(run(hooked)(XS)[0], by_hand(other, XS), rtol=1e-5)
    loss = lambda hooked: jnp.sum(hooked(XS)[0] ** 2)
    grads = run(eqx.filter_grad(loss))(hooked)
    expected = eqx.filter_grad(lambda other: jnp.sum(by_hand(other, XS) ** 2))(other)
    got = grads.hook_fn["b.shared#1"].fn
    assert_close(got.weight, expected.weight, rtol=1e-4)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("taken", (False, True))
def test_in_a_branch(taken, run):
    def model(net, x, taken):
        x = net.a(x)
        return lax.cond(taken, lambda x: net.a(jnp.sin(x)), lambda x: x, x)

    hooked = px.ForwardHook(
        NET, {"a#1": px.ReplaceCall(jnp.cos)}, where="a", method=model
    )
    out, _ = run(hooked)(XS[0], taken)
    h = NET.a(XS[0])
    assert_close(out, jnp.cos(jnp.sin(h)) if taken else h, rtol=1e-5)


def test_stateful_layers_and_keywords():
    norm, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(4, "b", mode="ema")

    class Stateful(eqx.Module):
        norm: eqx.nn.BatchNorm

        def __call__(self, x, state):
            return self.norm(x, state, inference=False)

    model = Stateful(norm)
    batched = lambda m, xs, s: jax.vmap(
        m, axis_name="b", in_axes=(0, None), out_axes=(0, None)
    )(xs, s)
    seen = []

    def around(call, x, state, *, inference):
        seen.append(inference)
        out, state = call(x, state, inference=inference)
        return 2 * out, state

    hooked = px.ForwardHook(model, px.AroundCall(around), where="norm", method=batched)
    (out, new), _ = hooked(XS, state)
    expected, after = batched(model, XS, state)
    assert_close(out, 2 * expected, rtol=1e-5)
    assert seen == [False]
    assert jax.tree.structure(new) == jax.tree.structure(after)


def test_every_method():
    class Embed(eqx.Module):
        table: jax.Array

        def __call__(self, i):
            return self.table[i]

        def attend(self, x):
            return self.table @ x

        def unused(self):
            return None

    class Tied(eqx.Module):
        embed: Embed

        def __call__(self, i):
            return self.embed.attend(self.embed(i))

    model = Tied(Embed(jr.normal(jr.key(0), (5, 3))))
    _, log = px.ForwardHook(model, where="embed:*")(1)
    assert list(log) == ["embed", "embed:attend"]
    hooked = px.ForwardHook(model, {"embed:*": px.ScaleHook(2.0)}, where="embed:*")
    assert_close(hooked(1)[0], 4 * model(1), rtol=1e-5)


def test_what_is_refused():
    for hook in (px.AroundCall, px.ReplaceCall):
        match = f"{hook.__name__} was given 3, which can't"
        with pytest.raises(TypeError, match=match):
            hook(3)
    match = "of a BackwardHook is ReplaceCall, which stands"
    with pytest.raises(TypeError, match=match):
        px.BackwardHook(NET, {"a": px.ReplaceCall(jnp.sin)})
    match = "'./tanh' is a value inside of a module, and no"
    with pytest.raises(TypeError, match=match):
        px.ForwardHook(NET.b, px.ReplaceCall(jnp.sin), where="./tanh")
    wrong = px.ForwardHook(NET, px.ReplaceCall(lambda x: x[:2]), where="b.shared")
    match = (
        r"ReplaceCall, returned an output of another shape or dtype .* float32\[4\], g"
    )
    for run in RUNS.values():
        with pytest.raises(px.HookShapeError, match=match):
            run(wrong)(XS[0])
    with pytest.raises(px.SiteNotFiredError, match="'b.shared' ran twice"):
        px.ForwardHook(NET, {"b.shared#2": px.ReplaceCall(jnp.sin)})(XS[0])

    def loop(net, x):
        body = lambda c: (c[0] + 1, net.b(c[1]))
        return lax.while_loop(lambda c: c[0] < 3, body, (0, x))[1]

    hooks = {"b.shared#1": px.ReplaceCall(jnp.sin)}
    with pytest.raises(px.SiteLostError, match="'b.shared' ran, but .* `while` loop"):
        px.ForwardHook(NET, hooks, where="b.shared", method=loop)(XS[0])
