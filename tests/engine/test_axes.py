"""The axes, order, names and counts of logs, and logs under what is outside."""

import threading

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import twins
from closeness import assert_close
from jax import lax
from twin_case import linear
from twin_loops import BatchedBranch, Branch, Stack, While
from twin_models import MLP

import peex as px


def case(name):
    (found,) = [c for c in twins.cases() if c.name == name]
    return found


def test_cotangents_per_step_and_token_sum_to_the_bias_gradients():
    layers, tokens = 4, 5
    model = Stack(layers, seed=0)
    x = jr.normal(jr.key(1), (tokens, 3))
    hooked = px.BackwardHook(model).init(x)
    grads = eqx.filter_grad(lambda h, x: jnp.sum(jnp.sin(h(x))))(hooked, x)
    log = grads.log["blocks.linear1"]
    assert log.shape == (layers, tokens, 4)
    expected = eqx.filter_grad(lambda m, x: jnp.sum(jnp.sin(m(x))))(model, x)
    bias = expected.blocks.linear1.bias
    assert_close(log.sum(1), bias, rtol=2e-6)


def test_execution_order():
    _, log = px.ForwardHook(case("nested").model)(case("nested").x)
    assert list(log) == ["inner.yes", "inner.both", "inner.no", "outer"] or list(
        log
    ) == ["inner.no", "inner.both", "inner.yes", "outer"]
    _, log = px.ForwardHook(case("repeated_jit").model)(case("repeated_jit").x)
    assert list(log) == ["layer", "layer#1", "layer#2"]


@pytest.mark.parametrize("sign", (1, -1))
def test_counts_of_a_branch(sign):
    x = sign * jnp.ones(3)
    branch = Branch(linear(3, 3, 0), linear(3, 3, 1), linear(3, 3, 2))
    _, log = px.ForwardHook(branch)(x)
    # `both` is in each branch, so it runs in any case.
    counts = {k: int(v) for k, v in log.counts.items()}
    assert counts == {"yes": int(sign > 0), "no": int(sign < 0)}
    assert all(v.dtype == jnp.int32 for v in log.counts.values())
    not_taken = "no" if sign > 0 else "yes"
    np.testing.assert_array_equal(log[not_taken], np.zeros(3))


@pytest.mark.parametrize("jit", (True, False))
def test_counts_have_step_and_batch_axes(jit):
    branch = Branch(linear(3, 3, 0), linear(3, 3, 1), linear(3, 3, 2))
    xs = jr.normal(jr.key(0), (4, 5, 3))  # steps, batch

    def model(m, xs):
        return lax.map(BatchedBranch(m), xs)

    hooked = px.ForwardHook(branch, method=model)
    _, log = (eqx.filter_jit(hooked) if jit else hooked)(xs)
    np.testing.assert_array_equal(log.counts["yes"], xs[..., 0] > 0)
    np.testing.assert_array_equal(log.counts["no"], xs[..., 0] <= 0)
    # The other way round: steps still come first.
    hooked = px.ForwardHook(
        branch, method=lambda m, xs: jax.vmap(lambda xs: lax.map(m, xs), in_axes=1)(xs)
    )
    _, log = (eqx.filter_jit(hooked) if jit else hooked)(xs)
    np.testing.assert_array_equal(log.counts["yes"], xs[..., 0] > 0)
    assert log["yes"].shape == (4, 5, 3)


def test_counts_of_a_loop():
    loop = While(linear(3, 3, 50), linear(3, 1, 51))
    x = jnp.array([0.1, -0.2, 0.3])
    steps, y = 0, x
    while steps < 5 and loop.check(y)[0] < 2.0:
        y = y + jnp.abs(loop.cell(y))
        steps += 1
    _, log = px.ForwardHook(loop)(x)
    assert int(log.counts["cell"]) == steps
    assert int(log.counts["check"]) == steps + 1


def test_a_branch_in_a_loop_keeps_the_last_value_it_had():
    lin = linear(3, 3, 0)

    def model(m, x):
        def step(state):
            i, x = state
            return i + 1, lax.cond(i % 3 == 0, lambda x: m(x), lambda x: x * 0.5, x)

        return lax.while_loop(lambda s: s[0] < 5, step, (0, x))[1]

    x = jnp.ones(3)
    _, log = px.ForwardHook(lin, method=model)(x)
    expected = lin(lin(x) * 0.25)  # steps 0 and 3
    assert_close(log["."], expected)
    assert int(log.counts["."]) == 2


@pytest.mark.parametrize("name", ("mlp", "stack", "composite", "batched_branch"))
def test_vmap_outside_is_a_loop(name):
    c = case(name)
    xs = jr.normal(jr.key(7), (3, *c.x.shape))
    outs, logs = eqx.filter_vmap(px.ForwardHook(c.model))(xs)
    for i, x in enumerate(xs):
        out, log = px.ForwardHook(c.model)(x)
        assert_close(outs[i], out, rtol=2e-6)
        for key in log:
            assert_close(logs[key][i], log[key], rtol=2e-6)


