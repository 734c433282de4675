"""Hooks at chosen steps, patches from other runs, the last steps of while loops."""

import functools as ft

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
from twin_loops import Stack
from twin_models import MLP

import peex as px


def recurrent(m, x):
    return lax.scan(lambda x, _: (jnp.tanh(m(x)), None), x, length=5)[0]


def recurrent_twin(m, x, act):
    """`act(step, value)` is what a hook does."""
    values = []
    for i in range(5):
        values.append(act(i, m(x)))
        x = jnp.tanh(values[-1])
    return x, jnp.stack(values)


LIN, X = linear(3, 3, 0), jnp.arange(3.0) / 3


@pytest.mark.parametrize("jit", (False, True))
@pytest.mark.parametrize(
    "steps, chosen",
    [
        (2, {2}),
        (-1, {4}),
        ([0, 3], {0, 3}),
        (range(2, 4), {2, 3}),
        (jnp.array([1, -2]), {1, 3}),
        (jnp.array(2), {2}),
        (None, set(range(5))),
        ((1,), {1}),
    ],
)
def test_at_step(steps, chosen, jit):
    hooked = px.ForwardHook(LIN, px.AtStep(px.ScaleHook(2.0), steps), method=recurrent)
    out, log = (eqx.filter_jit(hooked) if jit else hooked)(X)
    act = lambda i, v: 2 * v if i in chosen else v
    expected, values = recurrent_twin(LIN, X, act)
    assert_close(out, expected, rtol=2e-6)
    assert_close(log["."], values, rtol=2e-6)


def test_at_step_counts_the_axes_of_loops_in_loops():
    def model(m, x):
        outer = lambda x, _: (recurrent(m, x), None)
        return lax.scan(outer, x, length=3)[0]

    for steps, where in (
        ((1, 2), (1, 2)),
        ((None, [0, 4]), (slice(None), [0, 4])),
        (2, (2,)),
    ):
        hooked = px.ForwardHook(LIN, px.AtStep(px.ZeroHook(), steps), method=model)
        _, log = eqx.filter_jit(hooked)(X)
        zero = np.all(np.asarray(log["."]) == 0, axis=-1)
        expected = np.zeros((3, 5), bool)
        expected[where] = True
        np.testing.assert_array_equal(zero, expected)


def test_traced_steps_do_not_recompile():
    traces = 0

    @eqx.filter_jit
    def run(steps, x):
        nonlocal traces
        traces += 1
        hook = px.AtStep(px.ScaleHook(2.0), steps)
        return px.ForwardHook(LIN, hook, method=recurrent)(x)[1]["."]

    for step in range(3):
        act = lambda i, v, step=step: 2 * v if i == step else v
        expected = recurrent_twin(LIN, X, act)[1]
        assert_close(run(jnp.array([step]), X), expected, rtol=2e-6)
    assert traces == 1


def test_at_step_of_a_layer_in_a_scanned_stack_per_example():
    model, xs = Stack(4, seed=0), jr.normal(jr.key(1), (5, 3))
    hook = px.AtStep(px.ZeroHook(), [2])
    _, log = px.ForwardHook(model, hook, where="blocks.linear1")(xs)
    zero = np.all(np.asarray(log["blocks.linear1"]) == 0, axis=(1, 2))
    np.testing.assert_array_equal(zero, [False, False, True, False])


@pytest.mark.parametrize("jit", (False, True))
def test_at_step_of_a_cotangent(jit):
    hook = px.AtStep(px.ScaleHook(2.0), [1])
    hooked = px.BackwardHook(LIN, hook, method=recurrent).init(X)
    grad = eqx.filter_grad(lambda h, x: jnp.sum(h(x)))
    grads = (eqx.filter_jit(grad) if jit else grad)(hooked, X)
    # By hand: from the last step to the first.
    _, values = recurrent_twin(LIN, X, lambda i, v: v)
    c, expected = jnp.ones(3), [None] * 5
    for i in reversed(range(5)):
        c = c * (1 - jnp.tanh(values[i]) ** 2)
        c = 2 * c if i == 1 else c
        expected[i] = c
        c = LIN.weight.T @ c
    assert_close(grads.log["."], jnp.stack(expected), rtol=1e-5)


def test_at_step_outside_of_a_loop_is_an_error():
    mlp = MLP(3, 4, 3, key=jr.key(0))
    hooked = px.ForwardHook(mlp, px.AtStep(px.ZeroHook(), 0))
    with pytest.raises(px.HookShapeError, match="'linear1' is inside of 0"):
        hooked(X)
    hooked = px.ForwardHook(LIN, px.AtStep(px.ZeroHook(), 5), method=recurrent)
    with pytest.raises(px.HookShapeError, match="given step 5.*has 5 steps: 0 to 4"):
        hooked(X)


