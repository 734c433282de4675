"""What a path crosses: control flow, transformations, derivative rules, layers. Each
next to the pattern of the Jacobian, which may only lack branches that aren't taken.
"""

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import pytest
from jax import lax
from recurrent import f32, jacobian_pattern, key, linear, reached_pattern, WIDTH

import peex as px


H = f32(WIDTH)


class Layers(eqx.Module):
    """Two layers, an elementwise scale, and numbers that nothing uses."""

    a: eqx.nn.Linear
    b: eqx.nn.Linear
    scale: jax.Array
    unused: jax.Array

    def __init__(self):
        self.a, self.b = linear(WIDTH), linear(WIDTH, seed=1)
        self.scale, self.unused = jnp.ones(WIDTH), jnp.ones(WIDTH)


def over_layers(m, x, h):
    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), m.a, m.b)
    step = lambda h, layer: (jnp.tanh(layer(h) * m.scale), None)
    return lax.scan(step, h + x, stacked)[0]


def swapped(m, x, h):
    """The second of what is carried reaches the first only in the second iteration."""
    step = lambda c, _: ((c[1], jnp.tanh(m.a(c[0]))), None)
    return lax.scan(step, (h, m.b(x)), None, length=3)[0][0]


def once(m, x, h):
    step = lambda c, _: ((c[1], jnp.tanh(m.a(c[0]))), None)
    return lax.scan(step, (h, m.b(x)), None, length=1)[0][0]


def never(m, x, h):
    step = lambda c, _: (jnp.tanh(m.a(c)), None)
    return lax.scan(step, h * m.scale, None, length=0)[0]


def collected(m, x, h):
    return lax.scan(lambda c, s: (c, m.a(h) * s), 0.0, m.scale)[1].sum(0)


def while_loop(m, x, h):
    more = lambda c: (c[0] < 2) & (c[1].sum() < 1e9)
    step = lambda c: (c[0] + 1, jnp.tanh(m.a(c[1])))
    return lax.while_loop(more, step, (0, m.b(h)))[1]


def fori_loop(m, x, h):
    return lax.fori_loop(0, 3, lambda i, h: jnp.tanh(m.a(h)) + i, h * m.scale)


def inner_derivative(m, x, h):
    energy = lambda h: jnp.sum(jnp.tanh(m.a(h)) ** 2) + jnp.sum(m.b(x))
    return h - jax.grad(energy)(h)


def solved(m, x, h):
    scale = jnp.exp(m.scale)
    solve = lambda matvec, b: b / lax.stop_gradient(scale)
    return lax.custom_linear_solve(lambda v: v * scale, h, solve, symmetric=True)


@eqx.filter_custom_vjp
def _scaled(h, factor, other):
    return h * factor


# Of `factor` there is none, which it may raise where it is asked for.
_scaled.def_fwd(lambda perturbed, h, factor, other: (h * factor, None))
_scaled.def_bwd(lambda res, ct, perturbed, h, factor, other: ct * factor)


def checkpointed(m, x, h):
    """Equinox's loop with a derivative in reverse mode, of a rule of its own."""
    more, step = (
        lambda c: c[0] < 3,
        lambda c: (c[0] + 1, jnp.tanh(m.a(c[1]) + c[2]), c[2]),
    )
    start = 0, h, lax.stop_gradient(m.b(x))
    loop = eqxi.while_loop(more, step, start, kind="checkpointed", max_steps=4)
    return loop[1]


def mapped(m, x, h):
    return jax.vmap(m.a)(jnp.stack([h, x])).sum(0)


@jax.custom_vjp
def _clipped(x):
    return x


_clipped.defvjp(lambda x: (x, None), lambda _, ct: (jnp.clip(ct, -1e9, 1e9),))


@jax.custom_jvp
def _relu(x, y):
    return jnp.maximum(x, 0) + 0 * y


_relu.defjvps(lambda t, out, x, y: jnp.where(x > 0, t, 0), None)


@jax.custom_jvp
def _rounded(x):
    return jnp.round(x)


_rounded.defjvp(lambda primals, tangents: (jnp.round(*primals), *tangents))


