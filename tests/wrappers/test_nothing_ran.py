"""Nothing of what is chosen by default ran: a loss that closes over the model would
give an empty log, and a gradient of zeros.
"""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from hooked_mlp import loss, MODEL, X
from twin_case import linear

import peex as px


NONE = r"^`where=None` chooses all leaf modules, but none of the model's 2 sites ran: "
ARGUMENT = (
    r" call its own argument\? The model with the sites is what it is given first"
)


def closes_over(model, x):
    del model
    return loss(MODEL(x))


def raises(match):
    return pytest.raises(px.SiteNotFiredError, match=match)


@pytest.mark.parametrize("jit", [lambda f: f, eqx.filter_jit], ids=["eager", "jit"])
@pytest.mark.parametrize("logs", [{}, {"forward": px.NormLog()}, {"backward": None}])
def test_a_loss_that_closes_over_the_model(logs, jit):
    if logs == {"backward": None}:
        logs = {"backward": None, "hook_fn": px.ScaleHook(2.0)}
    with raises(f"{NONE}does the function `closes_over`{ARGUMENT}"):
        jit(px.value_and_grad(closes_over, **logs))(MODEL, X)


@pytest.mark.parametrize("method", [closes_over, lambda _, x: loss(MODEL(x))])
def test_a_method_that_closes_over_the_model(method):
    match = f"{NONE}does the function `{method.__name__}`{ARGUMENT}"
    for hook_fn, log_fn in ((None, px.NormLog()), (px.ScaleHook(2.0), None)):
        with raises(match):
            px.ForwardHook(MODEL, hook_fn, log_fn, method=method)(X)
        with raises(match):
            px.BackwardHook(MODEL, hook_fn, log_fn, method=method).init(X)
    with raises(match):
        px.BackwardHook(MODEL, px.ScaleHook(2.0), None, method=method)(X)
    with raises(match):
        px.ForwardHook(MODEL, max_bytes=1000, method=method)(X)


class Reads(eqx.Module):
    """Reads the parameters of its layers, or asks for shapes, instead of calling."""

    a: eqx.nn.Linear
    b: eqx.nn.Linear

    def __call__(self, x):
        return self.b.weight @ (self.a.weight @ x)

    def shapes(self, x):
        return jnp.zeros(jax.eval_shape(self.a, x).shape)

    def early(self, x, early):
        return x if early else self.b(self.a(x))


READS = Reads(linear(3, 3, 0), linear(3, 3, 1))


@pytest.mark.parametrize("method", ["__call__", "shapes"])
def test_a_method_that_calls_no_module(method):
    match = rf"{NONE}does `Reads.{method}` call its modules\? .*jax.eval_shape"
    with raises(match):
        px.ForwardHook(READS, method=method)(X)
    with raises(match):
        px.BackwardHook(READS, method=method).init(X)
    # Of what is inside, as of the whole, something can be asked for.
    _, log = px.ForwardHook(READS, where=".", method=method)(X)
    assert list(log) == ["."]


def test_a_branch_without_sites():
    hooked = px.ForwardHook(READS, method="early")
    with raises(rf"{NONE}does `Reads.early` .*branch in Python without any"):
        hooked(X, True)
    assert list(hooked(X, False)[1]) == ["a", "b"]


def test_the_only_site():
    match = r"but the model's only site, '\.', didn't run: does the function `<lambda>`"
    with raises(match):
        px.ForwardHook(linear(3, 3, 0), method=lambda _, x: x)(X)


def test_hooks_by_pattern_count_the_sites_at_which_something_acts():
    hooks = {"linear1": px.ScaleHook(2.0)}
    with raises("the model's only site, 'linear1', didn't run: does the function"):
        px.ForwardHook(MODEL, hooks, None, method=closes_over)(X)


def test_one_of_a_nest_is_enough_to_say_it():
    inner = px.ForwardHook(MODEL, method=closes_over)
    with raises(f"{NONE}does the function `closes_over`"):
        px.ForwardHook(inner, where="linear1")(X)


def test_where_nothing_is_to_be_done_nothing_is_said():
    out, log = px.ForwardHook(MODEL, None, None, method=closes_over)(X)
    assert list(log) == [] and out == loss(MODEL(X))
    out, log = px.ForwardHook(MODEL, px.IdentityHook(), None, method=closes_over)(X)
    assert list(log) == []


class Probed(eqx.Module):
    layer: eqx.nn.Linear

    def __call__(self, x):
        return px.probe(self.layer.weight @ x, "product")


def test_a_probe_is_something_that_ran():
    _, log = px.ForwardHook(Probed(linear(3, 3, 0)))(X)
    assert list(log) == ["./product"]


class Bare(eqx.Module):
    weight: jax.Array

    def read(self, x):
        return self.weight @ x


def test_a_model_without_sites_has_none_that_could_run():
    model = {"bare": Bare(jnp.eye(3))}
    out, log = px.ForwardHook(model, method=lambda m, x: m["bare"].read(x))(X)
    assert list(log) == [] and jnp.array_equal(out, X)


def test_report_lists_what_did_not_run():
    report = px.report(READS, X)
    assert sorted(report.missing) == ["a", "b"]


# The same where something is asked for.


def test_a_named_site_of_a_model_that_is_closed_over():
    match = (
        "^`where='linear1'` was asked for, but nothing of it ran in this call: "
        f"'linear1' was never called: does the function `closes_over`{ARGUMENT}.*: none"
    )
    with raises(match):
        px.ForwardHook(MODEL, where="linear1", method=closes_over)(X)
    with raises(match):
        px.value_and_grad(closes_over, where="linear1")(MODEL, X)


def thrice(model, x):
    for _ in range(3):
        x = model.a(x)
    return jax.lax.scan(lambda x, _: (model.b(x), None), x, length=4)[0]


FEWER = {
    "a#3": "'a' ran 3 times",
    "b#1": "'b' ran once",
    "*#3": "'a' ran 3 times, 'b' ran once",
    "a#7/add": "'a/add' ran 3 times",
}


@pytest.mark.parametrize("where", FEWER)
def test_fewer_calls_than_were_asked_for(where):
    match = (
        f"`where={re.escape(repr(where))}` was asked for, but there were fewer calls "
        f"than that: {FEWER[where]}. '#1' is the second call; what runs in a loop is "
        "one call, with a step axis"
    )
    for jit in (lambda f: f, eqx.filter_jit):
        hooked = px.ForwardHook(READS, where=where, method=thrice)
        with raises(match):
            jit(hooked)(X)
    if where == "a#3":
        hooked = px.BackwardHook(READS, where=["a", where], method=thrice)
        with raises(match):
            hooked.init(X)


def test_a_hook_at_a_call_that_there_is_not():
    hooks = {"a#3": px.ZeroHook(), "a": None}
    match = r"`where='a#3'` was asked for, but there were fewer calls.*'a' ran 3 times"
    with raises(match):
        px.ForwardHook(READS, hooks, where=["a#3"], method=thrice)(X)
