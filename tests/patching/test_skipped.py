"""What comes before a patch is skipped in a sweep: its effects are those of one that
runs everything (which other tests hold against patches by hand).
"""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from closeness import assert_close
from jax import lax
from jax.sharding import Mesh, PartitionSpec as P
from parts import Chain, Two
from swept import inputs, models, WHERE

import peex as px


SCANNED, UNROLLED = models()
STREAM = {"resid": "layers", "z": WHERE["z"], "mlp": WHERE["mlp"]}
XS = jr.normal(jr.key(5), (4, 3))


def linear(i):
    return eqx.nn.Linear(3, 3, key=jr.key(i))


def half(module):
    return jax.tree.map(lambda x: x.astype(jnp.float16), module)


def steps(cell, xs, reverse=False):
    step = lambda h, x: (cell(x, h),) * 2
    return lax.scan(step, jnp.zeros(3), xs, reverse=reverse)


def gru(i):
    return eqx.nn.GRUCell(3, 3, key=jr.key(i))


def both_ways(model, xs):
    last, hs = steps(model.a, xs)
    return last + steps(model.b, hs, reverse=True)[0]


def without_a_block(model, xs):
    step = lambda h, x: (h + model.b(jnp.tanh(h + model.a(x))), None)
    return lax.scan(step, jnp.zeros(3), xs)[0]


def nested(model, xs):
    def outer(h, x):
        h, _ = lax.scan(lambda h, y: (model.a(h) + y, None), h, jnp.stack([x, -x]))
        return jnp.tanh(model.b(h)), None

    return lax.scan(outer, jnp.zeros(3), xs)[0]


def force(model, xs):
    energy = lambda x: jnp.sum(jnp.tanh(model.b(jnp.tanh(model.a(x)))))
    return jax.vmap(jax.grad(energy))(xs)


def force_in_a_scan(model, xs):
    def step(h, x):
        slope = jax.grad(lambda a: jnp.sum(jnp.tanh(a(h))))(model.a)
        return model.b(slope.weight @ x), None

    return lax.scan(step, jnp.ones(3), xs)[0]


def in_a_branch(model, xs):
    step = lambda h, x: (
        lax.cond(x[0] > -9, lambda x: model.a(x), lambda x: x, h) + model.b(x),
        None,
    )
    return lax.scan(step, jnp.ones(3), xs)[0]


def over_devices(model, xs):
    step = lambda h, x: (model(x, h), None)
    run = lambda xs: lax.scan(step, 0 * xs[0, 0], xs[0])[0][None]
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))
    return jax.shard_map(run, mesh=mesh, in_specs=P("d"), out_specs=P("d"))(xs)


def over_examples(model, xs):
    return lax.scan(lambda h, x: (jax.vmap(model)(h + x), None), xs, xs)[0]


class Ensemble(eqx.Module):
    members: eqx.nn.Linear

    def __call__(self, h, xs):
        run = eqx.filter_vmap(lambda member, h: jnp.tanh(member(h)), in_axes=(0, None))
        return lax.scan(lambda h, x: (run(self.members, h).mean(0) + x, None), h, xs)[0]


class Counting(eqx.Module):
    """A stateful layer."""

    linear: eqx.nn.Linear
    index: eqx.nn.StateIndex

    def __call__(self, x, state):
        n = state.get(self.index)
        return self.linear(x) * (n + 1), state.set(self.index, n + 1)


def stateful(model, x, state):
    x, state = model.a(x, state)
    x, state = model.a(jnp.tanh(x), state)
    x, state = model.b(jnp.tanh(x), state)
    return x + state.get(model.a.index)


class Weak(eqx.Module):
    """What it returns has the type of a Python number."""

    scale: jax.Array

    def __call__(self, x):
        return jnp.where(jnp.sum(self.scale * x) > 0, 2.0, 3.0)


def weakly(model, xs):
    step = lambda h, x: (h * model.a(x) + model.b(x), None)
    return lax.scan(step, jnp.ones(3, jnp.float16), xs)[0]


