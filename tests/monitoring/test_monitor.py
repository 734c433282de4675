"""Statistics that are kept over the steps of a training, next to NumPy over all that
was logged.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close
from jax import lax

import peex as px


class Relu(eqx.Module):
    def __call__(self, x):
        return jax.nn.relu(x)


class Block(eqx.Module):
    """A layer with a loop over time inside, and a branch."""

    cell: eqx.nn.Linear
    act: Relu

    def __init__(self, key):
        self.cell = eqx.nn.Linear(3, 3, key=key)
        self.act = Relu()

    def __call__(self, xs):
        def step(h, x):
            h = jnp.tanh(self.cell(h + x))
            return h, h

        falls = xs[1, 0] < xs[0, 0]
        _, xs = lax.scan(step, jnp.zeros(3), xs)
        return lax.cond(falls, self.act, lambda x: x, xs)


class Scanned(eqx.Module):
    layers: Block

    def __call__(self, xs):
        step = eqx.filter_checkpoint(lambda xs, layer: (layer(xs), None))
        return lax.scan(step, xs, self.layers)[0]


class Unrolled(eqx.Module):
    layers: list[Block]

    def __call__(self, xs):
        for layer in self.layers:
            xs = layer(xs)
        return xs


def loss(model, xs):
    return jnp.mean(jax.vmap(model)(xs) ** 2)


KEYS = jax.random.split(jax.random.key(0), 2)
SCANNED = Scanned(eqx.filter_vmap(Block)(KEYS))
UNROLLED = Unrolled([Block(key) for key in KEYS])
# As long as the stack, so that sizes don't tell loops apart.
BATCHES = jax.random.normal(jax.random.key(1), (20, 4, 2, 3))
ON = [i % 2 == 0 for i in range(20)]
STATS = px.monitoring.Stats
monitor = px.monitoring.Monitor(
    loss,
    forward=STATS("mean", "rms", "std", "max", "zeros", "dead", "nonfinite"),
    backward=STATS("rms", "max"),
    updates=True,
)


class Run:
    """A training by a jitted step, of which model and state are donated."""

    def __init__(self, model):
        self.traced = 0
        # What is donated isn't there afterwards.
        self.model = jax.tree.map(lambda x: x + 0 if eqx.is_array(x) else x, model)
        self.first = jax.tree.map(lambda x: x + 0 if eqx.is_array(x) else x, model)
        self.state = monitor.init(model, BATCHES[0])
        self.step = eqx.filter_jit(self._step, donate="all")

    def _step(self, model, state, xs, on):
        self.traced += 1
        (value, state), grads = monitor(model, state, xs, on=on)
        updates = jax.tree.map(lambda g: -0.1 * g, grads)
        state = monitor.with_updates(state, model, updates, on=on)
        return eqx.apply_updates(model, updates), state, value

    def __call__(self, batches, on):
        values = []
        for xs, flag in zip(batches, on, strict=True):
            given = jnp.array(xs), jnp.array(flag)
            self.model, self.state, value = self.step(self.model, self.state, *given)
            values.append(value)
        return jnp.stack(values)


@pytest.fixture(scope="module")
def runs():
    """Each with what was read, in two windows."""
    made = {}
    for name, model in (("scanned", SCANNED), ("unrolled", UNROLLED)):
        run = Run(model)
        values, summaries = [], []
        for half in (slice(10), slice(10, 20)):
            values.append(run(BATCHES[half], ON[half]))
            summary, run.state = monitor.read(run.state)
            summaries.append(summary)
        made[name] = run, jnp.concatenate(values), summaries
    return made


@pytest.fixture(scope="module")
def logged():
    """What a training without a monitor logs, and its values; and each update."""

    @eqx.filter_jit
    def step(model, xs):
        both = px.value_and_grad(loss, forward=px.IdentityLog())
        (value, logs), grads = both(model, xs)
        updates = jax.tree.map(lambda g: -0.1 * g, grads)
        return eqx.apply_updates(model, updates), value, logs, updates

    model, found = UNROLLED, []
    for xs in BATCHES:
        before = model
        model, *found_here = step(model, xs)
        found.append((before, *found_here))
    return model, found


def test_trains_as_without(runs, logged):
    run, values, _ = runs["unrolled"]
    model, found = logged
    assert_close(values, jnp.stack([value for _, value, *_ in found]))
    assert_close(eqx.filter(run.model, eqx.is_array), eqx.filter(model, eqx.is_array))


def test_one_trace_for_alternating_steps(runs):
    assert [run.traced for run, *_ in runs.values()] == [1, 1]


def test_equals_numpy_over_the_whole_run(runs, logged):
    _, found = logged
    for window, summary in enumerate(runs["unrolled"][2]):
        seen = [found[i] for i in range(10 * window, 10 * window + 10) if ON[i]]
        assert summary.steps == len(seen) == 5
        for key in seen[0][2].forward:
            logs = [logs for _, _, logs, _ in seen]
            forward = [np.asarray(log.forward[key]) for log in logs]
            if key in logs[0].forward.counts:  # in the branch
                took = [np.asarray(log.forward.counts[key]) > 0 for log in logs]
                forward = [x[t] for x, t in zip(forward, took, strict=True)]
                assert 0 < np.mean(took) < 1 or key != "layers.0.act"
            x = np.concatenate([x.reshape(-1, 3) for x in forward]).astype(np.float64)
            expected = {
                "mean": np.mean(x),
                "rms": np.sqrt(np.mean(x**2)),
                "std": np.std(x),
                "max": np.max(np.abs(x)),
                "zeros": np.mean(x == 0),
                "dead": np.mean(np.all(x == 0, 0)),
                "nonfinite": 0,
            }
            for name, number in expected.items():
                got = summary[f"{key}/{name}"]
                np.testing.assert_allclose(got, number, 1e-5, 1e-6, err_msg=key)
            back = [np.asarray(log.backward[key]).reshape(-1) for log in logs]
            if key not in logs[0].forward.counts:
                x = np.concatenate(back).astype(np.float64)
                rms, largest = np.sqrt(np.mean(x**2)), np.max(np.abs(x))
                got = [summary[f"backward/{key}/{name}"] for name in ("rms", "max")]
                np.testing.assert_allclose(got, [rms, largest], 1e-5, err_msg=key)


def test_updates_next_to_numpy(runs, logged):
    seen = [found for found, on in zip(logged[1], ON, strict=True) if on][:5]
    square = lambda trees: sum(
        np.sum(np.asarray(t.layers[1].cell.weight, np.float64) ** 2) for t in trees
    )
    expected = square([u for *_, u in seen]) / square([model for model, *_ in seen])
    name = "layers.1.cell.weight/update_over_weight"
    got = runs["unrolled"][2][0][name]
    np.testing.assert_allclose(got, np.sqrt(expected), 1e-5)


def test_scanned_equals_unrolled(runs):
    """Each layer of the stack is kept, and the steps of time are merged."""
    for scanned, unrolled in zip(runs["scanned"][2], runs["unrolled"][2], strict=True):
        assert len(scanned) == len(unrolled) and scanned.steps == 5
        for name, number in scanned.items():
            site, _, statistic = name.rpartition("/")
            key, _, layer = site.removesuffix("]").partition("[")
            head, _, tail = key.partition("layers.")
            other = unrolled[f"{head}layers.{layer}.{tail}/{statistic}"]
            np.testing.assert_allclose(number, other, 1e-4, 1e-6, err_msg=name)


def test_memory_does_not_grow(runs):
    """Neither with the steps, nor with the batch: the state is the same."""
    run, *_ = runs["scanned"]
    shapes = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
    fresh = monitor.init(SCANNED, jnp.zeros((11, 2, 3)))
    assert shapes(fresh) == shapes(run.state)
    assert len(jax.tree.leaves(fresh)) < 100
    one_step = jax.eval_shape(
        lambda state, xs: monitor(SCANNED, state, xs)[0][1], fresh, BATCHES[0]
    )
    assert shapes(one_step) == shapes(fresh)


def test_two_that_are_merged_are_one():
    """As of two processes, each with half of the examples of each step."""
    model = UNROLLED.layers[0].cell
    mean = lambda model, xs: jnp.mean(jax.vmap(jax.vmap(model))(xs) ** 2)
    small = px.monitoring.Monitor(mean, forward=STATS("mean", "rms", "max"))
    step = eqx.filter_jit(lambda state, xs: small(model, state, xs)[0][1])
    zero = small.init(model, BATCHES[0, :2])
    halves = []
    for half in (slice(2), slice(2, 4)):
        state = zero
        for xs in BATCHES[:3]:
            state = step(state, xs[half])
        halves.append(state)
    merged, _ = small.read(small.merge(*halves))
    whole = zero
    for xs in BATCHES[:3]:
        whole = step(step(whole, xs[:2]), xs[2:])
    whole, emptied = small.read(whole)
    assert merged.steps == 6 and list(merged) == list(whole)
    for name in whole:
        np.testing.assert_allclose(merged[name], whole[name], 1e-5, 1e-6)
    nothing, _ = small.read(emptied)
    assert nothing.steps == 0 and np.isnan(list(nothing.values())).all()


def test_is_shown_as_tables(runs):
    summary = runs["scanned"][2][0]
    text = str(summary)
    assert text.count("layers.cell[1] ") == 2  # forward and backward
    assert "update_over_weight" in text and text.endswith("5 steps")
    assert "<td" in summary._repr_html_()
    assert list(summary.rows())[0] == "layers.cell[0]"
