"""The benchmarks still run, and compare what is alike: on models of tiny widths,
without looking at any time.
"""

import dataclasses
import pathlib
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close

import peex as px


pytestmark = pytest.mark.usefixtures("optimised")


sys.path.append(str(pathlib.Path(__file__).parents[1]))
from benchmarks import (
    attribution,
    compiled,
    contestants,
    debugging,
    models,
    monitoring,
    patching,
    run,
    splice,
    timing,
    tracing,
)
from benchmarks.rows import Bench, Comparison, Figure, Outcome


MAKE = {**models.CASES, "chain 32": models.chain(3)}
CASES = ["transformer", "chain 32", "GRU"]
ONE_ROUND = timing.Effort(seconds=0, least=1, most=1)


@pytest.fixture(scope="module")
def bench():
    bench = Bench(ONE_ROUND, models.TINY)
    for name in CASES:
        case = MAKE[name](models.TINY._replace(layers=1))
        bench.line_ups[name] = contestants.line_up(case)
    return bench


@pytest.mark.parametrize("case", CASES)
def test_contestants_compute_the_same(bench, case):
    assert {"unhooked", "peex", "value_and_grad", "by hand"} <= set(
        bench.contestants(case)
    )
    line_up = bench.line_ups[case]
    assert set(line_up.skipped) | set(line_up.contestants) >= set(contestants.PEERS)
    assert all(line_up.skipped.values())


def test_by_hand_adds_to_what_it_returns():
    made = MAKE["chain 32"](models.TINY)
    out, values = made.by_hand(made.model, made.x)
    assert_close(out, made.model(made.x), rtol=1e-5)
    added = {key: jnp.full_like(value, 2) for key, value in values.items()}
    x = made.model.layer0(made.x) + 2
    x = made.model.layer1(jnp.tanh(x)) + 2
    x = made.model.layer2(jnp.tanh(x)) + 2
    out, _ = made.by_hand(made.model, made.x, added)
    assert_close(out, jnp.tanh(x), rtol=1e-5)


@pytest.mark.parametrize("part", ["values", "cotangents"])
def test_another_result_is_found_out(bench, part):
    good = bench.contestants("chain 32")
    right = getattr(good["by hand"], part)

    def wrong(result):
        out, values = right(result)
        return out, {key: 1.01 * value for key, value in values.items()}

    changed = dataclasses.replace(good["by hand"], **{part: wrong})
    with pytest.raises(
        AssertionError, match=f"wrong: {part} layer0 differs by 1.0e-02"
    ):
        contestants.check({**good, "wrong": changed})


def test_a_missing_value_is_found_out():
    with pytest.raises(AssertionError, match=r"values: \['b'\] is on one side only"):
        contestants.assert_same("values", {"a": 1.0}, {"a": 1.0, "b": 1.0})


@pytest.mark.parametrize("measure", [f.measure for f in compiled.FIGURES[:2]])
def test_identity_hooks_compile_to_the_same(bench, measure):
    assert all(measure(bench, "chain 32").checks.values())


@pytest.mark.parametrize("case", ["MeanStdLog", "HistogramLog"])
def test_statistics_in_a_scan_keep_no_values(bench, case):
    outcome = compiled.statistics_in_scan(bench, case)
    assert outcome.checks == {"no buffer of all values": True}


def test_a_buffer_of_all_values_is_found():
    sizes = models.TINY
    model = models.ScannedTransformer(sizes, key=jax.random.key(0))
    xs = jnp.ones((sizes.batch, sizes.tokens, sizes.width))
    plain = lambda model, xs: jax.vmap(model)(xs)
    hooked = px.ForwardHook(model, where="**.q", method=plain)
    programs = [
        timing.Program(contestants.Call(*call).compiled().program)
        for call in [(lambda h, xs: h(xs), (hooked, xs)), (plain, (model, xs))]
    ]
    whole = compiled.whole_buffers(*programs, sizes)
    assert (sizes.layers, sizes.batch, sizes.tokens, sizes.width) in whole


