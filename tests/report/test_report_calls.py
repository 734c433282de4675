"""Which calls a report has: those of the log, with the same keys, order, shapes, axes,
counts and bytes (on the models with twins, and on random programs). Of the other sites
it says why they don't run, or can't be brought out.
"""

import random
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import twins
from random_programs import build, draw_program

import peex as px


# What a log holds


CASES = twins.cases()


def shapes(tree):
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(np.shape(x), x.dtype) for x in leaves]


def check(report, log):
    assert list(report.entries) == list(log)
    for key, call in report.entries.items():
        assert shapes(call.log) == shapes(log[key]), key
        sizes = tuple(axis.size for axis in call.axes)
        for whole, own in zip(
            jax.tree.leaves(call.log), jax.tree.leaves(call.outputs), strict=True
        ):
            assert whole.shape == sizes + own.shape
        kinds = [axis.kind for axis in call.axes]
        assert kinds == sorted(kinds, key=["device", "step", "batch"].index)
        assert report[key] is call
    sometimes = {k for k, call in report.entries.items() if call.when != "always"}
    assert set(log.counts) == sometimes
    in_tree = [call.key for call in report.tree]
    assert len(set(in_tree)) == len(in_tree)
    assert set(report.entries) <= set(in_tree)


@pytest.mark.parametrize("where", [None, "**"])
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_twins(case, where):
    report = px.report(case.model, case.x, where=where)
    _, log = eqx.filter_eval_shape(px.ForwardHook(case.model, where=where), case.x)
    check(report, log)
    assert report.missing == {}
    total = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(dict(log)))
    assert report.log_bytes == total


@jax.enable_x64(True)  # As everywhere: JAX mixes up NumPy constants of both modes.
def test_random_programs():
    pick = random.Random(0).choice
    for _ in range(15):
        plan, seed = draw_program(pick, budget=16)
        model, x = build(plan, seed)
        report = px.report(model, x)
        hooked = px.ForwardHook(model)
        try:
            _, log = eqx.filter_eval_shape(hooked, x)
        except px.SiteLostError as error:
            assert report.missing[error.key].kind == "lost", plan
            continue
        check(report, log)
        # What comes out of a call of some kind runs in it: its inputs are known.
        assert all(call.inputs is not None for call in report.entries.values())


def test_devices():
    from jax.sharding import Mesh, PartitionSpec as P

    mesh = Mesh(np.array(jax.devices()[:4]), ("i",))
    linear = eqx.nn.Linear(3, 2, key=jax.random.key(0))

    def run(model, xs):
        each = jax.vmap(model)
        return jax.shard_map(each, mesh=mesh, in_specs=P("i"), out_specs=P("i"))(xs)

    xs = jax.numpy.ones((8, 3))
    report = px.report(linear, xs, method=run)
    _, log = px.ForwardHook(linear, method=run)(xs)
    check(report, log)
    call = report["."]
    assert [tuple(axis) for axis in call.axes] == [("device", 4), ("batch", 2)]
    assert call.flops == 8 * (2 * 3 * 2 + 2)


# What is missing from it, and why


X = jnp.ones(3)


def linear(seed=0):
    return eqx.nn.Linear(3, 3, key=jax.random.key(seed))


class Two(eqx.Module):
    """`first` runs; what becomes of `second` is what the tests are of."""

    first: eqx.nn.Linear
    second: eqx.nn.Linear
    how: Callable = eqx.field(static=True)

    def __call__(self, x):
        return self.how(self.second, self.first(x))


def missing(how, **kwargs):
    report = px.report(Two(linear(0), linear(1), how), X, **kwargs)
    assert list(report.entries) == ["first"]
    assert report["."].flops is not None
    (found,) = report.missing.values()
    assert (found.key, found.class_name) == ("second", "Linear")
    # Long reasons are broken over lines.
    shown = f"missing: second (Linear): {found.why}"
    assert shown in " ".join(str(report).split())
    return found.kind, found.why


