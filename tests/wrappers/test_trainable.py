"""`px.value_and_grad(loss, trainable=...)`: the gradient of a part of the model, with
Equinox's own `partition`, `combine` and `filter_value_and_grad` as the oracle. The logs
are those of the whole model.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from closeness import assert_close

import peex as px


def mlp(seed=0):
    return eqx.nn.MLP(3, 2, 4, 2, activation=jnp.tanh, key=jax.random.key(seed))


MODEL = mlp()
XS = jax.random.normal(jax.random.key(1), (5, 3))
NONE = jax.tree.map(lambda _: False, MODEL)


def only(where):
    return eqx.tree_at(where, NONE, True)


# As `equinox.partition` takes them.
SPECS = {
    "a layer, a prefix": only(lambda m: m.layers[1]),
    "the last weight": only(lambda m: m.layers[2].weight),
    "the first bias": only(lambda m: m.layers[0].bias),
    "all but a layer": eqx.tree_at(
        lambda m: m.layers[1], jax.tree.map(eqx.is_inexact_array, MODEL), False
    ),
    "a function": lambda leaf: eqx.is_array(leaf) and leaf.ndim == 1,
    "a function in a prefix": eqx.tree_at(
        lambda m: m.layers[0],
        only(lambda m: m.layers[2].bias),
        lambda leaf: eqx.is_array(leaf) and leaf.ndim == 2,
    ),
    "is_inexact_array": eqx.is_inexact_array,
    "True": True,
    "False": False,
    "nothing": NONE,
}

each_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
eager_and_jit = pytest.mark.parametrize(
    "wrap", [lambda f: f, eqx.filter_jit], ids=["eager", "jit"]
)


def loss(model, xs):
    return jnp.mean(jax.vmap(model)(xs) ** 2)


def by_hand(loss, spec):
    """Value and gradient of the part that `spec` says."""

    def run(model, *args):
        trained, frozen = eqx.partition(model, spec)
        whole = lambda trained, frozen: loss(eqx.combine(trained, frozen), *args)
        return eqx.filter_value_and_grad(whole)(trained, frozen)

    return run


@each_spec
@eager_and_jit
def test_gradient_is_that_of_equinox(spec, wrap):
    (value, _), grads = wrap(px.value_and_grad(loss, trainable=spec))(MODEL, XS)
    expected, expected_grads = wrap(by_hand(loss, spec))(MODEL, XS)
    assert_close(value, expected)
    assert_close(grads, expected_grads)


def test_specs_differ():
    # What is trained in each, so that the test above says something.
    counts = {
        name: len(jax.tree.leaves(by_hand(loss, spec)(MODEL, XS)[1]))
        for name, spec in SPECS.items()
    }
    assert list(counts.values()) == [2, 1, 1, 4, 3, 2, 6, 6, 0, 0]


def cotangents(model, xs):
    """Of each layer's output, by `jax.vjp`."""
    first, second, third = model.layers
    a = jax.vmap(first)(xs)
    b = jax.vmap(second)(jnp.tanh(a))
    c = jax.vmap(third)(jnp.tanh(b))
    rest = {
        "layers.0": (a, lambda a: rest["layers.1"][1](jax.vmap(second)(jnp.tanh(a)))),
        "layers.1": (b, lambda b: rest["layers.2"][1](jax.vmap(third)(jnp.tanh(b)))),
        "layers.2": (c, lambda c: jnp.mean(c**2)),
    }
    return {key: jax.grad(f)(at) for key, (at, f) in rest.items()}


@each_spec
@eager_and_jit
def test_logs_are_complete(spec, wrap):
    # Frozen layers too, and those that come before all that is trained.
    run = px.value_and_grad(loss, trainable=spec, forward=px.IdentityLog())
    (_, logs), _ = wrap(run)(MODEL, XS)
    assert (
        list(logs.forward) == list(logs.backward) == [f"layers.{i}" for i in (0, 1, 2)]
    )
    assert_close(dict(logs.backward), cotangents(MODEL, XS))
    assert_close(logs.forward["layers.0"], jax.vmap(MODEL.layers[0])(XS))


class Scanned(eqx.Module):
    layers: eqx.nn.Linear
    head: eqx.nn.Linear

    def __init__(self, key):
        make = lambda key: eqx.nn.Linear(3, 3, key=key)
        self.layers = eqx.filter_vmap(make)(jax.random.split(key, 4))
        self.head = make(key)

    def __call__(self, x):
        arrays, static = eqx.partition(self.layers, eqx.is_array)

        @jax.checkpoint
        def step(x, layer):
            return jnp.tanh(eqx.combine(layer, static)(x)), None

        return self.head(jax.lax.scan(step, x, arrays)[0])


@pytest.mark.parametrize("part", ["layers", "head"])
@eager_and_jit
def test_in_a_scan(part, wrap):
    model = Scanned(jax.random.key(0))
    spec = eqx.tree_at(
        lambda m: getattr(m, part), jax.tree.map(lambda _: False, model), True
    )
    (value, logs), grads = wrap(px.value_and_grad(loss, trainable=spec))(model, XS)
    (_, whole), _ = px.value_and_grad(loss)(model, XS)
    expected, expected_grads = by_hand(loss, spec)(model, XS)
    assert_close(value, expected)
    assert_close(grads, expected_grads)
    assert logs.backward["layers"].shape == (4, 5, 3)
    assert_close(dict(logs.backward), dict(whole.backward))