def test_a_wrapper_inside_of_a_loop():
    mlp = MLP(3, 4, 3, key=jr.key(0))
    hooked = px.ForwardHook(mlp)
    xs = jr.normal(jr.key(1), (5, 3))
    _, (outs, log) = lax.scan(lambda c, x: (c, hooked(x)), None, xs)
    assert_close(outs, jax.vmap(mlp)(xs), rtol=2e-6)
    assert log["linear1"].shape == (5, 4)


def test_nested_wrappers_inside_and_outside_of_a_loop():
    class Outer(eqx.Module):
        inner: px.ForwardHook
        head: eqx.nn.Linear

        def __call__(self, xs):
            def step(carry, x):
                out, log = self.inner(x)
                return carry + jnp.sum(log["linear1"]), self.head(out)

            return lax.scan(step, 0.0, xs)

    mlp = MLP(3, 4, 3, key=jr.key(0))
    model = Outer(px.ForwardHook(mlp), linear(3, 2, 1))
    xs = jr.normal(jr.key(1), (5, 3))
    (total, _), log = eqx.filter_jit(px.ForwardHook(model))(xs)
    first = jax.vmap(mlp.linear1)(xs)
    assert_close(total, jnp.sum(first), rtol=1e-5)
    assert list(log) == ["inner.linear1", "inner.linear2", "head"]
    assert_close(log["inner.linear1"], first, rtol=2e-6)


@pytest.mark.parametrize("jit", (True, False))
def test_backward_and_forward_log_of_one_call(jit):
    c = case("composite")
    hooked = px.BackwardHook(px.ForwardHook(c.model)).init(c.x)

    def loss(hooked, x):
        out, log = hooked(x)
        return jnp.sum(jnp.sin(out)), log

    grad = eqx.filter_grad(loss, has_aux=True)
    grads, log = (eqx.filter_jit(grad) if jit else grad)(hooked, c.x)
    _, expected = px.ForwardHook(c.model)(c.x)
    alone = px.BackwardHook(c.model).init(c.x)
    alone = eqx.filter_grad(lambda h, x: jnp.sum(jnp.sin(h(x))))(alone, c.x)
    for key in expected:
        assert_close(log[key], expected[key], rtol=2e-6)
        assert_close(grads.log[key], alone.log[key], rtol=2e-6)


def test_double_precision():
    with jax.enable_x64(True):
        for c in twins.cases():
            if c.name not in ("stack", "batched_branch", "force_grad"):
                continue
            to64 = lambda x: x.astype(jnp.float64) if eqx.is_inexact_array(x) else x
            model, x = jax.tree.map(to64, (c.model, c.x))
            c64 = twins.Case(c.name, model, x, c.twin)
            out, log = eqx.filter_jit(px.ForwardHook(model))(x)
            expected_out, expected = c.twin(model, x, c64.eps())
            assert_close(out, expected_out, rtol=1e-12)
            hooked = px.BackwardHook(model).init(x)
            loss = lambda h, x: jnp.sum(jnp.sin(h(x)))
            grads = eqx.filter_jit(eqx.filter_grad(loss))(hooked, x)
            eps = jax.jit(
                jax.grad(
                    lambda e, m=model, x=x, c=c: jnp.sum(jnp.sin(c.twin(m, x, e)[0]))
                )
            )(c64.eps())
            for key in expected:
                assert log[key].dtype == grads.log[key].dtype == jnp.float64
                assert_close(log[key], expected[key], rtol=1e-12)
                assert_close(grads.log[key], eps[key], rtol=1e-12)


def test_threads_have_their_own_calls():
    xs = jr.normal(jr.key(0), (5, 3))
    models = [Stack(n, seed=n) for n in (2, 3, 4, 5)]
    shapes, errors = {}, []

    def work(model, n):
        try:
            for _ in range(3):
                _, log = px.ForwardHook(model)(xs)
                shapes.setdefault(n, set()).add(log["blocks.linear1"].shape)
        except Exception as e:
            errors.append(e)

    threads = [
        threading.Thread(target=work, args=(m, n))
        for n, m in zip((2, 3, 4, 5), models, strict=True)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert shapes == {n: {(n, 5, 4)} for n in (2, 3, 4, 5)}


def test_eager_values_stay_concrete():
    def model(m, x):
        y = m(x)
        return m(y) if float(y[0]) > 0 else y  # Python, on a value

    lin = linear(3, 3, 0)
    out, log = px.ForwardHook(lin, method=model)(jnp.ones(3))
    assert len(log) == (2 if float(lin(jnp.ones(3))[0]) > 0 else 1)
    assert not isinstance(out, jax.core.Tracer)


def test_eager_loops_are_compiled_once():
    lin = linear(3, 3, 0)
    traces = 0

    def step(carry, _):
        nonlocal traces
        traces += 1
        m, x = carry
        return (m, jnp.tanh(m(x))), None

    def model(m, x):
        return lax.scan(step, (m, x), length=4)[0][1]

    hooked = px.ForwardHook(lin, method=model)
    with jax.log_compiles(False):
        for i in range(3):
            hooked(jnp.full(3, float(i)))
            if i == 0:
                first = traces
    assert traces == first
