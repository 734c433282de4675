"""`px.probe`: named values in the model's own code."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from closeness import assert_close
from parts import Two

import peex as px


class Attention(eqx.Module):
    query: jax.Array
    probes: bool = True

    def __call__(self, x):
        probs = jax.nn.softmax(x @ self.query)
        if self.probes:
            probs = px.probe(probs, "probs")
        return probs[:, None] * x


class Block(eqx.Module):
    attn: Attention
    linear: eqx.nn.Linear

    def __call__(self, x):
        x = px.probe(self.attn(x), "residual")
        return jax.vmap(self.linear)(x)


class Model(eqx.Module):
    blocks: list

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def make(probes=True):
    key = jax.random.key
    return Model(
        [
            Block(Attention(jnp.arange(2.0), probes), eqx.nn.Linear(2, 2, key=key(0))),
            Block(Attention(-jnp.ones(2), probes), eqx.nn.Linear(2, 2, key=key(1))),
        ]
    )


MODEL = make()
X = jnp.array([[0.5, -2.0], [1.0, 0.3], [0.1, 0.2]])


def probs_of(block, x):
    e = jnp.exp(x @ block.attn.query)
    return e / e.sum()


P0 = probs_of(MODEL.blocks[0], X)
R0 = P0[:, None] * X
Y0 = R0 @ MODEL.blocks[0].linear.weight.T + MODEL.blocks[0].linear.bias
P1 = probs_of(MODEL.blocks[1], Y0)

KEYS = [
    "blocks.0.attn/probs",
    "blocks.0.attn",
    "blocks.0/residual",
    "blocks.0.linear",
    "blocks.1.attn/probs",
    "blocks.1.attn",
    "blocks.1/residual",
    "blocks.1.linear",
]


# Outside of hooks


def test_the_program_is_the_same_with_and_without():
    run = lambda model: str(jax.make_jaxpr(model)(X))
    gradient = lambda model: str(
        jax.make_jaxpr(jax.grad(lambda x: jnp.sum(model(x))))(X)
    )
    plain = Attention(jnp.arange(2.0), probes=False)
    probed = Attention(jnp.arange(2.0), probes=True)
    assert run(plain) == run(probed)
    assert gradient(plain) == gradient(probed)


def test_it_returns_what_it_is_given():
    value = {"a": object(), "b": X}
    assert px.probe(value, "value") is value


@pytest.mark.parametrize("name", ["", "a#1"])
def test_names(name):
    with pytest.raises(TypeError, match="name of a probe is a string without '#'"):
        px.probe(X, name)


# Inside


def test_sites_by_default():
    hooked = px.ForwardHook(MODEL)
    for call in (hooked, hooked, eqx.filter_jit(hooked)):
        out, log = call(X)
        assert list(log) == KEYS
        assert_close(log["blocks.0.attn/probs"], P0)
        assert_close(log["blocks.0/residual"], R0)
        assert_close(log["blocks.1.attn/probs"], P1)
        assert_close(out, MODEL(X))


@pytest.mark.parametrize(
    "where, keys",
    [
        ("blocks.1.attn/probs", ["blocks.1.attn/probs"]),
        ("blocks.*/residual", ["blocks.0/residual", "blocks.1/residual"]),
        ("**/probs", ["blocks.0.attn/probs", "blocks.1.attn/probs"]),
        ("blocks.0.attn/p*s", ["blocks.0.attn/probs"]),
        (["**.linear", "**/probs"], [k for k in KEYS if "probs" in k or "lin" in k]),
        ("**.linear", ["blocks.0.linear", "blocks.1.linear"]),
    ],
)
def test_where(where, keys):
    hooked = px.ForwardHook(MODEL, where=where)
    for call in (hooked, hooked, eqx.filter_jit(hooked)):
        _, log = call(X)
        assert list(log) == keys


def test_probes_next_to_values_inside():
    where = ["blocks.0.attn/probs", "blocks.0.attn/softmax", "blocks.0.attn/mul"]
    _, log = px.ForwardHook(MODEL, where=where)(X)
    assert list(log) == ["blocks.0.attn/softmax", "blocks.0.attn/probs", where[2]]
    assert_close(log["blocks.0.attn/softmax"], P0)
    assert_close(log["blocks.0.attn/probs"], P0)
    assert_close(log["blocks.0.attn/mul"], R0)


def test_editing():
    hooked = px.ForwardHook(MODEL.blocks[0], px.ZeroHook(), None, where="attn/probs")
    out, _ = hooked(X)
    assert_close(out, jnp.broadcast_to(MODEL.blocks[0].linear.bias, (3, 2)))


def test_cotangents():
    block = MODEL.blocks[0]
    hooked = px.BackwardHook(block).init(X)
    assert list(hooked.log) == ["attn/probs", "attn", "./residual", "linear"]
    log = eqx.filter_grad(lambda hooked: jnp.sum(hooked(X) ** 2))(hooked).log

    def from_probs(probs):
        x = (probs[:, None] * X) @ block.linear.weight.T + block.linear.bias
        return jnp.sum(x**2)

    assert_close(log["attn/probs"], jax.grad(from_probs)(P0), rtol=1e-5, atol=1e-6)


def test_value_and_grad_per_example():
    loss = lambda model, xs: jnp.sum(jax.vmap(model)(xs))
    xs = jnp.stack([X, 2 * X])
    run = px.value_and_grad(loss, forward=px.IdentityLog(), where="**/probs")
    (_, logs), _ = run(MODEL, xs)
    assert logs.backward["blocks.0.attn/probs"].shape == (2, 3)
    assert_close(logs.forward["blocks.0.attn/probs"][0], P0)


def test_in_scan_and_cond():
    class Loop(eqx.Module):
        layer: eqx.nn.Linear

        def __call__(self, x):
            def step(x, _):
                x = px.probe(jnp.tanh(self.layer(x)), "state")
                big = lambda x: px.probe(2 * x, "big")
                return jax.lax.cond(x[0] > 0, big, lambda x: x, x), None

            return jax.lax.scan(step, x, None, length=3)[0]

    model = Loop(eqx.nn.Linear(2, 2, key=jax.random.key(0)))
    _, log = px.ForwardHook(model)(X[0])
    assert list(log) == ["layer", "./state", "./big"]
    assert log["./state"].shape == (3, 2)
    assert log.counts["./big"].tolist() == (log["./state"][:, 0] > 0).tolist()


def test_dicts_by_pattern():
    hooks = {"**/probs": px.ZeroHook(), "**": None}
    logs = {"blocks.*/residual": px.MaxAbsLog()}
    _, log = px.ForwardHook(MODEL, hooks, logs)(X)
    assert list(log) == ["blocks.0/residual", "blocks.1/residual"]
    assert log["blocks.0/residual"] == 0


def test_nested_wrappers():
    inner = px.ForwardHook(MODEL, px.ScaleHook(2.0), where="blocks.0.attn/probs")
    (out, log), outer = px.ForwardHook(inner, where="**/probs")(X)
    assert list(log) == ["blocks.0.attn/probs"]
    assert list(outer) == ["blocks.0.attn/probs", "blocks.1.attn/probs"]
    assert_close(log["blocks.0.attn/probs"], 2 * P0)
    assert_close(outer["blocks.0.attn/probs"], 2 * P0)


def test_outside_of_any_module():
    loss = lambda model, x: px.probe(jnp.sum(model(x) ** 2), "loss")
    out, log = px.ForwardHook(MODEL.blocks[0], where="./loss", method=loss)(X)
    assert_close(log["./loss"], out)


def test_several_of_one_name_and_further_calls_of_the_module():
    class Cell(eqx.Module):
        def __call__(self, x):
            for _ in range(2):
                x = px.probe(2 * x, "double")
            return x

    class Twice(eqx.Module):
        cell: Cell

        def __call__(self, x):
            return self.cell(self.cell(x))

    _, log = px.ForwardHook(Twice(Cell()), where="cell/double")(X)
    names = ["cell/double", "cell/double#1", "cell#1/double", "cell#1/double#1"]
    assert list(log) == names
    for i, value in enumerate(log.values()):
        assert_close(value, 2 ** (i + 1) * X)
    _, log = px.ForwardHook(Twice(Cell()), where="cell/double#1")(X)
    assert list(log) == [names[1], names[3]]


# Functions that JAX has traced before


@jax.jit
def jitted(x):
    return px.probe(jnp.tanh(x), "tanh")


class Uses(eqx.Module):
    def __call__(self, x):
        return jitted(x) + 1


def test_a_function_that_was_jitted_outside_of_hooks():
    model = Two(Uses(), Uses())
    model(X)
    y = jnp.tanh(X) + 1
    for where in (None, "*/tanh"):
        _, log = px.ForwardHook(model, where=where)(X)
        assert [k for k in log if "/" in k] == ["a/tanh", "b/tanh"]
        assert_close(log["a/tanh"], jnp.tanh(X))
        assert_close(log["b/tanh"], jnp.tanh(y))
    model(X)


# What a model without probes pays


def test_a_model_without_probes_runs_once():
    runs = []

    class Counting(eqx.Module):
        linear: eqx.nn.Linear

        def __call__(self, x):
            runs.append(1)
            return self.linear(x)

    model = Counting(eqx.nn.Linear(2, 2, key=jax.random.key(0)))
    px.ForwardHook(model)(X[0])
    assert len(runs) == 1


def test_a_model_with_probes_runs_once():
    runs = []

    class Counting(eqx.Module):
        linear: eqx.nn.Linear

        def __call__(self, x):
            runs.append(1)
            return px.probe(self.linear(x), "out")

    model = Counting(eqx.nn.Linear(2, 2, key=jax.random.key(0)))
    hooked = px.ForwardHook(model)
    for n in (1, 2, 3):
        hooked(X[0])
        assert len(runs) == n


# Errors


def test_a_probe_that_is_nowhere():
    with pytest.raises(px.SiteNotFiredError) as error:
        px.ForwardHook(MODEL, where="**/prbs")(X)
    assert "`where='**/prbs'` was asked for, but nothing" in str(error.value)


def test_a_pattern_of_a_dict_that_no_probe_matches():
    with pytest.raises(px.SiteNotFiredError) as error:
        px.ForwardHook(MODEL, {"**/prbs": px.ZeroHook()})(X)
    assert "The pattern '**/prbs' of `hook_fn` matches no `px.probe`" in str(
        error.value
    )
    assert "'blocks.0.attn/probs'" in str(error.value)
    with pytest.raises(px.SiteNotFoundError, match="'nowhere/probs' of `hook_fn`"):
        px.ForwardHook(MODEL, {"nowhere/probs": px.ZeroHook()})


def test_pre_hooks_pass_probes_by():
    _, log = px.ForwardHook(MODEL, pre_hook=True)(X)
    assert list(log) == [k for k in KEYS if "/" not in k]


def test_a_report_shows_probes():
    class Inner(eqx.Module):
        layer: eqx.nn.Linear

        def __call__(self, x):
            return px.probe(jnp.tanh(self.layer(px.probe(x, "twice"))), "twice")

    class Outer(eqx.Module):
        parts: list

        def __call__(self, x):
            for part in self.parts:
                x = jax.vmap(part)(x)
            return px.probe(x, "last")

    key = jax.random.key(0)
    model = Outer([Inner(eqx.nn.Linear(3, 3, key=key)) for _ in range(2)])
    xs = jnp.ones((4, 3))
    for where in (None, "**/twice", ["./last", "parts.1"], "parts.0/twice#1"):
        report = px.report(model, xs, where=where)
        _, log = px.ForwardHook(model, where=where)(xs)
        assert list(report.entries) == list(log)
        for name, entry in log.items():
            assert report[name].log.shape == entry.shape
        assert not report.missing
    assert list(px.report(model, xs).entries) == [
        *("parts.0/twice", "parts.0.layer", "parts.0/twice#1"),
        *("parts.1/twice", "parts.1.layer", "parts.1/twice#1"),
        "./last",
    ]
