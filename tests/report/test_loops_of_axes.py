"""A step axis knows its loop, in a report and in a log."""

import copy
import functools as ft
import inspect
import pickle

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import jax.random as jr
import pytest
from jax import lax
from twin_case import linear

import peex as px


XS = jr.normal(jr.key(0), (5, 3))
X = XS[0]


class RNN(eqx.Module):
    cell: eqx.nn.Linear
    out: eqx.nn.Linear

    def __call__(self, xs):
        def step(h, x):
            h = jnp.tanh(self.cell(h + x))
            return h, self.out(h)

        return lax.scan(step, jnp.zeros(3), xs)[1]


class Bidirectional(eqx.Module):
    forward: RNN
    backward: RNN

    def __call__(self, xs):
        return self.forward(xs) + self.backward(xs[::-1])


def rnn(seed):
    return RNN(linear(3, 3, seed), linear(3, 3, seed + 1))


MODEL = Bidirectional(rnn(1), rnn(3))


def line_of(cls, text):
    lines, first = inspect.getsourcelines(cls)
    return first + next(i for i, line in enumerate(lines) if text in line)


def loops(axes_of):
    return {key: [axis.loop for axis in axes] for key, axes in axes_of.items()}


def reported(model, *args, **kwargs):
    entries = px.report(model, *args, **kwargs).entries
    return loops({key: call.axes for key, call in entries.items()})


def logged(model, *args, **kwargs):
    return loops(px.ForwardHook(model, **kwargs)(*args)[1].axes)


def both(model, *args, **kwargs):
    """What report and log say alike, eager and jitted."""
    found = logged(model, *args, **kwargs)
    assert found == reported(model, *args, **kwargs)
    hooked = px.ForwardHook(model, **kwargs)
    _, log = eqx.filter_jit(lambda hooked, *args: hooked(*args))(hooked, *args)
    assert loops(log.axes) == found
    return found


def test_two_scans_of_one_length_by_one_function():
    found = both(MODEL, XS)
    (first,), (second,) = found["forward.cell"], found["backward.cell"]
    file, _, line = first.rpartition(":")
    assert file.endswith("test_loops_of_axes.py")
    assert int(line) == line_of(RNN, "def step")
    assert second == f"{first}#1"
    # Those of one loop have one name.
    assert found["forward.out"] == [first] and found["backward.out"] == [second]
    hooked = px.ForwardHook(MODEL)
    for call in px.report(MODEL, XS).entries.values():
        (axis,) = hooked(XS)[1].axes[call.key]
        assert call.axes == (axis,)
        assert (axis.kind, axis.size) == tuple(axis) == ("step", 5)


def test_of_what_is_chosen_alone():
    where = "backward.*"
    first = both(MODEL, XS, where=where)["backward.cell"]
    assert not first[0].endswith("#1")
    # In a report, the others come behind those.
    report = px.report(MODEL, XS, where=where)
    assert report["forward.cell"].axes[0].loop == f"{first[0]}#1"


class TwoLines(eqx.Module):
    cell: eqx.nn.Linear

    def __call__(self, x):
        x, _ = lax.scan(lambda x, _: (self.cell(x), None), x, length=4)
        x = lax.fori_loop(0, 4, lambda i, x: self.cell(x), x)
        return lax.map(lambda x: self.cell(x + jnp.zeros(3)), jnp.stack([x] * 4))


def test_loops_at_several_lines():
    found = both(TwoLines(linear(3, 3, 0)), X)
    texts = {"cell": "lax.scan", "cell#1": "lax.fori_loop", "cell#2": "lax.map"}
    for key, text in texts.items():
        (loop,) = found[key]
        assert loop.endswith(f"test_loops_of_axes.py:{line_of(TwoLines, text)}")


class Nested(eqx.Module):
    rnn: RNN
    head: eqx.nn.Linear

    def __call__(self, xs):
        def outer(xs, _):
            return self.rnn(self.rnn(xs)), self.head(xs[0])

        return lax.scan(outer, xs, length=5)


