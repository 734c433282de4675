"""Every error that a user can cause, with its message, as early as it can be known.

Errors of `where` are in `test_select_entry.py`, of sites that are lost in
`test_errors_lost.py`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax import lax

import peex as px


class MLP(eqx.Module):
    linear1: eqx.nn.Linear
    linear2: eqx.nn.Linear
    unused: eqx.nn.Linear

    def __init__(self):
        keys = jax.random.split(jax.random.key(0), 3)
        self.linear1 = eqx.nn.Linear(3, 4, key=keys[0])
        self.linear2 = eqx.nn.Linear(4, 2, key=keys[1])
        self.unused = eqx.nn.Linear(4, 2, key=keys[2])

    def __call__(self, x, deep=True, extra=False):
        x = jnp.tanh(self.linear1(x))
        if deep:
            x = self.linear2(x)
        return self.linear2(self.linear1(x[:1].repeat(3))) if extra else x


MODEL = MLP()
X = jnp.array([0.5, -1.0, 2.0])
# Nothing runs under it, so an error under it comes at trace time.
trace = eqx.filter_eval_shape


def test_bases():
    for name in (
        "HookShapeError",
        "LogShapeError",
        "LogValueError",
        "NotInitialisedError",
        "SiteLostError",
        "SiteNotFiredError",
        "SiteNotFoundError",
    ):
        error = getattr(px, name)
        assert issubclass(error, px.PeexError) and issubclass(error, Exception)
        assert error.__doc__


# HookShapeError

BAD_HOOKS = {
    "shape": (lambda x: x[:1], r"expected float32\[4\], got float32\[1\]"),
    "rank": (lambda x: x[None], r"expected float32\[4\], got float32\[1,\s?4\]"),
    "dtype": (lambda x: x.astype(jnp.float16), r"expected float32\[4\], got float16"),
    "integer": (lambda x: x.astype(int), r"expected float32\[4\], got int32\[4\]"),
    "number": (lambda x: 0.0, r"expected float32\[4\], got a float"),
    "string": (lambda x: "zero", r"expected float32\[4\], got a str"),
    "structure": (lambda x: (x, x), r"expected PyTreeDef.*, got PyTreeDef"),
    "none": (lambda x: None, r"expected PyTreeDef.*, got PyTreeDef"),
}
bad_hooks = pytest.mark.parametrize(
    ("hook", "match"), BAD_HOOKS.values(), ids=BAD_HOOKS
)


@bad_hooks
def test_forward_hook_that_changes_the_shape(hook, match):
    hooked = px.ForwardHook(MODEL, hook, where="linear1")
    match = f"(?s)hook_fn of the site 'linear1' changed the .*value: {match}"
    for call in (hooked, lambda x: trace(hooked, x), eqx.filter_jit(hooked)):
        with pytest.raises(px.HookShapeError, match=match):
            call(X)


@bad_hooks
@pytest.mark.parametrize("log_fn", [None, px.IdentityLog()])
def test_backward_hook_that_changes_the_shape(hook, match, log_fn):
    hooked = px.BackwardHook(MODEL, hook, log_fn, where="linear1")
    match = f"(?s)hook_fn of the site 'linear1' changed the .*cotangent: {match}"
    with pytest.raises(px.HookShapeError, match=match):
        trace(lambda x: hooked.init(x), X)
    if log_fn is None:
        # In the forward pass already: nothing is differentiated here.
        for call in (hooked, lambda x: trace(hooked, x)):
            with pytest.raises(px.HookShapeError, match=match):
                call(X)


def test_pre_hook_that_changes_the_arguments():
    match = r"'linear2' changed the tree structure of its value: expected .*\(\*,\)"
    with pytest.raises(px.HookShapeError, match=match):
        px.ForwardHook(MODEL, lambda args: args[0], where="linear2", pre_hook=True)(X)


def test_hook_in_a_loop_sees_one_step():
    def scanned(model, xs):
        return lax.scan(lambda c, x: (c, model.linear1(x)), 0.0, xs)[1]

    hooked = px.ForwardHook(MODEL, lambda x: x[:2], where="linear1", method=scanned)
    with pytest.raises(px.HookShapeError, match=r"expected float32\[4\], got float32"):
        hooked(X[None])


# LogValueError

BAD_LOGS = {
    "string": (lambda x: {"x": x, "name": "linear"}, "a leaf of type str"),
    "function": (lambda x: jnp.sin, "a leaf of type PjitFunction"),
    "object": (lambda x: [object()], "a leaf of type object"),
    "shape": (lambda x: x.dtype, "a leaf of type .*[dD][tT]ype"),
}
bad_logs = pytest.mark.parametrize(("log_fn", "match"), BAD_LOGS.values(), ids=BAD_LOGS)


@bad_logs
def test_log_that_is_no_array(log_fn, match):
    match = f"log_fn of the site 'linear1' returned {match}.*; a log is a pytree of arr"
    hooked = px.ForwardHook(MODEL, None, {"linear1": log_fn})
    for call in (hooked, lambda x: trace(hooked, x)):
        with pytest.raises(px.LogValueError, match=match):
            call(X)
    with pytest.raises(px.LogValueError, match=match):
        trace(lambda x: px.BackwardHook(MODEL, None, {"linear1": log_fn}).init(x), X)


# NotInitialisedError


def test_not_initialised():
    hooked = px.BackwardHook(MODEL)
    match = r"(?s)call.*px\.BackwardHook\(model\)\.init\(x\)`.*`log_fn=None`"
    for call in (
        lambda: hooked(X),
        lambda: trace(hooked, X),
        lambda: eqx.filter_grad(lambda h: jnp.sum(h(X)))(hooked),
        lambda: px.BackwardHook(MODEL, None, {"linear1": jnp.sum})(X),
        lambda: px.ForwardHook(hooked)(X),
    ):
        with pytest.raises(px.NotInitialisedError, match=match):
            call()


# LogShapeError


def test_other_shapes():
    hooked = px.BackwardHook(eqx.filter_vmap(MODEL.linear1)).init(jnp.ones((2, 3)))
    match = (
        r"log of the site '\.' was initialised for float32\[2, 4\]; this call would "
        r"log float32\[5, 4\]. Call `\.init\(\.\.\.\)` again"
    )
    for call in (hooked, lambda x: trace(hooked, x), eqx.filter_jit(hooked)):
        with pytest.raises(px.LogShapeError, match=match):
            call(jnp.ones((5, 3)))


def test_other_dtype():
    identity = eqx.nn.Lambda(lambda x: x)
    hooked = px.BackwardHook(identity).init(X)
    match = r"initialised for float32\[3\]; this call would log bfloat16\[3\]"
    with pytest.raises(px.LogShapeError, match=match):
        trace(hooked, X.astype(jnp.bfloat16))


def test_other_log_fn():
    hooked = px.BackwardHook(MODEL, where="linear1").init(X)
    hooked = px.BackwardHook(
        MODEL, log_fn=px.NormLog(), log=hooked.log, where="linear1"
    )
    with pytest.raises(
        px.LogShapeError, match=r"for float32\[4\]; this .* float32\[\]"
    ):
        trace(hooked, X)


def test_other_structure_of_the_log():
    # The same arrays, in another structure.
    pair = lambda ct: {"a": ct, "b": ct}
    hooked = px.BackwardHook(MODEL, None, pair, where="linear1").init(X)
    hooked = px.BackwardHook(
        MODEL, None, lambda ct: (ct, ct), where="linear1", log=hooked.log
    )
    with pytest.raises(px.LogShapeError, match="log of the site 'linear1' was init"):
        trace(hooked, X)


def test_other_number_of_leaves():
    hooked = px.BackwardHook(MODEL, where="linear1").init(X)
    pair = lambda ct: (ct, ct)
    hooked = px.BackwardHook(MODEL, None, pair, where="linear1", log=hooked.log)
    with pytest.raises(px.LogShapeError, match=r"would log float32\[4\], float32\[4\]"):
        trace(hooked, X)


def test_other_shapes_of_an_integer_log():
    # The message speaks of the dtype that was logged, not of how it is held.
    model = eqx.filter_vmap(MODEL.linear1)
    hooked = px.BackwardHook(model, None, lambda ct: ct > 0).init(jnp.ones((2, 3)))
    match = r"initialised for bool\[2, 4\]; this call would log bool\[5, 4\]"
    with pytest.raises(px.LogShapeError, match=match):
        trace(hooked, jnp.ones((5, 3)))


def test_site_that_did_not_run_at_init():
    hooked = px.BackwardHook(MODEL, where="linear*").init(X, deep=False)
    match = "site 'linear2' runs in this call, but .* initialised for a call in which"
    with pytest.raises(px.LogShapeError, match=match):
        trace(hooked, X)


def test_site_that_does_not_run_any_more():
    hooked = px.BackwardHook(MODEL, where="linear*").init(X)
    match = "call in which the site 'linear2' runs, but in this call it didn't"
    with pytest.raises(px.LogShapeError, match=match):
        trace(lambda x: hooked(x, deep=False), X)


def test_further_call_of_a_site():
    hooked = px.BackwardHook(MODEL, where="linear*").init(X)
    with pytest.raises(
        px.LogShapeError, match="The site 'linear1#1' runs in this call"
    ):
        trace(lambda x: hooked(x, extra=True), X)
    hooked = px.BackwardHook(MODEL, where="linear*").init(X, extra=True)
    with pytest.raises(
        px.LogShapeError, match="in which the site 'linear.#1' runs, but"
    ):
        hooked(X)


# SiteNotFiredError


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("unused", "'unused'"),
        (["linear1", "unused"], "'unused'"),
        (lambda m: [m.linear1, m.unused], "'unused'"),
        ("linear1:__repr__", "'linear1:__repr__'"),
    ],
)
def test_not_fired(where, name):
    match = (
        f"`where={name}` was asked for, but nothing of it ran in this call: {name} was"
    )
    for log_fn in (px.IdentityLog(), None):
        hooked = px.ForwardHook(MODEL, px.IdentityHook(), log_fn, where=where)
        for call in (hooked, lambda x, h=hooked: trace(h, x), eqx.filter_jit(hooked)):
            with pytest.raises(px.SiteNotFiredError, match=match):
                call(X)
    with pytest.raises(px.SiteNotFiredError, match=match):
        px.BackwardHook(MODEL, where=where).init(X)
    with pytest.raises(px.SiteNotFiredError, match=match):
        px.BackwardHook(MODEL, log_fn=None, where=where)(X)


def test_not_fired_in_this_call():
    hooked = px.ForwardHook(MODEL, where="linear2")
    hooked(X)
    match = r"`where='linear2'` .* 'linear2' was never called.*Sites that ran: none"
    with pytest.raises(px.SiteNotFiredError, match=match):
        hooked(X, deep=False)


def test_some_of_a_pattern_fired():
    # What a pattern chose needn't run all.
    _, log = px.ForwardHook(MODEL, where="*")(X)
    assert list(log) == ["linear1", "linear2"]
    _, log = px.ForwardHook(MODEL, where=eqx.nn.Linear)(X, deep=False)
    assert list(log) == ["linear1"]


def test_defaults_need_not_fire():
    out, log = px.ForwardHook(MODEL)(X)
    assert list(log) == ["linear1", "linear2"]
    _, log = px.ForwardHook(MODEL)(X, deep=False)
    assert list(log) == ["linear1"]


def test_a_branch_that_is_not_taken_has_fired():
    # Whether it is taken is known at runtime only: its count tells.
    def branch(model, x):
        return lax.cond(x[0] > 9, lambda x: model.linear1(x), lambda x: jnp.zeros(4), x)

    _, log = px.ForwardHook(MODEL, where="linear1", method=branch)(X)
    assert not log["linear1"].any() and log.counts["linear1"] == 0


# The log


def test_key_error_of_a_log():
    _, log = px.ForwardHook(MODEL)(X)
    match = r"'linear3' is not in the log. Nearest: '(linear1|linear2)', 'linear"
    with pytest.raises(KeyError, match=match):
        log["linear3"]
    assert "linear3" not in log and log.get("linear3") is None
    _, empty = px.ForwardHook(MODEL, log_fn=None)(X)
    with pytest.raises(KeyError, match=r"'linear1' is not in .*\(there are none\)"):
        empty["linear1"]


def test_errors_of_the_model_are_its_own():
    class Fails(eqx.Module):
        lin: eqx.nn.Linear

        def __call__(self, x):
            self.lin(x)
            raise ValueError("of the model")

    for _ in range(2):
        for wrap in (px.ForwardHook, px.BackwardHook):
            with pytest.raises(ValueError, match="^of the model"):
                wrap(Fails(MODEL.linear1), log_fn=None)(X)
    # And nothing is left behind by it.
    out, log = px.ForwardHook(MODEL)(X)
    assert jnp.array_equal(out, MODEL(X)) and list(log) == ["linear1", "linear2"]


def test_errors_of_hooks_and_logs_are_their_own():
    def fails(value):
        raise ZeroDivisionError("of the hook")

    for kwargs in ({"hook_fn": fails}, {"log_fn": fails}):
        with pytest.raises(ZeroDivisionError, match="^of the hook"):
            px.ForwardHook(MODEL, **kwargs)(X)
        with pytest.raises(ZeroDivisionError, match="^of the hook"):
            px.BackwardHook(MODEL, **kwargs).init(X)
