"""Pyright finds nothing wrong with what users write: the code of the pages, and scripts
as people write them, with annotations and without. And it flags what is wrong.

Pyright comes with the linters: without it, the scripts are run only.
"""

import collections
import json
import pathlib
import re
import runpy
import shutil
import subprocess
import sys

import pytest

import peex as px


HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
SCRIPTS = sorted((HERE / "scripts").glob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
RULE = re.compile(r"\breport\w+")

PYRIGHT = shutil.which("pyright", path=pathlib.Path(sys.executable).parent)
needs_pyright = pytest.mark.skipif(
    PYRIGHT is None,
    reason="pyright isn't installed: it comes with `pip install --group lint`",
)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What pyright says: for each file the lines, and for each of these the rules."""
    folder = tmp_path_factory.mktemp("typed")
    for file in (*SCRIPTS, HERE / "flagged.py"):
        shutil.copy(file, folder)
    for page in PAGES:
        blocks = BLOCK.findall(page.read_text())
        (folder / f"{page.stem}_page.py").write_text("\n\n".join(blocks))
    # As strict as users are who change nothing.
    config = {
        "pythonVersion": "3.11",
        "extraPaths": [str(pathlib.Path(px.__file__).parents[1])],
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    command = [PYRIGHT, "--outputjson", "--pythonpath", sys.executable, "-p", folder]
    run = subprocess.run(command, capture_output=True, text=True)
    said = json.loads(run.stdout)
    assert said["summary"]["filesAnalyzed"] == len(SCRIPTS) + 1 + len(PAGES), run.stdout
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for one in said["generalDiagnostics"]:
        line = one["range"]["start"]["line"]
        found[pathlib.Path(one["file"]).name][line].append(
            one.get("rule", one["message"])
        )
    return found


@needs_pyright
@pytest.mark.parametrize(
    "name", [*(f.name for f in SCRIPTS), *(f"{p.stem}_page.py" for p in PAGES)]
)
def test_nothing_is_wrong_with(found, name):
    assert dict(found[name]) == {}


@needs_pyright
def test_what_is_wrong_is_flagged(found):
    lines = (HERE / "flagged.py").read_text().splitlines()
    # In a comment, after the code.
    rules = [sorted(RULE.findall(line.partition("  # ")[2])) for line in lines]
    expected = {i: rules for i, rules in enumerate(rules) if rules}
    assert len(expected) > 20
    assert {i: sorted(rules) for i, rules in found["flagged.py"].items()} == expected


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda f: f.stem)
def test_script_runs(script, capsys):
    runpy.run_path(str(script))
    assert capsys.readouterr().out
