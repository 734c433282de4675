"""What is compiled once stays compiled, and what JAX does around a wrapper: `vmap`,
ensembles, donated buffers.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from closeness import assert_close

import peex as px
from peex import _caches


def mlp(seed=0, width=4):
    return eqx.nn.MLP(3, 2, width, 1, activation=jnp.tanh, key=jax.random.key(seed))


MODEL = mlp()
X = jnp.array([0.5, -1.0, 2.0])
XS = jnp.stack([X, 2 * X, -X, X + 1])
FIRST, SECOND = MODEL.layers


def traced_once(f):
    return eqx.filter_jit(eqx.debug.assert_max_traces(f, max_traces=1))


def loss(out):
    return jnp.sum(jnp.sin(out))


# Rebuilding an equal wrapper: each builds one anew, with other arrays.

double = lambda value: jax.tree.map(lambda x: 2 * x, value)
REBUILT = {
    "default": lambda i: px.ForwardHook(mlp(i)),
    "pattern": lambda i: px.ForwardHook(mlp(i), where="layers.*"),
    "list": lambda i: px.ForwardHook(mlp(i), where=["layers.0", "layers.1"]),
    "class": lambda i: px.ForwardHook(mlp(i), where=eqx.nn.Linear),
    "function": lambda i: px.ForwardHook(mlp(i), where=lambda m: m.layers[0]),
    "callable": lambda i: px.ForwardHook(mlp(i), double, jnp.sum),
    "dict": lambda i: px.ForwardHook(
        mlp(i), {"layers.0": px.ScaleHook(2.0)}, {"**": px.NormLog()}
    ),
    "array": lambda i: px.ForwardHook(mlp(i), px.AddHook(jnp.full((), float(i)))),
    "pre": lambda i: px.ForwardHook(mlp(i), pre_hook=True, with_kwargs=True),
    "backward": lambda i: px.BackwardHook(mlp(i)).init(X),
    "backward array": lambda i: px.BackwardHook(
        mlp(i), px.ScaleHook(jnp.array(1.0 + i)), px.MeanStdLog()
    ).init(X),
    "nested": lambda i: px.BackwardHook(
        px.ForwardHook(px.ForwardHook(mlp(i), pre_hook=True))
    ).init(X),
}


@pytest.mark.parametrize("make", REBUILT.values(), ids=REBUILT)
def test_rebuilt_wrapper_is_not_traced_again(make):
    def scalar(out):
        return sum(jnp.sum(x) for x in jax.tree.leaves(out))

    run = traced_once(lambda h, x: h(x))
    grad = traced_once(eqx.filter_grad(lambda h, x: scalar(h(x))))
    for i in range(3):
        hooked = make(i)
        run(hooked, X + i)
        grad(hooked, X + i)


def test_equal_wrappers_have_equal_structures():
    for make in REBUILT.values():
        if make is not REBUILT["function"]:
            a, b = (
                jax.tree.structure(eqx.filter(make(i), eqx.is_array)) for i in (0, 1)
            )
            assert a == b and hash(a) == hash(b)


def test_value_and_grad_is_not_traced_again():
    def batch_loss(model, xs):
        return loss(jax.vmap(model)(xs))

    @traced_once
    def step(model, xs):
        run = px.value_and_grad(batch_loss, forward=px.NormLog())
        return run(model, xs)

    for i in range(3):
        step(mlp(i), XS * i)


def test_jitted_parts_of_an_eager_call_are_not_traced_again():
    traces = []

    class Jitted(eqx.Module):
        mlp: eqx.nn.MLP

        @eqx.filter_jit
        def inner(self, x):
            traces.append(None)
            return self.mlp(x)

        def __call__(self, x):
            return self.inner(x)

    for i in range(3):
        hooked = px.ForwardHook(Jitted(mlp(i)), px.AddHook(jnp.array(float(i))))
        out, log = hooked(X)
        first, second = mlp(i).layers
        assert_close(log["mlp.layers.0"], first(X) + i)
        assert_close(out, second(jnp.tanh(first(X) + i)) + i)
        assert len(traces) == 1


def test_new_shapes_are_traced_again():
    run = eqx.filter_jit(lambda h, x: h(x))
    hooked = px.ForwardHook(eqx.filter_vmap(MODEL))
    for n in (2, 3):
        _, log = run(hooked, XS[:n])
        assert log["layers.0"].shape == (n, 4)


# A log fed back as the next one's start


def test_log_fed_back_does_not_grow():
    @traced_once
    def step(hooked, x):
        grads = eqx.filter_grad(lambda h: loss(h(x)))(hooked)
        return eqx.tree_at(lambda h: h.log, hooked, grads.log), grads.log

    hooked = px.BackwardHook(MODEL, log_fn=lambda ct: (ct, ct > 0)).init(X)
    structure = jax.tree.structure(hooked)
    expected = jax.grad(lambda a: loss(SECOND(jnp.tanh(a))))(FIRST(X))
    for _ in range(4):
        hooked, log = step(hooked, X)
        assert jax.tree.structure(hooked) == structure
        # What is in the log before doesn't matter.
        assert_close(log["layers.0"], (expected, expected > 0))


def test_log_given_to_the_wrapper():
    log = px.BackwardHook(MODEL).init(X).log
    hooked = px.BackwardHook(MODEL, log=log)
    grads = eqx.filter_grad(lambda h: loss(h(X)))(hooked)
    assert_close(grads.log["layers.1"], jax.grad(loss)(MODEL(X)))


def test_log_as_a_carry():
    def mean_log(hooked, xs):
        def step(total, x):
            grads = eqx.filter_grad(lambda h: loss(h(x)))(hooked)
            return jax.tree.map(jnp.add, total, grads.log), None

        return jax.lax.scan(step, hooked.log, xs)[0]

    hooked = px.BackwardHook(MODEL).init(X)
    total = mean_log(hooked, XS)
    assert isinstance(total, px.Log) and list(total) == ["layers.0", "layers.1"]
    cts = jax.vmap(jax.grad(loss))(jax.vmap(MODEL)(XS))
    assert_close(total["layers.1"], jnp.sum(cts, 0))


def test_forward_logs_are_pytrees():
    _, log = px.ForwardHook(MODEL)(X)
    doubled = jax.tree.map(lambda x: 2 * x, log)
    assert isinstance(doubled, px.Log) and list(doubled) == list(log)
    assert_close(doubled["layers.0"], 2 * FIRST(X))
    stacked = jax.tree.map(lambda *x: jnp.stack(x), log, doubled)
    assert stacked["layers.0"].shape == (2, 4)
    names = [
        jax.tree_util.keystr(k) for k, _ in jax.tree_util.tree_leaves_with_path(log)
    ]
    assert names == ["['layers.0']", "['layers.1']"]
    assert "layers.0" in repr(log) and dict(log).keys() == log.keys()


# vmap around the wrapper, and inside of it


def test_vmap_around_sums_and_vmap_inside_does_not():
    cts = jax.vmap(jax.grad(lambda a: loss(SECOND(jnp.tanh(a)))))(jax.vmap(FIRST)(XS))

    outside = px.BackwardHook(MODEL).init(X)
    grads = eqx.filter_grad(lambda h: loss(jax.vmap(h)(XS)))(outside)
    assert_close(grads.log["layers.0"], jnp.sum(cts, 0))

    def mapped(h):
        return loss(eqx.filter_vmap(lambda h, x: h(x), in_axes=(None, 0))(h, XS))

    grads = eqx.filter_grad(mapped)(outside)
    assert_close(grads.log["layers.0"], jnp.sum(cts, 0))

    inside = px.BackwardHook(eqx.filter_vmap(MODEL)).init(XS)
    grads = eqx.filter_grad(lambda h: loss(h(XS)))(inside)
    assert_close(grads.log["layers.0"], cts)

    # The gradient of each example: a log for each.
    per_example = jax.vmap(lambda x: eqx.filter_grad(lambda h: loss(h(x)))(outside).log)
    assert_close(per_example(XS)["layers.0"], cts)


def test_nonlinear_log_under_vmap_around():
    # The log is of each example, and what JAX sums is the log.
    cts = jax.vmap(jax.grad(lambda a: loss(SECOND(jnp.tanh(a)))))(jax.vmap(FIRST)(XS))
    hooked = px.BackwardHook(MODEL, log_fn=px.NormLog()).init(X)
    grads = eqx.filter_grad(lambda h: loss(jax.vmap(h)(XS)))(hooked)
    assert_close(grads.log["layers.0"], jnp.sum(jnp.linalg.norm(cts, axis=1)))


def test_forward_vmap_around():
    out, log = jax.vmap(px.ForwardHook(MODEL))(XS)
    assert_close(out, jax.vmap(MODEL)(XS))
    assert_close(log["layers.0"], jax.vmap(FIRST)(XS))
    out, log = jax.vmap(px.ForwardHook(MODEL), in_axes=1, out_axes=1)(XS.T)
    assert_close(log["layers.0"], jax.vmap(FIRST, out_axes=1)(XS))


def test_ensemble():
    members = [mlp(i) for i in range(3)]
    model = eqx.filter_vmap(mlp)(jnp.arange(3))
    in_axes = (eqx.if_array(0), None)

    wrapped = px.ForwardHook(model)
    out, log = eqx.filter_vmap(lambda h, x: h(x), in_axes=in_axes)(wrapped, X)
    expected = [px.ForwardHook(m)(X) for m in members]
    for i in range(3):
        assert_close(out[i], members[i](X), 1e-5)
        assert_close(log["layers.0"][i], expected[i][1]["layers.0"], 1e-5)

    # Each member with its own log of cotangents.
    single = px.BackwardHook(members[0]).init(X)
    logs = jax.tree.map(lambda x: jnp.zeros((3, *x.shape)), single.log)
    wrapped = px.BackwardHook(model, log=logs)

    def ensemble_loss(h):
        return loss(eqx.filter_vmap(lambda h, x: h(x), in_axes=in_axes)(h, X))

    grads = eqx.filter_grad(ensemble_loss)(wrapped)
    for i, member in enumerate(members):
        one = eqx.filter_grad(lambda h: loss(h(X)))(px.BackwardHook(member).init(X))
        assert_close(grads.log["layers.0"][i], one.log["layers.0"], 1e-5)
        assert_close(grads.model.layers[0].weight[i], one.model.layers[0].weight, 1e-5)


def test_wrapper_made_inside_of_the_vmap():
    model = eqx.filter_vmap(mlp)(jnp.arange(3))
    logs = eqx.filter_vmap(lambda m: px.ForwardHook(m)(X)[1])(model)
    for i in range(3):
        assert_close(logs["layers.0"][i], mlp(i).layers[0](X), 1e-5)


# Donated buffers


def descend(model, grads):
    return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads))


def test_donated_buffers():
    hooked = px.BackwardHook(mlp()).init(X)

    @eqx.filter_jit(donate="all-except-first")
    def step(x, hooked):
        grads = eqx.filter_grad(lambda h: loss(h(x)))(hooked)
        model = descend(hooked.model, grads.model)
        return eqx.tree_at(lambda h: (h.model, h.log), hooked, (model, grads.log))

    model = MODEL
    for _ in range(3):
        grads = eqx.filter_grad(lambda m: loss(m(X)))(model)
        first, second = model.layers
        expected = jax.grad(lambda a, f=second: loss(f(jnp.tanh(a))))(first(X))
        before = hooked
        hooked = step(X, hooked)
        assert before.model.layers[0].weight.is_deleted()
        assert_close(hooked.log["layers.0"], expected)
        model = descend(model, grads)
    assert_close(
        eqx.filter(hooked.model, eqx.is_array), eqx.filter(model, eqx.is_array)
    )


def test_donated_buffers_forward():
    identity = eqx.nn.Lambda(lambda x: 2 * x)
    f = jax.jit(lambda x: px.ForwardHook(identity)(x), donate_argnums=0)
    x = jnp.copy(X)
    out, log = f(x)
    assert x.is_deleted()
    assert_close(out, 2 * X)
    assert_close(log["."], 2 * X)


def test_clear_caches():
    linear = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    hooked = px.ForwardHook(linear, method=lambda m, x: jax.jit(lambda x: m(x))(x))
    before, log = hooked(jnp.ones(2))
    assert any(_caches._caches)
    px.clear_caches()
    assert not any(_caches._caches)
    after, again = hooked(jnp.ones(2))
    assert jnp.array_equal(before, after) and log == again