CROSSED = {
    "jit": lambda m, x, h: jax.jit(lambda h: jnp.tanh(m.a(h) * m.scale))(h),
    "jit twice": lambda m, x, h: (f := jax.jit(lambda v: m.a(v)))(f(h)),
    "filter_jit": lambda m, x, h: eqx.filter_jit(lambda m, h: m.b(m.a(h)))(m, h),
    "checkpoint": lambda m, x, h: jax.checkpoint(lambda h: jnp.tanh(m.b(m.a(h))))(h),
    "scan over layers": over_layers,
    "swapped in a scan": swapped,
    "a scan of one": once,
    "a scan of none": never,
    "collected by a scan": collected,
    "while": while_loop,
    "fori": fori_loop,
    "where": lambda m, x, h: jnp.where(m.b(x) > -1e9, jnp.tanh(m.a(h)), h),
    "where on a value": lambda m, x, h: jnp.where(m.b(x) > 0, m.a(h), m.scale),
    "vmap": mapped,
    "inner derivative": inner_derivative,
    "linear solve": solved,
    "custom_vjp": lambda m, x, h: _clipped(m.a(h)) * m.scale,
    "filter_custom_vjp": lambda m, x, h: _scaled(m.a(h), x, h),
    "checkpointed loop": checkpointed,
    "custom_jvp": lambda m, x, h: _relu(m.a(h) + 9, m.b(h)),
    "straight through": lambda m, x, h: h + _rounded(m.a(h)),
    "straight through by hand": lambda m, x, h: (
        lambda y: y + lax.stop_gradient(jnp.round(y) - y)
    )(m.a(h)),
    "stop_gradient": lambda m, x, h: m.a(h) * lax.stop_gradient(m.b(h)),
    "floor": lambda m, x, h: m.a(h) + jnp.floor(m.b(h)) + jnp.sign(m.scale),
    "argmax": lambda m, x, h: m.a(h)[jnp.argmax(m.b(h))] + h,
    "sort": lambda m, x, h: jnp.sort(m.a(h)),
    "cumsum": lambda m, x, h: jnp.cumsum(m.a(h)),
    "softmax": lambda m, x, h: jax.nn.softmax(m.a(h)),
    "logsumexp": lambda m, x, h: jax.nn.logsumexp(m.a(h)) + h,
    "gelu": lambda m, x, h: jax.nn.gelu(m.a(h)),
    "integers": lambda m, x, h: m.a(h) * (m.b(h) > 0).sum().astype(jnp.float32),
    "updated in place": lambda m, x, h: h.at[1].set(m.scale[0]).at[0].add(m.a(h)[1]),
    "qr": lambda m, x, h: jnp.linalg.qr(m.a.weight)[0] @ h,
    "einsum": lambda m, x, h: jnp.einsum("i,ij,j->i", m.scale, m.a.weight, h),
}


@pytest.mark.parametrize("name", CROSSED)
def test_as_the_jacobian(name):
    step, model = CROSSED[name], Layers()
    run = lambda *args: px.reach(model, *args, method=lambda m, x, h: step(m, x, h))

    class Model(Layers):
        def __call__(self, x, h):
            return step(self, x, h)

    expected = jacobian_pattern(Model(), (H, H), lambda out: out)
    assert expected
    reach = run(H, H)
    assert reached_pattern(reach) == expected
    assert reach["unused"].reason == "unused"


class Embedded(eqx.Module):
    embed: eqx.nn.Embedding
    norm: eqx.nn.LayerNorm
    conv: eqx.nn.Conv1d
    normed: eqx.nn.WeightNorm
    attention: eqx.nn.MultiheadAttention

    def __init__(self):
        self.embed = eqx.nn.Embedding(5, WIDTH, key=key())
        self.norm = eqx.nn.LayerNorm(WIDTH)
        self.conv = eqx.nn.Conv1d(1, 1, 3, padding=1, key=key())
        self.normed = eqx.nn.WeightNorm(linear(WIDTH))
        self.attention = eqx.nn.MultiheadAttention(1, WIDTH, key=key())

    def __call__(self, token, h):
        h = self.norm(h + self.embed(token))
        h = jnp.tanh(self.conv(h[None])[0])
        h = self.normed(h)
        both = jnp.stack([h, 2 * h])
        return jnp.tanh(self.attention(both, both, both)[0])