def test_never_called():
    kind, why = missing(lambda second, x: x)
    assert kind == "never called"
    assert why == (
        "it is never called: another method runs it, or a branch in Python isn't taken"
    )


def test_a_branch_in_python():
    how = lambda second, x: second(x) if x.shape == (4,) else x
    assert missing(how)[0] == "never called"


def test_read_but_not_called():
    kind, why = missing(lambda second, x: second.weight.T @ x)
    assert kind == "read"
    assert why == (
        "its parameters are read, but it isn't called; hook the module that reads them"
    )


@pytest.mark.parametrize(
    "how",
    [
        lambda second, x: jax.jit(lambda w: w @ x)(second.weight),
        lambda second, x: jax.lax.scan(lambda c, w: (c * w, None), x, second.weight)[0],
        lambda second, x: jax.lax.cond(
            x[0] > 0, lambda w: w @ x, lambda w: x, second.weight
        ),
        lambda second, x: jax.checkpoint(lambda w: jax.jit(jnp.sin)(w) @ x)(
            second.weight
        ),
        lambda second, x: jax.lax.while_loop(
            lambda x: x[0] < 9, lambda x: second.weight @ x, x
        ),
    ],
    ids=["jit", "scan", "cond", "checkpoint", "while"],
)
def test_read_inside_of_something(how):
    assert missing(how)[0] == "read"


def test_handed_on_but_not_read():
    how = lambda second, x: jax.jit(lambda w, x: x)(second.weight, x)
    assert missing(how)[0] == "never called"


def test_a_tied_array_that_is_read():
    # Both hold the same array. The head reads its own, the copy is never used.
    class Tied(eqx.Module):
        embed: eqx.nn.Embedding
        head: eqx.nn.Linear
        unused: eqx.nn.Linear

        def __call__(self, token):
            return self.head.weight @ self.embed(token)

    head = eqx.nn.Linear(3, 5, use_bias=False, key=jax.random.key(0))
    model = Tied(eqx.nn.Embedding(weight=head.weight), head, head)
    report = px.report(model, jnp.array(0))
    assert list(report.entries) == ["embed"]
    kinds = {key: m.kind for key, m in report.missing.items()}
    # The array is one in the program, too.
    assert kinds == {"head": "read", "unused": "read"}
    (tied,) = report.parameters
    assert tied.uses == ("embed.weight", "head.weight", "unused.weight")


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
def test_in_a_static_field():
    class Static(eqx.Module):
        lin: eqx.nn.Linear
        hidden: tuple = eqx.field(static=True)

        def __call__(self, x):
            return self.hidden[0](self.lin(x))

    model = Static(linear(), (eqx.nn.MLP(3, 3, 3, 1, key=jax.random.key(0)),))
    report = px.report(model, X)
    assert list(report.entries) == ["lin"]
    inside = ["hidden.0.layers.0", "hidden.0.layers.1"]
    assert list(report.missing) == inside
    assert {m.kind for m in report.missing.values()} == {"static"}
    assert report.missing["hidden.0.layers.1"].why == (
        "it is in a static field (`eqx.field(static=True)`), which JAX doesn't see "
        "into; make it an ordinary field"
    )


class RuleOfJvp:
    @staticmethod
    def call(second, x):
        arrays, static = eqx.partition(second, eqx.is_array)

        @jax.custom_jvp
        def f(arrays, x):
            return jnp.sin(x)

        @f.defjvp
        def rule(primals, tangents):
            arrays, x = primals
            second = eqx.combine(arrays, static)
            return jnp.sin(x), second(x) * tangents[1]

        return f(arrays, x)


def test_in_a_derivative_rule_only():
    kind, why = missing(RuleOfJvp.call)
    assert kind == "rule"
    assert why == (
        "it runs only inside a derivative rule (of a `custom_jvp` or `custom_vjp`), "
        "which stands in the place of autodiff there"
    )