def test_loops_in_a_loop():
    found = both(Nested(rnn(0), linear(3, 3, 5)), XS)
    (outer,) = found["head"]
    assert outer.endswith(f":{line_of(Nested, 'def outer')}")
    first, second = found["rnn.cell"], found["rnn.cell#1"]
    assert first[0] == second[0] == outer
    assert second[1] == f"{first[1]}#1"
    assert found["rnn.out#1"] == second


@eqx.filter_jit
def _jitted(rnn, xs):
    return rnn(xs)


class Repeated(eqx.Module):
    rnn: RNN
    how: str = eqx.field(static=True)

    def __call__(self, xs):
        run = {
            "jit": _jitted,
            "checkpoint": eqx.filter_checkpoint(lambda rnn, xs: rnn(xs)),
            "python": lambda rnn, xs: rnn(xs),
        }[self.how]
        for _ in range(3):
            xs = run(self.rnn, xs)
        return xs


@pytest.mark.parametrize("how", ["jit", "checkpoint", "python"])
def test_programs_that_jax_has_cached(how):
    found = both(Repeated(rnn(0), how), XS)
    (first,) = found["rnn.cell"]
    assert found["rnn.out#1"] == [f"{first}#1"]
    assert found["rnn.cell#2"] == found["rnn.out#2"] == [f"{first}#2"]


class Branches(eqx.Module):
    yes: RNN
    no: RNN

    def __call__(self, xs):
        run = lambda rnn: lambda xs: rnn(xs)
        return lax.cond(xs[0, 0] > 0, run(self.yes), run(self.no), xs)


def test_loops_in_branches():
    found = both(Branches(rnn(0), rnn(2)), XS)
    (yes,), (no,) = found["yes.cell"], found["no.cell"]
    assert {yes, no} == {yes.removesuffix("#1"), yes.removesuffix("#1") + "#1"}
    assert found["yes.out"] == [yes] and found["no.out"] == [no]


def test_other_axes_have_none():
    found = both(eqx.filter_vmap(MODEL), jnp.stack([XS, XS]))
    step, batch = found["backward.cell"]
    assert step.endswith("#1") and batch is None
    axes = px.ForwardHook(eqx.filter_vmap(MODEL))(jnp.stack([XS, XS]))[1].axes
    assert [tuple(axis) for axis in axes["forward.cell"]] == [("step", 5), ("batch", 2)]
    mlp = eqx.nn.MLP(3, 2, 4, 1, key=jr.key(0))
    assert both(mlp, X) == {"layers.0": [], "layers.1": []}


class While(eqx.Module):
    cell: eqx.nn.Linear

    def __call__(self, x):
        body = lambda state: (self.cell(state[0]), state[1] + 1)
        return lax.while_loop(lambda state: state[1] < 3, body, (x, 0))[0]


def test_the_last_iterations_of_a_while_loop():
    model = While(linear(3, 3, 0))
    assert logged(model, X) == {"cell": []}
    (loop,) = logged(model, X, while_buffer=2)["cell"]
    assert loop.endswith(f":{line_of(While, 'body = lambda')}")


def test_backward_logs():
    expected = both(MODEL, XS)
    hooked = px.BackwardHook(MODEL).init(XS)
    assert loops(hooked.log.axes) == expected
    grads = eqx.filter_jit(eqx.filter_grad(lambda h: jnp.sum(h(XS))))(hooked)
    assert loops(grads.log.axes) == expected
    run = px.value_and_grad(lambda m, xs: jnp.sum(m(xs)), forward=px.NormLog())
    (_, logs), _ = run(MODEL, XS)
    assert loops(logs.forward.axes) == loops(logs.backward.axes) == expected


