"""FLOPs, by the formulas that `peex.Report` documents, worked out by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec as P

import peex as px


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def flops(fn, *args):
    report = px.report((), *args, method=lambda _, *args: fn(*args))
    return report.flops


MATRIX = f32(3, 3)
CASES = {
    "product": (jnp.matmul, (f32(3, 4), f32(4, 5)), 2 * 3 * 5 * 4),
    "batched product": (jnp.matmul, (f32(7, 3, 4), f32(7, 4, 5)), 7 * 2 * 3 * 5 * 4),
    "einsum": (
        lambda a, b: jnp.einsum("bhqd,bhkd->bhqk", a, b),
        (f32(2, 3, 5, 8), f32(2, 3, 6, 8)),
        2 * (2 * 3 * 5 * 6) * 8,
    ),
    "elementwise": (lambda x: jnp.tanh(x) + 2 * x, (f32(3, 4),), 3 * 12),
    "integers": (lambda x: x * x + 1, (jax.ShapeDtypeStruct((9,), jnp.int32),), 0),
    "comparison": (lambda x: x > 0, (f32(9),), 9),
    "moving": (lambda x: x.T.reshape(2, 6)[:, ::-1][None], (f32(3, 4),), 0),
    "cast": (lambda x: x.astype(jnp.bfloat16), (f32(9),), 0),
    "sum": (lambda x: jnp.sum(x, axis=0), (f32(3, 4),), 12),
    "maximum": (lambda x: jnp.max(x), (f32(3, 4),), 12),
    "cumulative sum": (jnp.cumsum, (f32(9),), 9),
    "gather": (lambda x: x[jnp.array([0, 2])], (f32(9, 2),), 0),
    "scatter": (lambda x, y: x.at[jnp.array([0, 2])].add(y), (f32(9), f32(2)), 2),
    "window": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (3,), (1,), "VALID"),
        (f32(9),),
        7 * 3,
    ),
    "jit": (jax.jit(lambda x: x + x), (f32(9),), 9),
    "custom derivative": (jax.nn.relu, (f32(9),), 9),
    "checkpoint": (jax.checkpoint(lambda x: x + x), (f32(9),), 9),
    "scan": (
        lambda x: lax.scan(lambda c, x: (c + x, None), 0.0, x)[0],
        (f32(9),),
        9 * 1,
    ),
    "scan in scan": (
        lambda x: lax.scan(
            lambda c, xs: (lax.scan(lambda c, x: (c * x, None), c, xs)[0], None),
            1.0,
            x,
        )[0],
        (f32(4, 9),),
        4 * 9,
    ),
    "vmap": (jax.vmap(jnp.dot), (f32(5, 3), f32(5, 3)), 5 * 2 * 3),
    # The condition and the body, once.
    "while": (
        lambda x: lax.while_loop(lambda x: x[0] < 9, lambda x: x + 1, x),
        (f32(4),),
        1 + 4,
    ),
}
CASES["cond"] = (
    lambda x: lax.cond(x[0] > 0, lambda x: x * x + x, lambda x: x + x, x),
    (f32(4),),
    1 + 2 * 4,
)


@pytest.mark.parametrize("case", CASES)
def test_formula(case):
    fn, args, expected = CASES[case]
    assert flops(fn, *args) == expected


def test_convolutions():
    # 8 output channels of 5 x 5; each element sums over 3 channels in a 3 x 3 window.
    conv = eqx.nn.Conv2d(3, 8, 3, use_bias=False, key=jax.random.key(0))
    assert px.report(conv, f32(3, 7, 7)).flops == 2 * (8 * 5 * 5) * (3 * 3 * 3)
    # In 3 groups of channels, each sees one.
    conv = eqx.nn.Conv2d(3, 9, 3, groups=3, use_bias=False, key=jax.random.key(0))
    assert px.report(conv, f32(3, 7, 7)).flops == 2 * (9 * 5 * 5) * (3 * 3)
    biased = eqx.nn.Conv1d(2, 4, 5, key=jax.random.key(0))
    assert px.report(biased, f32(2, 9)).flops == 2 * (4 * 5) * (2 * 5) + 4 * 5


def test_as_xla_counts_a_product():
    # XLA's own count, of a program that is nothing but matrix products.
    fn = lambda a, b, c: (a @ b) @ c
    args = f32(16, 32), f32(32, 8), f32(8, 64)
    cost = jax.jit(fn).lower(*args).compile().cost_analysis()
    assert flops(fn, *args) == cost["flops"]


def test_devices():
    mesh = Mesh(np.array(jax.devices()[:4]), ("i",))

    def fn(x):
        body = lambda x: x * x
        return jax.shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P("i"))(x)

    assert flops(fn, f32(8, 3)) == 8 * 3


def test_not_counted_is_named():
    fn = lambda _, x: jnp.sort(x) + jnp.linalg.cholesky(jnp.outer(x, x))[0]
    report = px.report((), f32(4), method=fn)
    assert {"sort", "cholesky"} <= set(report.uncounted)
    assert "FLOPs (not counted: cholesky, sort" in str(report)
    assert px.report((), f32(4), method=lambda _, x: x + x).uncounted == ()


def test_of_calls():
    # With the calls inside; without what lies around.
    mlp = eqx.nn.MLP(2, 3, 8, depth=1, key=jax.random.key(0))
    run = lambda model, x: 3 * jax.vmap(model)(x) + 1
    report = px.report(mlp, f32(5, 2), method=run)
    first, second = 5 * (2 * 2 * 8 + 8), 5 * (2 * 8 * 3 + 3)
    assert report["layers.0"].flops == first
    assert report["layers.1"].flops == second
    assert report["."].flops == first + 5 * 8 + second
    assert report.flops == first + 5 * 8 + second + 2 * 5 * 3


def test_recomputation_counts_for_what_is_around():
    def run(linear, x):
        return jax.grad(lambda x: jnp.sum(jax.checkpoint(lambda x: linear(x))(x)))(x)

    linear = eqx.nn.Linear(3, 4, use_bias=False, key=jax.random.key(0))
    report = px.report(linear, f32(3), method=run)
    product = 2 * 3 * 4
    # Once for its value; in the backward pass, once more, and once for its cotangent.
    assert list(report.entries) == ["."]
    assert report["."].flops == product
    assert report.flops >= 2 * product


def test_batched_branches_are_not_told_apart():
    linear = eqx.nn.Linear(3, 3, key=jax.random.key(0))

    def run(linear, xs):
        one = lambda x: lax.cond(x[0] > 0, lambda x: linear(x), lambda x: x, x)
        return jax.vmap(one)(xs)

    report = px.report(linear, f32(5, 3), method=run)
    assert report["."].flops is None
    assert report["."].when == "conditional"
    assert report.flops >= 5 * 2 * 3 * 3
