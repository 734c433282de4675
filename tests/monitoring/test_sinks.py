"""Where summaries go."""

import io
import json
import sys
import types

import jax
import pytest
from rich.console import Console

import peex as px


HISTOGRAM = px.monitoring.Histogram((1, 2, 3), (-1.0, 1.0))
SUMMARY = px.monitoring.Summary(
    {"a/rms": 0.5, "a/max": float("nan"), "a/nonfinite": 3, "a/histogram": HISTOGRAM},
    steps=7,
)


@pytest.fixture
def second_process(monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)


def test_jsonl(tmp_path):
    path = tmp_path / "runs" / "one.jsonl"
    sink = px.monitoring.JSONL(path)
    sink(10, SUMMARY)
    sink(jax.numpy.array(20), px.monitoring.Summary({"a/rms": 1.5}, steps=10))
    first, second = map(json.loads, path.read_text().splitlines())
    assert first == {
        "step": 10,
        "steps": 7,
        "a/rms": 0.5,
        "a/max": None,
        "a/nonfinite": 3,
        "a/histogram": {"counts": [1, 2, 3], "edges": [-1.0, 1.0]},
    }
    assert second == {"step": 20, "steps": 10, "a/rms": 1.5}


def test_tensorboard(tmp_path):
    sink = px.monitoring.TensorBoard(tmp_path)
    sink(10, SUMMARY)
    sink(20, px.monitoring.Summary({"a/rms": 1.5}))
    sink.close()
    found = {}
    for event in events(tmp_path):
        for value in event.summary.value:
            found[value.tag, event.step] = value
    assert found["a/rms", 10].simple_value == 0.5
    assert found["a/rms", 20].simple_value == 1.5
    assert ("a/max", 10) not in found
    histogram = found["a/histogram", 10].histo
    assert list(histogram.bucket) == [1, 2, 3] and histogram.num == 6
    assert list(histogram.bucket_limit) == [-1, 1, 3]


def events(folder):
    from tensorboardX.proto.event_pb2 import Event

    (path,) = folder.iterdir()
    data = path.read_bytes()
    while data:  # length, checksum of it, the event, checksum of that
        n = int.from_bytes(data[:8], "little")
        yield Event.FromString(data[12 : 12 + n])
        data = data[12 + n + 4 :]


class Run:
    def __init__(self):
        self.logged = []

    def log(self, numbers, step):
        self.logged.append((step, numbers))


def test_wandb(monkeypatch):
    wandb = types.ModuleType("wandb")
    wandb.Histogram = lambda np_histogram: ("histogram", np_histogram)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    run = Run()
    px.monitoring.WandB(run)(10, SUMMARY)
    ((step, numbers),) = run.logged
    assert step == 10 and numbers["a/rms"] == 0.5 and numbers["a/nonfinite"] == 3
    bins = [1, 2, 3], [-3.0, -1.0, 1.0, 3.0]
    assert numbers["a/histogram"] == ("histogram", bins)


def test_live_table():
    console = Console(
        file=io.StringIO(), width=80, force_terminal=True, color_system=None
    )
    with px.monitoring.LiveTable(console) as show:
        show(10, SUMMARY)
        show(20, px.monitoring.Summary({"b/rms": 1.25}))
    text = console.file.getvalue()
    assert "step 10" in text and "step 20" in text
    assert "0.5" in text and "1.25" in text and "nonfinite" in text


def test_only_the_first_process_writes(tmp_path, second_process):
    console = Console(file=io.StringIO())
    run, folder = Run(), tmp_path / "tensorboard"
    live, board = (
        px.monitoring.LiveTable(console),
        px.monitoring.TensorBoard(folder),
    )
    for sink in (
        px.monitoring.JSONL(tmp_path / "a.jsonl"),
        px.monitoring.WandB(run),
        board,
        live,
    ):
        sink(1, SUMMARY)
    live.close()
    board.close()
    assert not list(tmp_path.iterdir()) and not run.logged
    assert console.file.getvalue() == ""


@pytest.mark.parametrize(
    "module, make, extra",
    [
        ("tensorboardX", lambda: px.monitoring.TensorBoard("x"), "tensorboard"),
        ("rich.live", lambda: px.monitoring.LiveTable(), "rich"),
    ],
    ids=["tensorboard", "rich"],
)
def test_says_what_to_install(monkeypatch, module, make, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf'pip install "peex\[{extra}\]"'):
        make()
