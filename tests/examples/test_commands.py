"""The scripts as commands: what they say without the extra, and that they have help."""

import pathlib
import runpy
import sys

import llama
import pytest


FOLDER = pathlib.Path(llama.__file__).parent
SCRIPTS = ["alignment_search", "induction", "patching", "rollout", "steering"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_extra_missing(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    install = r"need the package `matplotlib.*pip install -e \"\.\[experiments\]\""
    with pytest.raises(ModuleNotFoundError, match=install):
        runpy.run_path(str(FOLDER / f"{name}.py"))


@pytest.mark.parametrize("name", ["optax", "tqdm"])
def test_extra_of_training_missing(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    install = rf"need the package `{name}`.*pip install -e \"\.\[experiments\]\""
    with pytest.raises(ModuleNotFoundError, match=install):
        runpy.run_path(str(FOLDER / "training.py"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_help(monkeypatch, capsys, name):
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as done:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert done.value.code == 0
    assert "--out" in capsys.readouterr().out


@pytest.mark.parametrize("name", SCRIPTS)
def test_arguments_reach_the_experiment(monkeypatch, tmp_path, name):
    # Stops where it would begin: these take minutes.
    out = str(tmp_path / "x.png")
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--out", out])
    own_models = ("alignment_search", "induction", "rollout")
    begins = "jax.random.split" if name in own_models else "smollm2.load"
    given = []

    def stop(*args, **kwargs):
        given.append(sys._getframe(1).f_locals["out"])
        raise KeyboardInterrupt

    monkeypatch.setattr(begins, stop)
    with pytest.raises(KeyboardInterrupt):
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert given == [pathlib.Path(out)]