PATCHABLE = (
    "mlp",
    "tokens",
    "grid",
    "recurrent",
    "reverse",
    "stack",
    "batched_scan",
    "checkpointed",
    "repeated",
    "repeated_jit",
    "force_grad",
    "composite",
    "nested",
    "batched_branch",
)


@pytest.mark.parametrize("jit", (False, True))
@pytest.mark.parametrize("name", PATCHABLE)
def test_patching_with_its_own_log_is_the_identity(name, jit):
    (case,) = [c for c in twins.cases() if c.name == name]
    run = eqx.filter_jit if jit else lambda f: f
    out, log = run(lambda h, x: h(x))(px.ForwardHook(case.model), case.x)
    patched = px.ForwardHook(case.model, px.PatchHook(log), None)
    again, _ = run(lambda h, x: h(x))(patched, case.x)
    assert_close(again, out)


def test_patching_from_another_run_per_step_and_example():
    model = lambda m, xs: jax.vmap(lambda x: recurrent(m, x))(xs)
    source, target = jr.normal(jr.key(0), (2, 4, 3))
    _, log = px.ForwardHook(LIN, method=model)(source)
    mask = jnp.zeros((5, 4, 1), bool).at[2, 1].set(True)
    hooked = px.ForwardHook(LIN, px.At(px.PatchHook(log), mask), method=model)
    _, patched = eqx.filter_jit(hooked)(target)
    for j, x in enumerate(target):
        act = lambda i, v, j=j: log["."][2, 1] if (i, j) == (2, 1) else v
        expected = recurrent_twin(LIN, x, act)[1]
        assert_close(patched["."][:, j], expected, rtol=5e-6)


def test_other_patches_do_not_recompile():
    traces = 0

    @eqx.filter_jit
    def run(log, x):
        nonlocal traces
        traces += 1
        return px.ForwardHook(LIN, px.PatchHook(log), None, method=recurrent)(x)[0]

    for seed in range(3):
        _, log = px.ForwardHook(LIN, method=recurrent)(jr.normal(jr.key(seed), (3,)))
        assert_close(run(log, X), jnp.tanh(log["."][-1]), rtol=1e-6)
    assert traces == 1


def test_a_patch_that_does_not_fit_is_an_error():
    mlp = MLP(3, 4, 3, key=jr.key(0))
    _, log = px.ForwardHook(mlp, where="linear1")(X)
    with pytest.raises(px.LogShapeError, match="'linear2' is to be patched, but isn't"):
        px.ForwardHook(mlp, px.PatchHook(log))(X)
    hooked = px.ForwardHook(mlp, px.PatchHook(log), where="linear1")
    batched = px.ForwardHook(
        mlp, px.PatchHook(log), where="linear1", method=lambda m, x: jax.vmap(m)(x)
    )
    with pytest.raises(px.LogShapeError, match=r"is float32\[2, 4\].*float32\[4\]"):
        batched(jnp.ones((2, 3)))
    assert hooked(X)[0].shape == (3,)
    with pytest.raises(TypeError, match="PatchHook was given a .*, which isn't a log"):
        px.PatchHook(X)


def test_a_patch_of_another_float_dtype_is_cast():
    mlp = MLP(3, 4, 3, key=jr.key(0))
    source = {"linear1": jnp.arange(4, dtype=jnp.bfloat16)}
    hooked = px.ForwardHook(mlp, px.PatchHook(source), where="linear1")
    assert_close(hooked(X)[1]["linear1"], jnp.arange(4.0))
    hooked = px.ForwardHook(
        mlp, px.PatchHook({"linear1": jnp.arange(4)}), where="linear1"
    )
    with pytest.raises(px.LogShapeError, match=r"value is float32\[4\], the source"):
        hooked(X)


def loop(m, x, n):
    step = lambda c: (c[0] + 1, jnp.tanh(m(c[1])))
    return lax.while_loop(lambda c: c[0] < n, step, (0, x))[1]


@pytest.mark.parametrize("jit", (False, True))
@pytest.mark.parametrize("n", (0, 1, 3, 5))
def test_while_buffer_keeps_the_last_steps(n, jit):
    hooked = px.ForwardHook(LIN, method=loop, while_buffer=3)
    _, log = (eqx.filter_jit(hooked) if jit else hooked)(X, n)
    _, values = recurrent_twin(LIN, X, lambda i, v: v)
    kept = values[:n][-3:]
    expected = jnp.zeros((3, 3)).at[: len(kept)].set(kept)
    assert_close(log["."], expected, rtol=2e-6)
    assert int(log.counts["."]) == n


