"""`examples/port_from_torch.py`: the mistake in the port is found, and nothing else."""

import pathlib
import runpy
import sys

import pytest


EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "port_from_torch.py"


def test_torch_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    install = r"needs the package `torch`.*pip install torch"
    with pytest.raises(ModuleNotFoundError, match=install):
        runpy.run_path(str(EXAMPLE))


def test_the_mistake_is_found(monkeypatch, capsys, tmp_path):
    pytest.importorskip("torch")
    out = tmp_path / "port.png"
    monkeypatch.setattr(sys, "argv", ["port_from_torch.py", "--out", str(out)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = capsys.readouterr().out
    acts = ", ".join(f"layers.act[{i}]" for i in range(4))
    assert f"to blame: {acts}\n" in said and "compared with nothing" not in said
    assert "<Comparison: 43 rows" in said.splitlines()[-1]
    assert "to blame" not in said.splitlines()[-1]
    assert out.stat().st_size > 10_000
