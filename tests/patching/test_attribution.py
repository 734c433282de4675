"""Attribution patching against gradients of a hand-written model."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from closeness import assert_close
from residual import gradient, gradients, layers_of, metric, models, twin, WHERE
from swept import HEADS, inputs

import peex as px


SCANNED, UNROLLED = models()
CLEAN, CORRUPTED = inputs()
AXES = {"embed": "pos _", "**": "layer pos _"}


def by_hand(base, given, between=gradients, names=WHERE):
    """The estimated metric, each value by position; `between` makes the gradients by
    place (a name and a layer) of the model and the base.
    """

    @jax.jit
    def run():
        at_base, values = twin(SCANNED, base)
        _, others = twin(SCANNED, given)
        grads = between(SCANNED, base)
        change = lambda place: ((others[place] - values[place]) * grads[place]).sum(-1)
        rows = {n: [change((n, i)) for i in layers_of(n)] for n in names}
        one = lambda name: rows[name][0] if name == "embed" else jnp.stack(rows[name])
        return {name: at_base + one(name) for name in names}

    return run()


@pytest.fixture(scope="module")
def denoised():
    return by_hand(CORRUPTED, CLEAN)


def at_middles(fn, steps):
    """The mean of a function of how far it is, over the middles of so many parts."""
    found = jax.vmap(fn)(jnp.arange(0.5, steps) / steps)
    return jax.tree.map(lambda x: x.mean(0), found)


def check(effects, expected, rtol=1e-5):
    assert set(effects) == set(expected)
    for name in expected:
        assert_close(effects[name], expected[name], rtol)


def attributed(model=SCANNED, **kwargs):
    default = {"where": WHERE, "axes": AXES}
    return px.patching.attribution(model, CLEAN, CORRUPTED, metric, **default | kwargs)


def test_equals_gradients_by_hand(denoised):
    effects = attributed()
    check(effects, denoised)
    assert_close(effects.clean, twin(SCANNED, CLEAN)[0])
    assert_close(effects.corrupted, twin(SCANNED, CORRUPTED)[0])
    assert effects.axes["embed"] == ("pos",)
    assert effects.axes["z"] == ("layer", "pos")
    assert effects.base == "corrupted"


def test_noising():
    effects = attributed(direction="noising")
    check(effects, by_hand(CLEAN, CORRUPTED))
    assert_close(effects.clean, twin(SCANNED, CLEAN)[0])
    assert effects.base == "clean"


def test_scanned_equals_unrolled():
    where = {"attn": "layers.*.attn", "z": "layers.*.attn.o:in"}
    unrolled = attributed(UNROLLED, where=where, axes="pos _")
    scanned = attributed()
    for name in where:
        assert_close(unrolled.stack(f"{name}.*"), scanned[name])


def test_the_order_of_the_model():
    # In which the sites run.
    assert list(attributed()) == list(WHERE)


def test_heads():
    effects = attributed(where={"z": WHERE["z"]}, axes=f"layer pos (head={HEADS} _)")
    assert effects["z"].shape == (3, 4, HEADS)
    changes = effects.changes()["z"].sum(-1)
    assert_close(changes, attributed().changes()["z"], 1e-5)


def test_is_close_to_a_sweep_where_runs_are():
    near = CORRUPTED + 1e-2 * (CLEAN - CORRUPTED)
    kwargs = {"where": WHERE, "axes": AXES}
    args = SCANNED, near, CORRUPTED, metric
    effects = px.patching.attribution(*args, **kwargs).changes()
    swept = px.patching.sweep(*args, progress=False, **kwargs).changes()
    for name in WHERE:
        largest = jnp.max(jnp.abs(swept[name]))
        assert largest > 1e-4
        assert_close(effects[name] / largest, swept[name] / largest, 0.05)


@pytest.mark.parametrize("source", ["zero", "mean", "log"])
def test_sources(source):
    _, values = twin(SCANNED, CORRUPTED)
    _, clean = twin(SCANNED, CLEAN)
    stack = lambda values: jnp.stack([values["z", i] for i in layers_of("z")])
    base = stack(values)
    given = {
        "zero": jnp.zeros_like(base),
        "mean": jnp.broadcast_to(stack(clean).mean(1, keepdims=True), base.shape),
        "log": base + 2,
    }[source]
    effects = px.patching.attribution(
        SCANNED,
        CLEAN,
        CORRUPTED,
        metric,
        where={"z": WHERE["z"]},
        axes="layer _ unit",
        source=px.Log({"z": given}) if source == "log" else source,
    )
    grads = stack(gradients(SCANNED, CORRUPTED))
    expected = ((given - base) * grads).sum(1)
    assert_close(effects["z"], twin(SCANNED, CORRUPTED)[0] + expected, 1e-5)


SOME = ["embed", "z", "norm2"]
SOMEWHERE = {name: WHERE[name] for name in SOME}


@pytest.mark.parametrize("steps", [1, 3])
def test_integrated_along_inputs(steps):
    def mean(model, base):
        at = lambda a: base + a * (CLEAN - base)
        return at_middles(lambda a: gradients(model, at(a)), steps)

    expected = by_hand(CORRUPTED, CLEAN, mean, SOME)
    check(attributed(where=SOMEWHERE, steps=steps), expected)


@pytest.mark.parametrize("steps", [1, 3])
def test_integrated_along_activations(steps):
    _, base = twin(SCANNED, CORRUPTED)
    _, given = twin(SCANNED, CLEAN)

    def of_place(place):
        at = lambda a: base[place] + a * (given[place] - base[place])
        return at_middles(lambda a: gradient(SCANNED, CORRUPTED, place, at(a)), steps)

    places = [(name, i) for name in SOME for i in layers_of(name)]
    mean = lambda model, base: {place: of_place(place) for place in places}

    effects = attributed(where=SOMEWHERE, steps=steps, path="activation")
    check(effects, by_hand(CORRUPTED, CLEAN, mean, SOME))


def test_along_activations_is_complete():
    """The places of one layer are together what patching it whole does."""
    effects = attributed(where=SOMEWHERE, steps=50, path="activation").changes()
    _, given = twin(SCANNED, CLEAN)
    for place in [("embed", 0), ("z", 1), ("norm2", 2)]:
        value = lambda _: given[place]  # noqa: B023
        patched = twin(SCANNED, CORRUPTED, {place: value})[0]
        mine = effects[place[0]]
        mine = mine if place[0] == "embed" else mine[place[1]]
        assert_close(mine.sum(), patched - twin(SCANNED, CORRUPTED)[0], 1e-3)


class Power(eqx.Module):
    """`x^n`, of a value that is a site."""

    inner: eqx.nn.Identity
    n: int = eqx.field(static=True)

    def __call__(self, x):
        return self.inner(x) ** self.n


def linear_in(n, at, around, **kwargs):
    """`x^n`, made linear around a point, at another."""
    return px.patching.attribution(
        Power(eqx.nn.Identity(), n),
        at[None],
        around[None],
        lambda y: y[0],
        where="inner",
        axes="i",
        **kwargs,
    )["inner"][0]


def test_powers():
    assert linear_in(2, jnp.array(11.0), jnp.array(10.0)) == 120
    # Of a square, the gradient at the middle is the mean of it.
    for path in ("input", "activation"):
        found = linear_in(2, jnp.array(11.0), jnp.array(10.0), steps=1, path=path)
        assert_close(found, jnp.array(121.0))
    at, around = jnp.array([4.0, 5.0, 6.0]), jnp.array([1.0, 2.0, 3.0])
    cubes = jax.vmap(lambda at, around: linear_in(3, at, around))(at, around)
    assert_close(cubes, jnp.array([10.0, 44.0, 108.0]))


def test_a_recurrent_model():
    """Its states are a step's own: time by unit."""
    cell = eqx.nn.GRUCell(2, 3, key=jax.random.key(0))

    def run(cell, xs):
        return jax.lax.scan(lambda h, x: (cell(x, h), None), jnp.zeros(3), xs)[0]

    def by_hand(xs, zeros):
        h, hs = jnp.zeros(3), []
        for x, zero in zip(xs, zeros, strict=True):
            h = cell(x, h) + zero
            hs.append(h)
        return jnp.sum(h**2), jnp.stack(hs)

    clean = jax.random.normal(jax.random.key(1), (4, 2))
    zeros = jnp.zeros((4, 3))
    (base, hs), grads = jax.value_and_grad(by_hand, argnums=1, has_aux=True)(
        -clean, zeros
    )
    effects = px.patching.attribution(
        cell,
        clean,
        -clean,
        lambda h: jnp.sum(h**2),
        method=run,
        where=".",
        axes="time unit",
    )
    change = (by_hand(clean, zeros)[1] - hs) * grads
    assert_close(effects["."], base + change, 1e-5)


