"""What a report says is what a log holds: same keys in the same order, same shapes,
axes, counts and bytes. On the models with twins, and on random programs.
"""

import random

import equinox as eqx
import jax
import numpy as np
import pytest
import twins
from random_programs import build, draw_program

import peex as px


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
