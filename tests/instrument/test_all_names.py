"""All names inside of a module's forward pass at once: `"attn/*"`."""

import inspect
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from closeness import assert_close
from inside_models import BLOCK, Marked, probabilities, TWO, V, X, XS

import peex as px


def log_of(model, where, *args):
    return px.ForwardHook(model, where=where)(*args)[1]


@pytest.mark.parametrize("outside", [lambda f: f, eqx.filter_jit], ids=["eager", "jit"])
def test_each_is_what_it_is_alone(outside):
    run = outside(lambda hooked, x: hooked(x))
    out, log = run(px.ForwardHook(BLOCK, where="attn/*"), X)
    assert_close(out, BLOCK(X))
    assert_close(log["attn/softmax"], probabilities(BLOCK, X), 1e-5)
    names = {key.partition("/")[2].partition("#")[0] for key in log}
    functions = {"dot_product_attention", "dot_product_attention_weights", "_project"}
    operations = {"div", "dot_general", "exp", "reshape", "transpose"}
    assert names > functions | operations
    expected = {}
    for name in names:
        expected |= log_of(BLOCK, f"attn/{name}", X)
    assert set(log) == set(expected)
    assert_close(dict(log), {key: expected[key] for key in log})


def test_what_runs_in_a_module_inside_belongs_to_that():
    keys = list(log_of(BLOCK, "./*", X))
    assert keys == ["./add"]
    every = set(log_of(BLOCK, "**/*", X))
    modules = ["attn", "norm", *(f"attn.{n}_proj" for n in ("query", "key", "output"))]
    for module in modules:
        assert set(log_of(BLOCK, f"{module}/*", X)) < every


def test_parts_of_names():
    log = log_of(BLOCK, "attn/d*", X)
    assert {key.partition("#")[0] for key in log} == {
        "attn/div",
        "attn/dot_general",
        "attn/dot_product_attention",
        "attn/dot_product_attention_weights",
    }
    second = log_of(BLOCK, "attn/d*#1", X)
    assert list(second) == ["attn/div#1", "attn/dot_general#1"]
    assert_close(second["attn/div#1"], log["attn/div#1"])
    assert list(log_of(BLOCK, "attn/s?ftmax", X)) == ["attn/softmax"]


def test_marks_probes_functions_and_rules():
    class Model(eqx.Module):
        inner: Marked

        def __call__(self, x):
            return px.probe(self.inner(jnp.sin(x)), "sum") + 1

    log = log_of(Model(Marked()), "**/*", V)
    sin = jnp.sin(V)
    expected = {
        "./sin": sin,
        "inner/sin": jnp.sin(sin),
        "inner/wave": jnp.sin(sin),
        "inner/relu": jax.nn.relu(sin),
        "inner/add": Marked()(sin),
        "./sum": Marked()(sin),
        "./add": Marked()(sin) + 1,
    }
    assert expected.keys() < log.keys()
    assert_close({key: log[key] for key in expected}, expected)
    assert not [key for key in log if "peex" in key or "probe" in key]


class Loops(eqx.Module):
    steps: int = eqx.field(static=True)

    def __call__(self, x):
        def step(x, i):
            y = jax.lax.cond(i < 1, jnp.sin, jnp.cos, x)
            return jnp.tanh(y) * 2, None

        return jax.lax.scan(jax.checkpoint(step), x, jnp.arange(self.steps))[0]


def loops_twin(steps, x):
    ys, zs = [], []
    for i in range(steps):
        ys.append(jnp.sin(x) if i < 1 else jnp.cos(x))
        zs.append(jnp.tanh(ys[-1]))
        x = zs[-1] * 2
    return jnp.stack(ys), jnp.stack(zs)