def test_under_jit_and_vmap():
    def run(model, clean):
        return px.patching.attribution(
            model, clean, CORRUPTED, metric, where=WHERE, axes=AXES
        )

    several = jnp.stack([CLEAN, 2 * CLEAN])
    found = eqx.filter_jit(lambda m, xs: jax.vmap(lambda x: run(m, x))(xs))(
        SCANNED, several
    )
    for i, clean in enumerate(several):
        expected = run(SCANNED, clean)
        for name in WHERE:
            assert_close(found[name][i], expected[name], 1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision(dtype, denoised):
    cast = lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x
    model = jax.tree.map(cast, SCANNED)
    effects = px.patching.attribution(
        model,
        cast(CLEAN),
        cast(CORRUPTED),
        lambda out: metric(out.astype(jnp.float32)),
        where=WHERE,
        axes=AXES,
    )
    for name in WHERE:
        assert effects[name].dtype == jnp.float32
        scale = jnp.max(jnp.abs(denoised[name]))
        assert_close(effects[name] / scale, denoised[name] / scale, 0.1)


def test_complex_values():
    model = eqx.nn.Sequential([eqx.nn.Identity(), eqx.nn.Lambda(jnp.abs)])
    base, given = jnp.array([1.0 + 2.0j, 3.0j]), jnp.array([1.1 + 2.0j, 0.1 + 3.1j])
    effects = px.patching.attribution(
        model, given, base, jnp.sum, where="layers.0", axes="i"
    )
    # |z| changes by Re(conj(z) dz) / |z|.
    change = (jnp.conj(base) * (given - base)).real / jnp.abs(base)
    assert_close(effects.changes()["layers.0"], change, 1e-5)


def test_a_metric_in_a_dict():
    effects = attributed(where={"z": WHERE["z"]}, axes="layer pos _")
    named = px.patching.attribution(
        SCANNED,
        CLEAN,
        CORRUPTED,
        lambda out: {"loss": metric(out)},
        where={"z": WHERE["z"]},
        axes="layer pos _",
    )
    assert_close(named["z"]["loss"], effects["z"])


def test_the_model_itself_has_no_gradient():
    """Two forward passes and a backward one that only goes through activations."""
    mlp = eqx.nn.MLP(64, 64, 64, 4, key=jax.random.key(0))
    xs = jnp.ones((16, 64))
    run = lambda mlp, xs: jnp.sum(jax.vmap(mlp)(xs))

    def attribute(mlp, clean, corrupted):
        kwargs = {"where": "layers.*", "axes": "pos _", "method": run}
        return px.patching.attribution(
            mlp, clean, corrupted, lambda x: x, **kwargs
        ).values()

    def flops(fn, *args):
        arrays, static = eqx.partition(mlp, eqx.is_array)
        jitted = jax.jit(lambda arrays, *args: fn(eqx.combine(arrays, static), *args))
        return jitted.lower(arrays, *args).compile().cost_analysis()["flops"]

    assert flops(attribute, xs, -xs) <= 3 * flops(run, xs)


def test_between_inputs_of_which_some_are_the_same():
    """Integers, numbers and strings stay what they are."""

    def run(model, x, index, power, kind):
        assert kind == "y"
        return model(x)[index] ** power

    args = jnp.array([1, 0]), 2, "y"
    effects = px.patching.attribution(
        eqx.nn.Lambda(jnp.sin),
        (jnp.array([1.0, 2.0]), *args),
        (jnp.array([3.0, 4.0]), *args),
        jnp.sum,
        where=".",
        method=run,
        axes="i",
        steps=1,
    )
    middle = jnp.sin(jnp.array([2.0, 3.0]))
    change = jnp.sin(jnp.array([1.0, 2.0])) - jnp.sin(jnp.array([3.0, 4.0]))
    assert_close(effects.changes()["."], change * 2 * middle, 1e-5)


def sometimes(part, xs):
    """Runs its part at the steps whose number is positive."""

    def step(x, y):
        x = jax.lax.cond(y[0] > 0, lambda x: part(x + y), lambda x: x, x)
        return x, None

    return jax.lax.scan(step, jnp.zeros(2), xs)[0]


def test_branches():
    """Where both runs take the same; a step that doesn't run its site does nothing."""
    part = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    clean = jnp.array([[1.0, 2.0], [-1.0, 1.0], [3.0, -1.0]])
    corrupted = clean * 2
    attribute = lambda clean: px.patching.attribution(
        part, clean, corrupted, jnp.sum, method=sometimes, where=".", axes="step _"
    )
    effects = attribute(clean)
    first = lambda xs: part(xs[0])
    last = lambda xs: part(first(xs) + xs[2])
    base = jnp.sum(last(corrupted))
    # The first reaches the metric through the last one.
    weights = part.weight.sum(0)
    change = (first(clean) - first(corrupted)) @ weights
    expected = [change, 0 * change, jnp.sum(last(clean)) - base]
    assert_close(effects["."], base + jnp.stack(expected), 1e-5)
    with pytest.raises(
        px.SiteNotFiredError,
        match="'.' runs under a condition, 3 times in the clean run and 2 times in the",
    ):
        attribute(jnp.abs(clean))