INDEX = eqx.nn.StateIndex(jnp.array(0.0))
COUNTING = Two(Counting(linear(0), INDEX), Counting(linear(1), INDEX))
TWO = Two(linear(0), linear(1))
ALL = "time _ unit", "time unit"
CASES = {
    # Model and run, its arguments, the sites and their axes; what is skipped.
    "scanned": (SCANNED, None, inputs(), STREAM, "layer pos _", {"layers"}),
    "unrolled": (
        UNROLLED,
        None,
        inputs(),
        ["layers.*", "layers.*.attn.o:in"],
        "pos _",
        {"layers.0", "layers.1", "layers.2"},
    ),
    "in one layer": (
        UNROLLED,
        None,
        inputs(),
        ["layers.1.attn", "layers.1.mlp"],
        "pos _",
        {"layers.0", "layers.1.attn", "layers.1.mlp"},
    ),
    "of themselves": (SCANNED, None, inputs(), "layers", "layer pos _", {"layers"}),
    "a window": (SCANNED, None, inputs(), STREAM, "layer pos _", {"layers"}),
    "whole layers": (SCANNED, None, inputs(), STREAM, "_ pos _", {"layers"}),
    "time": (gru(0), steps, (XS, -XS), ".", "time unit", {"."}),
    "backwards": (
        gru(0),
        lambda cell, xs: steps(cell, xs, reverse=True),
        (XS, -XS),
        ".",
        "time unit",
        {"."},
    ),
    "both ways": (
        Two(gru(0), gru(1)),
        both_ways,
        (XS, -XS),
        None,
        "time unit",
        {"a", "b"},
    ),
    "without a block": (
        TWO,
        without_a_block,
        (XS, -XS),
        None,
        "time unit",
        {"a", "b"},
    ),
    "nested": (
        TWO,
        nested,
        (XS, -XS),
        None,
        {"a": "time twice unit", "b": "time unit"},
        {"a", "b"},
    ),
    "forces": (TWO, force, (XS, -XS), None, "_ unit", {"a", "b"}),
    "forces in a scan": (
        TWO,
        force_in_a_scan,
        (XS, -XS),
        None,
        "time unit",
        {"a", "b"},
    ),
    "a branch": (
        TWO,
        in_a_branch,
        (XS, XS.at[:, 1:].multiply(-1.0)),
        None,
        "time unit",
        {"b"},
    ),
    "calls of one": (
        Chain(linear(0)),
        None,
        (XS[0], -XS[0]),
        None,
        "unit",
        {"cell", "cell#1", "cell#2"},
    ),
    "devices": (
        gru(0),
        over_devices,
        (jnp.stack([XS, XS + 1]), jnp.stack([-XS, XS])),
        ".",
        "_ time unit",
        {"."},
    ),
    "examples": (linear(0), over_examples, (XS, -XS), ".", "time _ unit", {"."}),
    "ensembles": (
        Ensemble(eqx.filter_vmap(linear)(jnp.arange(2))),
        None,
        ((XS[0], XS), (XS[0], -XS)),
        None,
        "time _ unit",
        {"members"},
    ),
    "state": (
        COUNTING,
        stateful,
        tuple((x, eqx.nn.State(COUNTING)) for x in (XS[0], -XS[0])),
        ["a", "b"],
        "unit",
        {"a", "a#1", "b"},
    ),
    "weak types": (
        Two(Weak(jnp.ones(3, jnp.float16)), half(linear(1))),
        weakly,
        (XS.astype(jnp.float16), -XS.astype(jnp.float16)),
        ["b"],
        "time unit",
        {"a", "b"},
    ),
}


def swept(monkeypatch, model, run, runs, where, axes, **kwargs):
    """The effects, those of a sweep that skips nothing, and what the first skips."""
    module = sys.modules["peex.patching.sweep"]
    original, seen = module.skipped_of, []

    def noted(*args):
        seen.append(original(*args))
        return seen[-1]

    made = []
    for stand_in in (noted, lambda *args: None):
        monkeypatch.setattr(module, "skipped_of", stand_in)
        effects = px.patching.sweep(
            model,
            *(run if type(run) is tuple else (run,) for run in runs),
            summed,
            where=where,
            axes=axes,
            method=run or "__call__",
            progress=False,
            **kwargs,
        )
        made.append(effects)
    return *made, seen[0]


def summed(out):
    leaves = jax.tree.leaves(out)
    return sum(jnp.sum(jnp.sin(x.astype(jnp.float32))) for x in leaves)


@pytest.mark.parametrize("name", CASES)
def test_changes_no_effect(name, monkeypatch):
    *case, skips = CASES[name]
    kwargs = {"windows": 2} if name == "a window" else {}
    effects, expected, skipped = swept(monkeypatch, *case, batch_size=2, **kwargs)
    assert set(skipped.calls) == skips
    assert list(effects) == list(expected)
    for key, value in effects.items():
        assert_close(value, expected[key])
        assert np.ptp(value) > 0 or value.size == 1, key


def test_calls_are_not_made():
    """Counted by callbacks, one for each step of a chunk that runs."""
    seen = []

    class Seen(eqx.Module):
        linear: eqx.nn.Linear

        def __call__(self, x, h):
            jax.debug.callback(seen.append, 0)
            return jnp.tanh(self.linear(h) + x)

    def count(**kwargs):
        seen.clear()
        kwargs = {"where": ".", "method": steps, "progress": False, **kwargs}
        px.patching.sweep(Seen(linear(0)), (XS,), (-XS,), summed, **kwargs)
        jax.effects_barrier()
        return len(seen) - 8  # less those of the two runs

    # Four places, each patched behind one of four steps.
    assert count(axes="time _", batch_size=1) == 3 + 2 + 1 + 0
    assert count(axes="time _", batch_size=2) == 3 + 1
    assert count(axes="time _", batch_size=1, windows={"time": 2}) == 3 + 2 + 1
    assert count(axes="_ unit", batch_size=1) == 3 * 3
    # With one chunk there is nothing to choose: what is run once is run as it is.
    assert count(axes="time _") == 4