def test_inside_of_loops_and_branches():
    ys, zs = loops_twin(3, V)
    out, log = px.ForwardHook(Loops(3), where="./*")(V)
    assert_close(out, 2 * zs[-1])
    assert_close(log["./tanh"], zs)
    assert_close(log["./mul"], 2 * zs)
    assert_close(log["./cond"], ys)
    taken = jnp.arange(3)[:, None] < 1
    assert_close(log["./sin"], jnp.where(taken, ys, 0))
    assert_close(log["./cos"], jnp.where(taken, 0, ys))
    np.testing.assert_array_equal(log.counts["./sin"], [1, 0, 0])
    batched = jax.vmap(lambda x: px.ForwardHook(Loops(3), where="./*")(x))
    _, mapped = batched(jnp.stack([V, -V]))
    assert_close(mapped["./tanh"][0], zs)


def test_cotangents():
    hooked = px.BackwardHook(BLOCK, where="attn/*").init(X)
    grads = eqx.filter_jit(eqx.filter_grad(lambda h, x: jnp.sum(h(x) ** 2)))(hooked, X)
    expected = eqx.filter_grad(lambda m, x: jnp.sum(m(x) ** 2))(BLOCK, X)
    assert_close(grads.model, expected, 1e-5)
    for name in ("softmax", "dot_general#1", "dot_product_attention"):
        alone = px.BackwardHook(BLOCK, where=f"attn/{name}").init(X)
        one = eqx.filter_grad(lambda h: jnp.sum(h(X) ** 2))(alone).log
        assert_close(grads.log[f"attn/{name}"], one[f"attn/{name}"], 1e-5)


def test_per_example():
    loss = lambda block, xs: jnp.sum(jax.vmap(block)(xs) ** 2)
    logs = {"attn/*": px.NormLog()}
    step = eqx.filter_jit(px.value_and_grad(loss, forward=logs, backward=logs))
    (_, logs), _ = step(BLOCK, XS)
    assert set(logs.forward) == set(logs.backward)
    assert {entry.shape for entry in logs.forward.values()} == {(3,)}


def test_further_calls_and_one_of_them():
    class Twice(eqx.Module):
        cell: eqx.nn.GRUCell

        def __call__(self, x, h):
            return self.cell(x, self.cell(x, h))

    model = Twice(eqx.nn.GRUCell(2, 3, key=jr.key(0)))
    args = V, jnp.ones(3)
    log = log_of(model, "cell/*", *args)
    first = [key for key in log if not key.startswith("cell#1")]
    second = [key for key in log if key.startswith("cell#1")]
    assert [key.replace("cell/", "cell#1/") for key in first] == second
    one = log_of(model, "cell#1/*", *args)
    assert list(one) == second
    assert_close(dict(one), {key: log[key] for key in second})
    with pytest.raises(px.SiteNotFiredError, match="nothing of it ran in this call"):
        log_of(model, "cell#2/*", *args)


def test_hooks_and_logs_by_name():
    hooked = px.ForwardHook(
        BLOCK,
        {"attn/softmax": px.ZeroHook()},
        {"attn/softmax": px.MaxAbsLog(), "attn/*": px.NormLog()},
        where=["attn/*", "attn/softmax"],
    )
    out, log = hooked(X)
    assert_close(out, X)
    assert log["attn/softmax"] == 0
    plain = log_of(BLOCK, "attn/*", X)
    assert_close(log["attn/div"], jnp.linalg.norm(plain["attn/div"]))
    assert list(log) == list(plain)


def test_names_of_ones_own():
    log = log_of(BLOCK, {"a": "attn/*", "p": "attn/softmax"}, X)
    plain = log_of(BLOCK, "attn/*", X)
    named = {key.replace("attn/", "a/"): entry for key, entry in plain.items()}
    assert set(log) == {*named, "p"}
    assert_close({key: log[key] for key in named}, named)
    assert_close(log["p"], plain["attn/softmax"])


