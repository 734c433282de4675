"""Checking hooks on a model: and that a fault, planted in any room, is found."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from nonfinite_models import Act, mean, Scale

import peex as px
from peex._engine import at_site, collector
from peex._hooks.from_log import PatchHook
from peex._instrument import around
from peex._report import abstract_run, report
from peex._wrappers import forward, plan, value_and_grad


class Layers(eqx.Module):
    """Three layers under a scan, of two parts each."""

    scale: Scale
    act: Act

    def __init__(self):
        self.scale = Scale(jnp.array([0.5, -0.2, 0.1]))
        self.act = Act()

    def __call__(self, x):
        return jax.lax.scan(lambda x, s: (self.act(s(x)), None), x, self.scale)[0]


XS = jnp.arange(6.0).reshape(3, 2) / 6


def checked(grad=True):
    px.clear_caches()
    jax.clear_caches()
    return px.debug.selfcheck(Layers(), XS, method=mean, grad=grad)


def test_nothing_is_wrong():
    found = checked()
    assert found and found.failed == ()
    found.raise_if_failed()
    names = [check.name for check in found.checks]
    assert names[:6] == ["value", "second call", "jit", "patch", "report", "gradient"]
    assert names[6:] == ["cotangent of scale", "cotangent of act"]
    by_name = {check.name: check.figure for check in found.checks}
    assert by_name["value"] == by_name["patch"] == by_name["gradient"] == 0
    assert all(by_name[name] < 1e-6 for name in names[6:])
    assert repr(found) == "<SelfCheck: 8 checks, 0 failed>"
    assert "bit for bit" in str(found)


def test_without_a_method_and_a_gradient():
    mlp = eqx.nn.MLP(2, 1, 4, depth=1, key=jax.random.key(0))
    found = px.debug.selfcheck(mlp, jnp.ones(2), grad=False)
    assert found and len(found.checks) == 5


def changed_value(patch):
    real = at_site.apply

    def apply(*args):
        arrays, *rest = real(*args)
        return [1.01 * x for x in arrays], *rest

    patch.setattr(at_site, "apply", apply)


def value_lost_on_the_way(patch):
    real = around.at_site
    zero = lambda x: 0 * x if eqx.is_array(x) else x
    lost = lambda site, value: jax.tree.map(zero, real(site, value))
    patch.setattr(around, "at_site", lost)


def doubled_gradient(patch):
    real = collector.attach

    def attach(values, *args):
        stop = jax.lax.stop_gradient
        return [2 * x - stop(x) for x in real(values, *args)]

    patch.setattr(collector, "attach", attach)


def doubled_cotangent(patch):
    real = value_and_grad.traced_once

    def traced_once(*args):
        out, grads, log = real(*args)
        return out, grads, log.map(lambda x: 2 * x)

    patch.setattr(value_and_grad, "traced_once", traced_once)


def steps_in_another_order(patch):
    real = forward._log

    def log(collector):
        found = real(collector)
        return px.Log({k: x[::-1] for k, x in found.items()}, axes=found.axes)

    patch.setattr(forward, "_log", log)


def patched_with_zeros(patch):
    zeros = lambda self, call, wanted: jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), wanted
    )
    patch.setattr(PatchHook, "data_of_call", zeros)


def entry_of_another(patch):
    real = px.Log.__getitem__
    patch.setattr(px.Log, "__getitem__", lambda log, key: 2 * real(log, key))


def site_not_chosen(patch):
    real = plan.select

    def select(*args):
        chosen, asked = real(*args)
        return chosen[:-1], asked

    patch.setattr(plan, "select", select)


def another_shape_reported(patch):
    real = report._tree
    patch.setattr(report, "_tree", lambda spec, skip: real(spec, max(skip, 1)))


def calls_in_another_order(patch):
    real = abstract_run.find_calls

    def find_calls(*args):
        found = real(*args)
        return dataclasses.replace(found, logged=found.logged[::-1])

    patch.setattr(abstract_run, "find_calls", find_calls)


def never_the_same_plan(patch):
    patch.setattr(plan.Plan, "__eq__", lambda self, other: self is other)


FAULTS = {
    "engine, forward": (changed_value, "value"),
    "engine, backward": (doubled_gradient, "gradient"),
    "instrument": (value_lost_on_the_way, "value"),
    "hooks": (patched_with_zeros, "patch"),
    "log": (entry_of_another, "patch"),
    "sites": (site_not_chosen, "report"),
    "wrappers, forward": (steps_in_another_order, "patch"),
    "wrappers, backward": (doubled_cotangent, "cotangent of scale"),
    "wrappers, caching": (never_the_same_plan, "second call"),
    "report": (another_shape_reported, "report"),
    "program": (calls_in_another_order, "report"),
}


@pytest.mark.parametrize("room", FAULTS)
def test_a_planted_fault_is_found(room, monkeypatch):
    plant, name = FAULTS[room]
    plant(monkeypatch)
    needs_grad = "backward" in room
    found = checked(grad=needs_grad)
    assert name in [check.name for check in found.failed], str(found)
    with pytest.raises(px.PeexError, match=rf"what they should: .*{name}"):
        found.raise_if_failed()
    monkeypatch.undo()
    px.clear_caches()
    jax.clear_caches()