def test_in_a_backward_rule_only():
    def call(second, x):
        arrays, static = eqx.partition(second, eqx.is_array)

        @jax.custom_vjp
        def f(arrays, x):
            return jnp.sin(x)

        def bwd(arrays, cotangent):
            zeros = jax.tree.map(jnp.zeros_like, arrays)
            return zeros, eqx.combine(arrays, static)(cotangent)

        f.defvjp(lambda arrays, x: (jnp.sin(x), arrays), bwd)
        return f(arrays, x)

    assert missing(call)[0] == "rule"


def test_a_rule_that_ignores_it():
    def call(second, x):
        @jax.custom_jvp
        def f(weight, x):
            return jnp.sin(x)

        f.defjvp(lambda primals, tangents: (f(*primals), tangents[1]))
        return f(second.weight, x)

    assert missing(call)[0] == "never called"


def test_only_the_shape_is_asked_for():
    how = lambda second, x: x + jnp.zeros(jax.eval_shape(second, x).shape)
    for _ in range(2):
        assert missing(how)[0] == "never called"


def test_lost_in_a_transposed_function():
    def how(second, x):
        linear = lambda x: eqx.tree_at(lambda m: m.bias, second, jnp.zeros(3))(x)
        return x + jax.linear_transpose(linear, x)(x)[0]

    kind, why = missing(how)
    assert kind == "lost"
    assert "a function whose result isn't part of this program" in why
    # As the hooked call says.
    with pytest.raises(px.SiteLostError, match="'second' ran, but") as error:
        px.ForwardHook(Two(linear(0), linear(1), how))(X)
    assert error.value.key == "second"


def test_lost_in_something_without_a_rule():
    def how(second, x):
        arrays, static = eqx.partition(second, eqx.is_array)
        call = lambda arrays, x: eqx.combine(arrays, static)(x)
        return jax.lax.composite(call, "some.name")(arrays, x)

    with pytest.raises(px.SiteLostError, match="inside a `composite`") as error:
        px.ForwardHook(Two(linear(0), linear(1), how))(X)
    assert missing(how) == ("lost", error.value.why.rstrip("."))


def test_brought_together_with_another():
    # Layers of different names that the model stacks, and that aren't numbered.
    class Pair(eqx.Module):
        a: eqx.nn.Linear
        b: eqx.nn.Linear
        last: eqx.nn.Linear

        def __call__(self, x):
            mean = jax.tree.map(lambda a, b: (a + b) / 2, self.a, self.b)
            return self.last(mean(x))

    model = Pair(linear(0), linear(1), linear(2))
    report = px.report(model, X)
    assert list(report.entries) == ["last"]
    assert {k: m.kind for k, m in report.missing.items()} == {"a": "lost", "b": "lost"}
    assert "modules of another name ('a', 'b')" in report.missing["a"].why


def test_what_where_leaves_out_is_not_missing():
    model = Two(linear(0), linear(1), lambda second, x: x)
    assert px.report(model, X, where="first").missing == {}
    assert list(px.report(model, X, where="second").missing) == ["second"]


def test_errors_of_the_model_are_its_own():
    def fails(second, x):
        raise ValueError("of the model")

    with pytest.raises(ValueError, match="^of the model"):
        px.report(Two(linear(0), linear(1), fails), X)
    # And nothing is left behind by it.
    assert missing(lambda second, x: x)[0] == "never called"


def test_a_value_inside_knows_where_it_is_written():
    class Two(eqx.Module):
        def __call__(self, x):
            y = jnp.exp(x)
            return jnp.exp(y)

    report = px.report(Two(), jnp.ones(2), where=["./exp", "."])
    first, second = (report[key].line for key in ("./exp", "./exp#1"))
    file, number = first.rsplit(":", 1)
    assert file.endswith("test_report_calls.py")
    assert second == f"{file}:{int(number) + 1}"
    assert report["."].line is None
