"""Accumulators over calls, devices, and at some places only."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from parts import Pair

import peex as px


ITSELF = eqx.nn.Identity()
XS = jnp.array([[1.0, -3], [2, 0], [3, 5], [4, 2]])
ALL = jnp.array([2.5, 1]), jnp.array([5.0, 34])


def over_steps(part, xs):
    return lax.scan(lambda total, x: (total + part(x), None), 0 * xs[0], xs)[0]


def moments_of(log, key="."):
    assert log[key].count == 4
    return log[key].mean, log[key].m2


def test_over_calls():
    hooked = px.ForwardHook(ITSELF, None, px.Moments(), method=over_steps)
    a, b = hooked(XS[:3])[1], hooked(XS[3:])[1]
    assert_close(moments_of(px.merge(a, b)), ALL)
    assert_close(moments_of(px.merge(px.merge(hooked.empty(XS), b), a)), ALL)
    assert hooked.empty(XS)["."].count == 0
    shape = jax.ShapeDtypeStruct((7, 2), jnp.float32)
    assert jax.tree.structure(hooked.empty(shape)) == jax.tree.structure(a)


def test_as_the_carry_of_a_scan():
    """Of a forward and a backward log, next to a gradient."""

    def loss(pair, x):
        return jnp.sum(pair(x) ** 2)

    keys = jax.random.split(jax.random.key(0))
    pair = Pair(*(eqx.nn.Linear(2, 2, key=key) for key in keys))
    step = px.value_and_grad(loss, forward=px.Max(), backward=px.Moments())
    start = step.empty(pair, XS[0])

    def body(total, x):
        (_, logs), _ = step(pair, x)
        return px.merge(total, logs), None

    total = eqx.filter_jit(lambda: lax.scan(body, start, XS)[0])()
    (_, each), _ = jax.vmap(
        px.value_and_grad(loss, forward=px.IdentityLog()), (None, 0)
    )(pair, XS)
    assert isinstance(total, px.Logs)
    for key in ("first", "second"):
        assert_close(total.forward[key], jnp.max(each.forward[key], 0))
        cotangents = each.backward[key]
        assert total.backward[key].count == 4
        assert_close(total.backward[key].mean, jnp.mean(cotangents, 0), 1e-5)
        assert_close(total.backward[key].var, jnp.var(cotangents, 0), 1e-5)
    backward = px.BackwardHook(pair, None, px.Moments())
    assert backward.empty(XS[0])["first"].count == 0


def test_what_is_refused():
    hooked = px.ForwardHook(ITSELF, None, px.Moments())
    _, log = hooked(XS)
    _, plain = px.ForwardHook(ITSELF)(XS)
    with pytest.raises(px.LogValueError, match="'.' isn't of an accumulator.*px.Sum"):
        px.merge(log, plain)
    with pytest.raises(px.LogValueError, match="isn't of an accumulator"):
        px.ForwardHook(ITSELF).empty(XS)
    with pytest.raises(
        px.LogShapeError, match="one is of Moments, .* the other of Max"
    ):
        px.merge(log, px.ForwardHook(ITSELF, None, px.Max())(XS)[1])
    with pytest.raises(px.LogShapeError, match=r"f32\[4,2\].* Moments, .*f32\[2\]"):
        px.merge(log, hooked(XS[0])[1])
    with pytest.raises(px.LogShapeError, match="different keys: '.' only in the first"):
        px.merge(log, px.Log())
    with pytest.raises(TypeError, match="given a MomentsEntry.*px.Moments.*merge"):
        px.merge(log["."], log["."])
    with pytest.raises(
        TypeError, match=r"`px.Sum` was given a Max.*px.Sum\(px.NormLog"
    ):
        px.Sum(px.Max())
    with pytest.raises(TypeError, match="the class NormLog itself"):
        px.Max(px.NormLog)
    with pytest.raises(px.LogValueError, match=r"key<fry>, which has no sum"):
        px.Sum()(jax.random.key(0))


class Wrong(px.AbstractAccumulator):
    """Merges to something else."""

    def __call__(self, value):
        return value

    def merge(self, a, b):
        return (a + b).astype(jnp.float16)

    def empty(self, like):
        raise ValueError("not today")


def test_an_accumulator_that_is_wrong():
    wanted = (
        "`merge` of Wrong, the log_fn of the site '.', returned another .* expected "
        r"float32\[2\], got float16\[2\]"
    )
    with pytest.raises(px.LogValueError, match=wanted):
        in_python = lambda part, xs: [part(x) for x in xs]
        px.ForwardHook(ITSELF, None, Wrong(), method=in_python)(XS)
    with pytest.raises(ValueError, match="not today") as info:
        px.ForwardHook(ITSELF, None, Wrong(), method=over_steps)(XS)
    assert "`empty` of the log_fn of the site '.' (Wrong)" in info.value.__notes__[0]


class Longest(px.AbstractAccumulator):
    """The vector of the largest norm: not element by element. `scale` is data."""

    scale: jax.Array

    def __call__(self, value):
        return {"x": value, "norm": self.scale * jnp.linalg.norm(value)}

    def merge(self, a, b):
        return jax.tree.map(lambda x, y: jnp.where(a["norm"] >= b["norm"], x, y), a, b)

    def empty(self, like):
        return {"x": jnp.zeros(like["x"].shape), "norm": jnp.array(-1.0)}


@pytest.mark.parametrize("num", [0, 1, 4, 7])
def test_one_of_your_own(num):
    def run(part, xs):
        return jax.vmap(lambda xs: over_steps(part, xs))(xs)

    xs = jax.random.normal(jax.random.key(num), (num, 3, 2))
    hooked = px.ForwardHook(ITSELF, None, Longest(jnp.array(2.0)), method=run)
    _, log = hooked(xs)
    flat = np.asarray(xs).reshape(-1, 2)
    norms = np.linalg.norm(flat, axis=1)
    best = np.argmax(norms) if num else 0
    assert_close(log["."]["x"], jnp.asarray(flat[best] if num else np.zeros(2, "f4")))
    assert_close(log["."]["norm"], jnp.float32(2 * norms[best] if num else -1))


def test_at_some_places():
    def logged(log_fn):
        return px.ForwardHook(ITSELF, None, log_fn, method=over_steps)(XS)[1]["."]

    mask = jnp.array([True, False, False, True])[:, None]
    some = [0, 3]
    for log_fn in (px.AtStep(px.Moments(), some), px.At(px.Moments(), mask)):
        assert logged(log_fn).count == 2
        assert_close(logged(log_fn).mean, jnp.mean(XS[jnp.array(some)], 0))
    least = jnp.array([1.0, -3])
    assert_close(logged(px.At(px.Min(), mask)), least)
    assert_close(logged(px.AtStep(px.Max(), 1)), XS[1])

    def examples(part, xs):
        return jax.vmap(part)(xs)

    hooked = px.ForwardHook(ITSELF, None, px.At(px.Max(), mask), method=examples)
    assert_close(hooked(XS)[1]["."], jnp.array([4.0, 2]))


def test_the_layers_of_a_stack_are_kept():
    """Inside of a loop over time, next to values without a stack: forward, backward,
    merged over calls and with an accumulator that isn't element by element.
    """
    stack = jnp.array([[1.0], [2.0], [3.0]])

    def run(part, xs):
        def layer(h, w):
            return part(h * w), None

        def step(h, x):
            h, _ = lax.scan(layer, h + x, stack)
            return h / 6, None

        return jnp.sum(jax.vmap(lambda x: lax.scan(step, x, jnp.ones((2, 2)))[0])(xs))

    _, whole = px.ForwardHook(ITSELF, method=run)(XS)  # steps, layers, examples
    (_, all_of), _ = px.value_and_grad(run)(ITSELF, XS)
    loop = whole.axes["."][1].loop
    assert whole["."].shape == (2, 3, 4, 2)
    (_, logs), _ = px.value_and_grad(
        run, forward=px.Moments(keep=loop), backward=px.Moments(keep=[loop])
    )(ITSELF, XS)
    for log, stored in zip(logs, (all_of.backward, whole), strict=True):
        assert [axis.loop for axis in log.axes["."]] == [loop]
        assert log["."].count.tolist() == [8, 8, 8]
        assert_close(log["."].mean, jnp.mean(stored["."], (0, 2)))
        assert_close(log["."].var, jnp.var(stored["."], (0, 2)), 1e-5)
    log_fn = Longest(jnp.array(1.0), keep=(loop,))
    hooked = px.ForwardHook(ITSELF, None, log_fn, method=run)
    _, log = hooked(XS)
    norms = jnp.linalg.norm(whole["."], axis=-1)
    assert_close(log["."]["norm"], jnp.max(norms, (0, 2)))
    assert px.merge(hooked.empty(XS), log) == log


def test_transformations_around_the_wrapper():
    """They add their axes, as to any output."""
    hooked = px.ForwardHook(ITSELF, None, px.Moments(), method=over_steps)
    xs = jnp.stack([XS, 2 * XS])
    _, log = eqx.filter_jit(eqx.filter_vmap(hooked))(xs)
    assert log["."].count.tolist() == [4, 4]
    assert_close(log["."].mean, jnp.stack([ALL[0], 2 * ALL[0]]))
    assert_close(log["."].var, jnp.stack([ALL[1], 4 * ALL[1]]) / 4)
    _, nested = px.ForwardHook(hooked, None, px.Max())(XS)
    assert_close(nested["."], jnp.array([4.0, 5]))
    print(log, repr(log))  # as a table, too


@pytest.mark.skipif(len(jax.devices()) < 4, reason="see tests/conftest.py")
@pytest.mark.parametrize(
    ("kind", "check_vma"),
    [(AxisType.Auto, True), (AxisType.Auto, False), (AxisType.Explicit, True)],
    ids=["auto", "unchecked", "explicit"],
)
def test_over_devices(kind, check_vma):
    mesh = jax.make_mesh((4,), ("d",), axis_types=(kind,))

    def run(part, xs, c):
        def one(xs, c):
            return jnp.sum(over_steps(part, xs[0][:, None, :]) * c)[None]

        spread = jax.shard_map(
            one, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=check_vma
        )
        return jnp.sum(spread(xs, c))

    xs = XS.reshape(4, 1, 2)
    c = XS[::-1]
    with jax.set_mesh(mesh):
        xs, c = (jax.device_put(x, NamedSharding(mesh, P("d"))) for x in (xs, c))
        log_fn = px.Moments()
        step = px.value_and_grad(run, forward=log_fn, backward=log_fn)
        (_, logs), _ = eqx.filter_jit(step)(ITSELF, xs, c)
        # A sharded axis, and no rule of one's own for axes.
        log_fn = Longest(jnp.array(1.0))
        examples = lambda part, xs: jax.vmap(part)(xs)
        hooked = px.ForwardHook(ITSELF, None, log_fn, method=examples)
        _, longest = eqx.filter_jit(hooked)(xs[:, 0])
        assert_close(np.asarray(longest["."]["x"]), np.array([3.0, 5], "f4"))
    for log in logs:
        assert log.axes == {".": ()}
        entry = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), log["."])
        assert entry.count == 4
        assert_close((entry.mean[0], entry.m2[0]), ALL, 1e-5)