def test_while_buffer_per_example():
    xs, ns = jr.normal(jr.key(0), (4, 3)), jnp.array([0, 2, 3, 5])
    model = lambda m, xs, ns: jax.vmap(lambda x, n: loop(m, x, n))(xs, ns)
    _, log = px.ForwardHook(LIN, method=model, while_buffer=2)(xs, ns)
    np.testing.assert_array_equal(log.counts["."], ns)
    assert log["."].shape == (2, 4, 3)
    for i, (x, n) in enumerate(zip(xs, ns, strict=True)):
        kept = recurrent_twin(LIN, x, lambda i, v: v)[1][: int(n)][-2:]
        expected = jnp.zeros((2, 3)).at[: len(kept)].set(kept)
        assert_close(log["."][:, i], expected, rtol=5e-6)


def test_while_buffer_of_the_condition():
    def model(m, x):
        keep_going = lambda c: (c[0] < 4) & (m(c[1])[0] > -99)
        step = lambda c: (c[0] + 1, jnp.tanh(c[1] * 1.5))
        return lax.while_loop(keep_going, step, (0, x))[1]

    _, log = px.ForwardHook(LIN, method=model, while_buffer=3)(X)
    xs = [X]
    for _ in range(4):
        xs.append(jnp.tanh(xs[-1] * 1.5))
    expected = jnp.stack([LIN(x) for x in xs[-3:]])
    assert_close(log["."], expected, rtol=2e-6)
    assert int(log.counts["."]) == 5


def test_while_buffer_must_be_positive():
    with pytest.raises(TypeError, match="`while_buffer=0` is how many"):
        px.ForwardHook(LIN, while_buffer=0)


def test_indexed_hooks_in_a_while_loop_are_refused():
    hooked = px.ForwardHook(LIN, px.AtStep(px.ZeroHook(), 0), method=loop)
    with pytest.raises(px.SiteLostError, match="can't be told which step it is in"):
        hooked(X, 3)


WRONG_STEPS = {
    "mask": [False, True],
    "array mask": jnp.array([True, False]),
    "float": 2.5,
    "floats": [0.0, 1.0],
    "string": "last",
    "in a tuple": ([0], 1.5),
}


@pytest.mark.parametrize("steps", WRONG_STEPS.values(), ids=WRONG_STEPS)
def test_steps_that_are_not_integers(steps):
    with pytest.raises(TypeError, match=r"aren't integers.*jnp.flatnonzero\(mask\)"):
        px.AtStep(px.ZeroHook(), steps)


@pytest.mark.parametrize("steps", [7, [0, 7], np.int64(7), jnp.array([-6]), range(6)])
def test_steps_outside_of_the_loop(steps):
    hooked = px.ForwardHook(LIN, px.AtStep(px.ZeroHook(), steps), method=recurrent)
    with pytest.raises(px.HookShapeError, match="'.' has 5 steps: 0 to 4"):
        hooked(X)


@pytest.mark.parametrize("hook", [None, {".": px.ZeroHook()}])
def test_what_cannot_act_at_a_step(hook):
    name = type(hook).__name__
    with pytest.raises(TypeError, match=f"AtStep was given a hook of type {name}, "):
        px.AtStep(hook, 0)


SHAPES = {
    "shape": lambda x: x[:1],
    "broadcast": lambda x: jnp.zeros(1),
    "dtype": lambda x: x.astype(int),
    "structure": lambda x: (x, x),
}


@pytest.mark.parametrize("hook", SHAPES.values(), ids=SHAPES)
def test_a_hook_at_a_step_keeps_shapes(hook):
    hooked = px.ForwardHook(LIN, px.AtStep(hook, 0), method=recurrent)
    with pytest.raises(px.HookShapeError, match="The hook_fn of the site '.' changed"):
        hooked(X)


def test_random_keys_are_patched():
    dropout, x = eqx.nn.Dropout(0.5), jnp.ones(20)
    wrap = ft.partial(px.ForwardHook, dropout, pre_hook=True, with_kwargs=True)
    _, source = wrap()(x, key=jax.random.key(1))
    expected = dropout(x, key=jax.random.key(1))
    for patch in (px.PatchHook(source), px.At(px.PatchHook(source), jnp.array(True))):
        out, _ = wrap(patch)(x, key=jax.random.key(2))
        np.testing.assert_array_equal(out, expected)
    run = lambda m, x, key: jax.lax.scan(
        lambda x, _: (m(x, key=key), None), x, length=2
    )[0]
    at = wrap(px.AtStep(lambda value: value, [0]), method=run)
    key = jax.random.key(1)
    np.testing.assert_array_equal(at(x, key)[0], run(dropout, x, key))