def test_hooks_act_on_what_is_frozen():
    # Zero for a frozen layer is zero for what comes before it.
    spec = only(lambda m: m.layers[0])
    hook = {"layers.1": px.ZeroHook()}
    (_, logs), grads = px.value_and_grad(loss, trainable=spec, hook_fn=hook)(MODEL, XS)
    assert_close(grads, jax.tree.map(jnp.zeros_like, grads))
    assert grads.layers[0].weight.shape == (4, 3)
    assert_close(logs.backward["layers.1"], jnp.zeros((5, 4)))
    assert_close(logs.backward["layers.2"], cotangents(MODEL, XS)["layers.2"])


def test_without_a_backward_log():
    spec = SPECS["a layer, a prefix"]
    run = px.value_and_grad(loss, trainable=spec, backward=None, where="layers.*")
    (value, logs), grads = run(MODEL, XS)
    assert logs == px.Logs(px.Log(), px.Log())
    assert_close((value, grads), by_hand(loss, spec)(MODEL, XS))


def test_with_an_auxiliary_output():
    spec = SPECS["the last weight"]
    with_aux = lambda model, xs: (loss(model, xs), {"n": len(xs)})
    run = px.value_and_grad(with_aux, trainable=spec, has_aux=True)
    ((value, aux), _), grads = run(MODEL, XS)
    assert aux == {"n": 5}
    assert_close((value, grads), by_hand(loss, spec)(MODEL, XS))


class Frozen(eqx.Module):
    """Refuses to be differentiated in what is frozen."""

    frozen: eqx.nn.Linear
    head: eqx.nn.Linear
    count: jax.Array
    key: jax.Array
    table: dict

    def __call__(self, x):
        frozen = eqx.internal.nondifferentiable(self.frozen)
        noise = jax.random.normal(self.key, x.shape)
        return self.head(frozen(x) + noise * self.count) + self.table["shift"]


def test_what_is_frozen_is_not_differentiated():
    first, second = (eqx.nn.Linear(3, 3, key=jax.random.key(i)) for i in (0, 1))
    table = {"shift": jnp.ones(3), "name": "a"}
    model = Frozen(first, second, jnp.array(2), jax.random.key(3), table)
    spec = eqx.tree_at(lambda m: m.frozen, model, False)
    spec = jax.tree.map(lambda leaf: leaf is not False, spec)
    (value, logs), grads = px.value_and_grad(loss, trainable=spec)(model, XS)
    assert_close((value, grads), by_hand(loss, spec)(model, XS))
    assert list(logs.backward) == ["frozen", "head"]
    assert grads.count is None and grads.key is None and grads.frozen.weight is None
    assert grads.table["shift"].shape == (3,)
    with pytest.raises(RuntimeError, match="cannot be autodifferentiated"):
        px.value_and_grad(loss)(model, XS)


def test_training_leaves_what_is_frozen():
    spec = SPECS["a layer, a prefix"]
    optim = optax.sgd(0.1, momentum=0.9)

    def train(step):
        model = MODEL
        state = optim.init(eqx.filter(model, spec))
        for _ in range(3):
            value, grads = step(model, XS)
            updates, state = optim.update(grads, state)
            model = eqx.apply_updates(model, updates)
        return value, model

    run = eqx.filter_jit(px.value_and_grad(loss, trainable=spec))

    def hooked(model, xs):
        (value, _), grads = run(model, xs)
        return value, grads

    value, model = train(hooked)
    expected, expected_model = train(eqx.filter_jit(by_hand(loss, spec)))
    arrays = lambda model: eqx.filter(model, eqx.is_array)
    assert_close((value, arrays(model)), (expected, arrays(expected_model)))
    assert model.layers[0].weight is MODEL.layers[0].weight
    assert not jnp.allclose(model.layers[1].weight, MODEL.layers[1].weight)


@pytest.mark.parametrize(
    "spec, got",
    [
        ("layers.0", "'layers.0'"),
        (3, "3"),
        (["layers.0"], "a list"),
        ({"layers": True}, "a dict"),
        (mlp(1), "a MLP"),
        (eqx.nn.Linear(3, 3, key=jax.random.key(0)), "a Linear"),
    ],
    ids=["pattern", "number", "list", "dict", "arrays", "another module"],
)
def test_what_is_no_filter_is_refused(spec, got):
    match = f"a prefix of it; got {got}. .*trainable=eqx.tree_at"
    match = "`trainable` says which arrays .* `equinox.partition` does.*" + match
    with pytest.raises(TypeError, match=match):
        px.value_and_grad(loss, trainable=spec)(MODEL, XS)


def test_errors_of_a_filter_pass():
    def filter(leaf):
        raise TypeError("mine")

    with pytest.raises(TypeError, match="^mine$"):
        px.value_and_grad(loss, trainable=filter)(MODEL, XS)
