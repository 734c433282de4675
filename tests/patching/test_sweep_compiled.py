"""How a sweep is run: what is compiled, how much memory it takes, what is shown."""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import parts
import pytest
from closeness import assert_close

import peex as px


CELL = eqx.nn.Linear(3, 3, key=jax.random.key(0))
CLEAN, CORRUPTED = jnp.ones((4, 3)), -jnp.ones((4, 3))


def run(cell, xs):
    return jax.lax.scan(lambda x, y: (cell(x + y), None), xs[0], xs)[0]


def sweep(metric=jnp.sum, clean=CLEAN, corrupted=CORRUPTED, cell=CELL, **kwargs):
    default = {"where": ".", "method": run, "axes": "time unit", "progress": False}
    return px.patching.sweep(cell, clean, corrupted, metric, **default | kwargs)


def test_nothing_is_traced_again():
    traces = []

    def metric(x):
        traces.append(x)
        return jnp.sum(x)

    sweep(metric, batch_size=5)
    # Of a run, of one that logs what is skipped, and of a chunk of patched ones.
    assert len(traces) == 3
    again = sweep(metric, batch_size=5)
    other = jax.tree.map(lambda x: 2 * x, CELL)
    effects = sweep(metric, 2 * CLEAN, CORRUPTED + 1, other, batch_size=5)
    assert len(traces) == 3
    assert_close(effects["."], sweep(jnp.sum, 2 * CLEAN, CORRUPTED + 1, other)["."])
    assert_close(again["."], sweep()["."])


def test_a_metric_may_hold_arrays():
    traces = []

    class Margin(eqx.Module):
        direction: jax.Array

        def __call__(self, x):
            traces.append(x)
            return self.direction @ x

    for i in range(3):
        direction = jnp.zeros(3).at[i].set(1.0)
        effects = sweep(Margin(direction))
        assert_close(effects["."], sweep(lambda x: x)["."][..., i])
    assert len(traces) == 2


def test_under_transformations():
    expected = sweep()
    jitted = eqx.filter_jit(lambda cell, xs: sweep(cell=cell, clean=xs, batch_size=5))
    assert_close(jitted(CELL, CLEAN)["."], expected["."])
    cells = eqx.filter_vmap(lambda key: eqx.nn.Linear(3, 3, key=key))(
        jax.random.split(jax.random.key(0), 2)
    )
    seeds = eqx.filter_vmap(lambda cell: sweep(cell=cell))(cells)
    assert seeds["."].shape == (2, 4, 3) and seeds.axes == expected.axes
    one = jax.tree.map(lambda x: x[1], cells)
    assert_close(seeds["."][1], sweep(cell=one)["."])


def wide(x):
    return {"sum": jnp.sum(x), "wide": jnp.tile(x, 1000)}  # 12 kB


@pytest.fixture
def sizes(monkeypatch):
    """How many places were run at once, in each chunk of a sweep."""
    from peex.patching import chunks

    seen = []

    class Spy:
        lower = chunks._chunk.lower

        def __call__(self, *args):
            seen.append(len(args[-1]))
            return whole(*args)

    whole = chunks._chunk
    monkeypatch.setattr(chunks, "_chunk", Spy())
    return seen


def test_as_many_as_fit(sizes):
    # Outputs of 12 kB for each, and for all 12 in the end: those of 3 at once fit.
    effects = sweep(wide, max_bytes=12 * 12_004 + 3 * 13_000)
    assert sizes == [3, 3, 3, 3]
    assert_close(effects["."]["sum"], sweep()["."])
    sizes.clear()
    sweep(wide, max_bytes=10**7)
    sweep(wide, max_bytes=10**7, batch_size=7)
    assert sizes == [12, 6, 6]


def test_not_even_one_fits(sizes):
    with pytest.raises(
        px.LogTooLargeError,
        match=r"one place at a time would take 156 kB, more than `max_bytes=100000`: "
        r".* B for what the model computes, 12.0 kB for the metric of one run, and "
        r"144 kB for that of all 12 places\. Choose fewer sites with `where`, or a",
    ):
        sweep(wide, max_bytes=100_000)
    assert sizes == []


def test_progress(monkeypatch):
    tqdm = pytest.importorskip("tqdm.auto")
    shown = []

    def bar(chunks, **kwargs):
        shown.append(kwargs["unit"])
        for chunk in chunks:
            shown.append(len(chunk))
            yield chunk

    monkeypatch.setattr(tqdm, "tqdm", bar)
    expected = sweep(batch_size=5)
    assert shown == []
    assert_close(sweep(batch_size=5, progress=True)["."], expected["."])
    assert shown == ["chunk", 4, 4, 4]
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)  # as if not installed
    assert_close(sweep(progress=True)["."], expected["."])


def test_nothing_is_shown_of_what_is_quick(capsys):
    sweep(progress=True)
    assert capsys.readouterr() == ("", "")


def test_a_model_is_an_argument(monkeypatch):
    # As a constant, it would be compiled into the program, for each anew.
    from peex.patching import chunks

    texts = []

    class Spy:
        def __call__(self, *args):
            texts.append(whole.lower(*args).as_text())
            return whole(*args)

    whole = chunks._chunk
    monkeypatch.setattr(chunks, "_chunk", Spy())
    model = parts.Outer(eqx.nn.Linear(300, 300, key=jax.random.key(0)))
    kwargs = {"where": "inner", "axes": "unit"}
    px.patching.sweep(model, jnp.ones(300), jnp.zeros(300), jnp.sum, **kwargs)
    assert len(texts) == 10 and len(texts[0]) < 100_000