@pytest.mark.parametrize(
    "where", ["attn/*", "**/*", ["attn/d*", "attn/softmax", "norm"], {"a": "attn/*"}]
)
def test_a_report_shows_what_the_log_will_hold(where):
    report, log = px.report(BLOCK, X, where=where), log_of(BLOCK, where, X)
    assert list(report.entries) == list(log)
    assert not report.missing
    for key, entry in log.items():
        call = report[key]
        assert (call.log.shape, call.log.dtype) == (entry.shape, entry.dtype)


@eqx.filter_jit
def _jitted(layer, x):
    return layer(x)


class Cached(eqx.Module):
    layer: eqx.Module

    def __call__(self, x):
        return _jitted(self.layer, x)


def test_programs_that_jax_has_cached():
    ran = []

    class Layer(eqx.Module):
        def __call__(self, x):
            ran.append(1)
            return jnp.sin(x) * 2

    model = Cached(Layer())
    keys = [list(log_of(model, "layer/*", V)) for _ in range(3)]
    assert keys == [["layer/sin", "layer/mul"]] * 3
    assert len(ran) == 1


# What there is, where it isn't


def places_in(message):
    return dict(re.findall(r"'(\S+)' \((\S+?)\)", message))


def test_errors_list_all_names_with_file_and_line():
    with pytest.raises(px.SiteNotFiredError) as error:
        log_of(TWO, "a/tan", V)
    message = str(error.value)
    assert "nothing in the forward pass that ran has this name" in message
    assert "Names there, nearest first: 'tanh' (" in message
    places = places_in(message)
    assert set(places) == {"tanh", "mul", "add", "shared", "helper"}

    import inside_models

    lines = inspect.getsource(inside_models).splitlines()
    written = {
        "tanh": "return jnp.tanh(helper(x))",
        "shared": "return shared(self.scale * x) + helper(x)",
        "helper": "return jnp.tanh(helper(x))",
    }
    for name, text in written.items():
        file, _, number = places[name].rpartition(":")
        assert file.endswith("inside_models.py")
        assert lines[int(number) - 1].strip() == text


def test_errors_list_what_is_in_loops_and_branches():
    with pytest.raises(px.SiteNotFiredError) as error:
        log_of(Loops(2), "./zzz*", V)
    places = places_in(str(error.value))
    assert {"step", "tanh", "mul", "sin", "cos", "cond", "scan"} <= places.keys()
    source, first = inspect.getsourcelines(Loops)
    line = next(i for i, text in enumerate(source) if "jnp.tanh(y)" in text)
    assert places["tanh"].endswith(f"test_all_names.py:{first + line}")


def test_a_report_says_where_names_are():
    why = px.report(BLOCK, X, where="attn/sofmax").missing["attn/sofmax"].why
    places = places_in(why)
    assert places["softmax"].startswith("equinox/nn/_attention.py:")
    assert places.keys() >= {"softmax", "div", "_project", "dot_product_attention"}


@pytest.mark.parametrize("where", ["./*", "./pro*"])
def test_probes_alone(where):
    class Probed(eqx.Module):
        def __call__(self, x):
            return px.probe(x, "probs")

    assert_close(dict(log_of(Probed(), where, V)), {"./probs": V})
    report = px.report(Probed(), V, where=where)
    assert list(report.entries) == ["./probs"] and not report.missing


def test_nothing_has_a_name():
    class Nothing(eqx.Module):
        def __call__(self, x):
            return x

    with pytest.raises(px.SiteNotFiredError, match=r"first: \(there are none\)"):
        log_of(Nothing(), "./*", V)


def test_functions_of_libraries_that_jax_calls_are_no_names():
    class Model(eqx.Module):
        def __call__(self, x):
            table = jnp.asarray(np.linspace(0, 1, 3))
            return jnp.interp(x, table, table) + jr.normal(jr.key(0), (2,))

    model = Model()
    out, log = px.ForwardHook(model, where="./*")(V)
    np.testing.assert_array_equal(out, model(V))
    names = {key.partition("/")[2].partition("#")[0] for key in log}
    assert names.isdisjoint({"ndim", "shape", "helper", "wraps", "cast", "update"})