@pytest.mark.filterwarnings("ignore:This model is wrapped in an equal")
def test_wrappers_around_each_other():
    expected = both(MODEL, XS)
    inner = px.ForwardHook(MODEL, where="**.out")
    assert logged(inner, XS) == expected
    hooked = px.BackwardHook(px.ForwardHook(inner)).init(XS)
    assert loops(hooked.log.axes) == expected
    (_, inner_log), log = px.ForwardHook(inner)(XS)
    assert loops(inner_log.axes).items() <= loops(log.axes).items()
    buffered = px.ForwardHook(While(linear(3, 3, 0)), while_buffer=2)
    around = px.ForwardHook(buffered, while_buffer=2)
    (_, inner_log), log = around(X)
    assert inner_log.axes == log.axes


def test_values_inside_and_arguments():
    found = both(MODEL, XS, where=["**.cell:in", "*/tanh", "**.cell/dot_general"])
    for name in ("forward", "backward"):
        (loop,) = found[f"{name}.cell:in"]
        assert found[f"{name}/tanh"] == found[f"{name}.cell/dot_general"] == [loop]


@pytest.mark.skipif(len(jax.devices()) < 4, reason="conftest.py asks for four devices")
def test_on_several_devices():
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("x")
    specs = dict(mesh=mesh, in_specs=spec, out_specs=spec)
    shard = ft.partial(jax.shard_map, check_vma=False, **specs)

    def run(model, xs):
        one = shard(lambda xs: model.forward(xs[0])[None])
        return one(one(xs))

    found = px.ForwardHook(MODEL, where="forward.*", method=run)(jnp.stack([XS] * 4))
    axes = found[1].axes
    kinds = [axis.kind for axis in axes["forward.cell"]]
    assert kinds == ["device", "step"]
    first, second = axes["forward.cell"][1].loop, axes["forward.cell#1"][1].loop
    assert second == f"{first}#1" and axes["forward.out"][1].loop == first


def test_it_is_static():
    _, log = px.ForwardHook(MODEL)(XS)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(log))
    mapped = jax.tree.map(lambda x: x[0], log)
    shapes = jax.eval_shape(lambda: px.ForwardHook(MODEL)(XS)[1])
    copies = [copy.deepcopy(log), pickle.loads(pickle.dumps(log)), mapped, shapes]
    for other in copies:
        assert other.axes == log.axes and list(loops(other.axes)) == list(log)
    assert px.Log(log).axes == {}
    assert px.Log(log, axes=log.axes).axes == log.axes


def test_it_is_no_part_of_what_a_log_is():
    _, log = px.ForwardHook(MODEL)(XS)
    _, shorter = px.ForwardHook(MODEL)(XS[:4])
    plain = px.Log(dict(log))
    assert log.axes["forward.cell"] != shorter.axes["forward.cell"]
    assert jax.tree.structure(log) == jax.tree.structure(shorter)
    assert str(jax.tree.structure(log)) == str(jax.tree.structure(shorter))
    assert log == plain and jax.tree.structure(log) == jax.tree.structure(plain)
    difference = jax.tree.map(lambda a, b: jnp.sum(a) - jnp.sum(b), log, plain)
    assert all(x == 0 for x in jax.tree.leaves(difference))

    @jax.jit
    @eqx.debug.assert_max_traces(max_traces=1)
    def total(log):
        return sum(jnp.sum(x) for x in log.values())

    assert total(log) == total(plain)


def test_it_is_exported():
    hooked = px.ForwardHook(MODEL)
    exported = jax.export.export(jax.jit(lambda xs: hooked(xs)[1]))(XS)
    again = jax.export.deserialize(exported.serialize())
    log = again.call(XS)
    assert log.axes == hooked(XS)[1].axes


def test_it_is_shown():
    report = px.report(MODEL, XS)
    (loop,) = loops({"": report["backward.cell"].axes})[""]
    assert f"step 5 ({loop})" in str(report["backward.cell"])
    assert report["backward.cell"].to_dict()["axes"] == [["step", 5, loop]]
    assert not report.diff(px.report(MODEL, XS))
