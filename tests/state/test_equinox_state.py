"""What an `eqx.nn.State` holds, by the paths of the model."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from closeness import assert_close
from parts import Two

import peex as px


def norm():
    make = eqx.nn.make_with_state(eqx.nn.BatchNorm)
    return make(2, "batch", mode="ema", momentum=0.9)


def over_batch(model, xs, state):
    run = jax.vmap(model, (0, None), (0, None), axis_name="batch")
    return run(xs, state)


class Stateful(eqx.Module):
    norms: list[eqx.nn.BatchNorm]

    def __init__(self):
        self.norms = [eqx.nn.BatchNorm(2, "batch", mode="ema") for _ in range(2)]

    def __call__(self, x, state):
        for norm in self.norms:
            x, state = norm(x, state)
        return x, state


XS = jnp.array([[1.0, 10.0], [3.0, 30.0]])


def test_batch_norm():
    model, eqx_state = norm()
    _, eqx_state = over_batch(model, XS, eqx_state)
    bare, state = px.export_state(model, eqx_state)
    assert bare is model
    assert list(state) == ["ema_first_time_index", "ema_state_index"]
    assert not state["ema_first_time_index"]
    means = jnp.array([2.0, 20.0]), jnp.array([1.0, 100.0])
    assert_close(state["ema_state_index"], means)

    _, eqx_state = over_batch(model, 2 * XS, eqx_state)
    _, state = px.export_state(model, eqx_state)
    means = jnp.array([2.2, 22.0]), jnp.array([1.3, 130.0])
    assert_close(state["ema_state_index"], means)


def test_a_pushed_mean_is_seen_at_inference():
    model, eqx_state = norm()
    bare, state = px.export_state(model, eqx_state)
    means = jnp.array([1.0, 2.0]), jnp.array([4.0, 9.0])
    state = px.update_state(state, {"ema_state_index": means})
    model, pushed = px.import_state(bare, state, eqx_state)
    out, _ = eqx.nn.inference_mode(model)(jnp.array([3.0, 5.0]), pushed)
    assert_close(out, jnp.array([0.9999988, 0.99999946]), 1e-7)
    # The other can still be used, and isn't changed.
    assert_close(eqx_state.get(model.ema_state_index)[0], jnp.zeros(2))


def test_export_then_import_is_the_identity():
    model, eqx_state = eqx.nn.make_with_state(Stateful)()
    again, eqx_again = px.import_state(*px.export_state(model, eqx_state), eqx_state)
    assert again is model
    assert jax.tree.structure(eqx_again) == jax.tree.structure(eqx_state)
    for a, b in zip(*map(jax.tree.leaves, (eqx_again, eqx_state)), strict=True):
        assert a is b


@pytest.mark.parametrize(
    "wrap", [lambda m: m, px.ForwardHook, eqx.filter_jit], ids=["no", "hooked", "jit"]
)
def test_paths_are_the_same_hooked(wrap):
    model, eqx_state = eqx.nn.make_with_state(Stateful)()
    _, state = px.export_state(wrap(model), eqx_state)
    assert list(state) == [
        f"norms.{i}.{name}"
        for i in (0, 1)
        for name in ("ema_first_time_index", "ema_state_index")
    ]


def test_a_hooked_model_updates_it():
    model, eqx_state = eqx.nn.make_with_state(Stateful)()
    hooked = px.ForwardHook(model)
    run = jax.vmap(hooked, (0, None), ((0, None), 0), axis_name="batch")
    (_, new), _ = run(XS, px.import_state(hooked, *both(hooked, eqx_state))[1])
    _, plain = over_batch(model, XS, eqx_state)
    assert_close(px.export_state(hooked, new)[1], px.export_state(model, plain)[1])


def both(model, eqx_state):
    return px.export_state(model, eqx_state)[1], eqx_state


def test_a_part_of_the_model():
    model, eqx_state = eqx.nn.make_with_state(Stateful)()
    part, state = px.export_state(model.norms[1], eqx_state)
    assert list(state) == ["ema_first_time_index", "ema_state_index"]
    means = jnp.ones(2), jnp.ones(2)
    state = px.update_state(state, {"ema_state_index": means})
    _, new = px.import_state(part, state, eqx_state)
    assert_close(new.get(model.norms[1].ema_state_index), means)
    assert_close(new.get(model.norms[0].ema_state_index)[0], jnp.zeros(2))


def test_the_two_vectors_of_spectral_norm():
    def make():
        key1, key2 = jax.random.split(jax.random.key(0))
        linear = eqx.nn.Linear(3, 2, key=key1)
        return eqx.nn.SpectralNorm(linear, "weight", key=key2)

    model, eqx_state = eqx.nn.make_with_state(make)()
    weight = model.layer.weight
    _, eqx_state = model(jnp.ones(3), eqx_state)
    _, state = px.export_state(model, eqx_state)
    u, v = state["uv_index"]
    assert list(state) == ["uv_index"] and u.shape == (2,) and v.shape == (3,)
    assert_close(u @ weight @ v, jnp.linalg.svd(weight, compute_uv=False)[0], 1e-5)


def test_beside_entries_of_ones_own():
    class Both(eqx.Module):
        count: px.StateEntry | px.StateKey
        norm: eqx.nn.BatchNorm

        def __init__(self):
            self.count = px.StateEntry(jnp.array(3))
            self.norm = eqx.nn.BatchNorm(2, "batch", mode="ema")

    model, eqx_state = eqx.nn.make_with_state(Both)()
    bare, state = px.export_state(model, eqx_state)
    assert state["count"] == 3 and "norm.ema_state_index" in state
    again, eqx_again = px.import_state(bare, state, eqx_state)
    assert again.count.value is model.count.value
    assert jax.tree.structure(eqx_again) == jax.tree.structure(eqx_state)


def test_a_shared_index_is_named_once():
    layer = eqx.nn.BatchNorm(2, "batch", mode="ema")
    model = Two(layer, layer)
    _, state = px.export_state(model, eqx.nn.State(model))
    assert list(state) == ["a.ema_first_time_index", "a.ema_state_index"]


def test_inside_of_jit_and_scan():
    model, eqx_state = norm()

    @jax.jit
    def run(eqx_state):
        def step(state, _):
            _, current = px.import_state(model, state, eqx_state)
            _, current = over_batch(model, XS, current)
            state = px.export_state(model, current)[1]
            return state, state["ema_state_index"][0]

        return jax.lax.scan(step, px.export_state(model, eqx_state)[1], length=3)

    state, means = run(eqx_state)
    assert_close(means, jnp.array([[2.0, 20.0]] * 3))
    assert_close(state["ema_state_index"][1], jnp.array([1.0, 100.0]))


def test_a_state_of_another_model():
    other, eqx_state = norm()
    model, _ = eqx.nn.make_with_state(Stateful)()
    message = (
        r"^The `eqx.nn.State` holds nothing for 'norms.0.ema_first_time_index', a "
        r"`StateIndex` of this model, so it is another model's. Give the two that "
        r"`eqx.nn.make_with_state\(Model\)\(...\)` returned together.$"
    )
    with pytest.raises(px.PeexError, match=message):
        px.export_state(model, eqx_state)


def test_the_state_to_put_it_into_is_asked_for():
    model, eqx_state = norm()
    bare, state = px.export_state(model, eqx_state)
    message = r"'ema_first_time_index' \(and 1 more\).*model, state, eqx_state\)`.$"
    with pytest.raises(px.PeexError, match=message):
        px.import_state(bare, state)


@pytest.mark.parametrize(
    ("path", "change", "message"),
    [
        ("ema_state_index", None, r"has no value for 'ema_state_index', which the"),
        (
            "ema_state_index",
            jnp.zeros(2),
            r"is float32\[2\], but float32\[2\], f",
        ),
        ("ema_first_time_index", jnp.zeros(3, bool), r"is bool\[3\], but bool\[\] was"),
    ],
    ids=["missing", "structure", "shape"],
)
def test_what_doesnt_fit(path, change, message):
    model, eqx_state = norm()
    bare, state = px.export_state(model, eqx_state)
    if change is None:
        del state[path]
    else:
        state[path] = change
    with pytest.raises(px.PeexError, match=message):
        px.import_state(bare, state, eqx_state)