def test_layers():
    model, args = Embedded(), (jax.ShapeDtypeStruct((), jnp.int32), H)
    reach = px.reach(model, *args)
    assert reached_pattern(reach) == jacobian_pattern(model, args, lambda out: out)
    assert reach.excluded == {}
    (lookup,) = reach["embed.weight"].by
    assert lookup in (("gather", "embed"), ("dynamic_slice", "embed"))
    assert reach["conv.weight"].by == (("conv_general_dilated", "conv"),)
    # An elementwise scale is no obstacle; a convolution and a product are.
    through = reach["embed.weight"].states["h"].through
    assert "conv.weight" in through and "norm.weight" not in through
    assert {"normed.layer.weight", "normed.g"} <= set(through)
    assert reach["embed.weight"].states["h"].how == "through"
    assert reach["token"].reason == "no_derivative"
    assert {call for _, call in reach["token"].cut_by} == {"embed"}


def test_elementwise_parameters_are_no_obstacle():
    step = lambda m, x, h: jnp.tanh(m.a(h) * m.scale)
    reach = px.reach(Layers(), H, H, method=step)
    assert reach["a.weight"].states["h"].how == "direct"


def test_branches_that_are_not_taken():
    def step(m, x, h):
        return lax.switch(
            (x[0] > 1e9).astype(int), [lambda h: m.a(h), lambda h: h * m.scale], h
        )

    class Model(Layers):
        def __call__(self, x, h):
            return step(self, x, h)

    reach = px.reach(Model(), H, H)
    expected = jacobian_pattern(Model(), (H, H), lambda out: out)
    assert {name for name, _ in expected} == {"a.weight", "a.bias"}
    assert expected < reached_pattern(reach)
    assert reach["scale"].states["h"].how == "direct"
    assert (
        reach["x"].reason == "no_derivative" and reach["x"].states["h"].how == "value"
    )
    assert [name for name, _ in reach["x"].cut_by] == ["gt"]


def test_calls_in_branches_are_numbered_as_in_a_log():
    once, twice = lambda m: lambda h: m.a(h), lambda m: lambda h: m.a(m.a(h))
    step = lambda m, x, h: m.a(lax.cond(x[0] > 0, once(m), twice(m), h))
    reach = px.reach(Layers(), H, H, method=step)
    log = px.ForwardHook(Layers(), log_fn=px.IdentityLog(), method=step)(
        jnp.ones(WIDTH), jnp.ones(WIDTH)
    )[1]
    assert {call for _, call in reach["a.weight"].by} == set(log)


def test_shard_map():
    mesh = jax.make_mesh((1,), ("d",))
    spec = jax.sharding.PartitionSpec

    class Model(Layers):
        def __call__(self, x, h):
            run = lambda h: lax.psum(jnp.tanh(self.a(h)), "d") + jnp.floor(self.b(h))
            return jax.shard_map(run, mesh=mesh, in_specs=spec(), out_specs=spec())(h)

    expected = jacobian_pattern(Model(), (H, H), lambda out: out)
    assert (
        reached_pattern(px.reach(Model(), H, H))
        == expected
        == {
            ("a.weight", 0),
            ("a.bias", 0),
        }
    )


REASONS = {
    "stop_gradient": (
        lambda m, h: m.a(h) + lax.stop_gradient(jnp.tanh(m.b(h))),
        "stop_gradient",
        "stop_gradient",
    ),
    "no_derivative": (
        lambda m, h: m.a(h) + jnp.floor(m.b(h)),
        "no_derivative",
        "floor",
    ),
    "a predicate": (
        lambda m, h: jnp.where(m.b(h) > 0, m.a(h), h),
        "no_derivative",
        "gt",
    ),
    "a callback": (
        lambda m, h: m.a(h) + jax.pure_callback(lambda x: x, H, m.b(h)),
        "no_derivative",
        "pure_callback",
    ),
}


@pytest.mark.parametrize("name", REASONS)
def test_reasons(name):
    step, reason, primitive = REASONS[name]
    reach = px.reach(Layers(), H, H, method=lambda m, x, h: step(m, h))
    weight = reach["b.weight"]
    assert weight.reason == reach.excluded["b.weight"] == reason
    assert weight.cut_by == ((primitive, "."),)
    assert weight.states["h"].how == "value" and weight.states["h"].through == ()
    assert "b.weight" not in reach.temporal and "b.weight" not in reach.eventually()
    assert reach["a.weight"].reason is None and reach["a.weight"].cut_by == ()


def test_integers_of_a_model_have_no_derivative():
    class Model(eqx.Module):
        table: jax.Array
        linear: eqx.nn.Linear

        def __call__(self, x, h):
            return self.linear(h)[self.table]

    reach = px.reach(Model(jnp.arange(WIDTH), linear(WIDTH)), H, H)
    assert reach.excluded == {"table": "no_derivative"}
    assert reach.counts["value"] == 1