def test_steps_of_a_vit_compute_the_same():
    steps = tracing.vit_steps(models.TINY, px.IdentityLog())
    value, grads = steps["unhooked"].compiled().result()
    (hooked, logs), hooked_grads = steps["value_and_grad"].compiled().result()
    leaves = [
        jax.tree.leaves(tree) for tree in ((value, grads), (hooked, hooked_grads))
    ]
    for a, b in zip(*leaves, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert list(logs.forward) == list(logs.backward)
    assert len(logs.forward) == 8 + 3  # of the block, and around it
    assert logs.forward["body.layers.0.q"].shape == (2, 16, 8)


@pytest.mark.parametrize("case", ["values", "statistics"])
def test_both_logs(bench, case):
    outcome = tracing.both_logs(bench, case)
    assert list(outcome.cells) == ["unhooked", "value_and_grad"]
    assert outcome.value > 1


@pytest.mark.parametrize("measure", [patching.sweep_time, patching.loop_time])
def test_sweeps_compute_the_same(bench, measure):
    outcome = measure(bench, "2 tokens")  # which it checks
    assert all(outcome.checks.values())


def test_a_splice_computes_the_same(bench):
    assert splice.splice_time(bench, "2 tokens").value > 0  # which it checks


def test_attribution_computes_the_same(bench):
    outcome = attribution.in_forwards(bench, "2 tokens")  # which it checks
    assert outcome.value > 1
    assert attribution.next_to_by_hand(bench, "2 tokens").value > 0


def test_looking_for_what_is_not_finite(bench):
    on = debugging.watch_on(bench, "transformer")
    off = debugging.watch_off(bench, "scanned transformer")
    assert list(on.cells) == list(off.cells) == ["unhooked", "peex"]
    outcome = debugging.one_run(bench, "scanned transformer")
    assert list(outcome.cells) == ["unhooked", "peex", "checkify"]


def test_monitored_steps(bench):
    for measure in (monitoring.monitored_on, monitoring.monitored_off):
        outcome = measure(bench, "scanned transformer")  # which looks at the state
        assert list(outcome.cells) == ["unhooked", "peex"]
        assert outcome.data["state_bytes"] < 10_000


def test_the_first_call_is_traced_anew(bench):
    outcome = debugging.first_call(bench, "scanned transformer")
    assert outcome.value > 1 and len(outcome.data["ratios"]) == 1


def test_what_a_program_holds():
    def fn(x):
        return jax.lax.scan(lambda c, x: (c, jnp.outer(x, x)), 0.0, x)[1]

    program = timing.Program(jax.jit(fn).lower(jnp.ones((5, 3))).compile())
    assert (5, 3, 3) in program.shapes
    assert program.ops > 5
    assert "metadata=" not in program.text
    assert program.temporary_bytes >= 0


def test_each_lowering_is_a_new_trace():
    traced = []
    call = contestants.Call(lambda x: traced.append(x) or x + 1, (jnp.ones(3),))
    lower = call.lower()
    lower(), lower()
    assert len(traced) == 2


def test_compilations_are_counted():
    # One that is compiled within, and one that has been before.
    jitted = eqx.filter_jit(lambda x: 2 * x)
    jitted(1.0)
    assert timing.compilations(lambda: jitted(1.0)) == 0
    assert timing.compilations(lambda: jax.jit(lambda x: 3 * x)(1.0)) == 1


def test_ratios_are_those_within_a_round():
    times = timing.Times({"unhooked": [1.0, 10.0, 1.0], "peex": [2.0, 20.0, 3.0]})
    assert times.ratio("peex", "unhooked") == 2
    assert Comparison(times, set(), {}).cells == {"unhooked": "1 s", "peex": "2.00"}


def test_table_shows_what_is_missed(capsys):
    outcome = Outcome({"unhooked": "1 s", "peex": "2.00"}, 2.0, {"the rest": False}, {})
    figure = Figure("eager call", ("a", "b"), "1.5", 1.5, lambda bench, case: outcome)
    jobs = [run.Job(figure, case) for case in figure.cases]
    rows = list(run.measure(jobs, Bench(ONE_ROUND, models.TINY)))
    table = run.table(rows)
    assert table == [
        ["figure", "case", "unhooked", "peex", "target", "met"],
        ["eager call", "a", "1 s", "2.00", "1.5", "2 > 1.5; the rest"],
        ["", "b", "1 s", "2.00", "1.5", "2 > 1.5; the rest"],
    ]
    run.show(table)
    assert "2 > 1.5; the rest" in capsys.readouterr().out
    (first, _) = run.as_json({}, rows, {})["rows"]
    assert first["missed"] == ["2 > 1.5", "the rest"]


def test_only_selects_rows():
    assert {job.case for job in run.jobs("eager call, chain")} == {
        "chain 32",
        "chain 128",
    }
    assert not run.jobs("nothing of this name")


def test_skipped_peers_are_told_once():
    skipped = {"a": {"P": "why"}, "b": {"P": "why", "Q": "else"}}
    assert run.skips(skipped) == ["Skipped: P (a, b): why", "Skipped: Q (b): else"]
