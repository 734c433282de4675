"""Every block of code in the README, the docs and the docstrings runs, and prints what
it says.
"""

import contextlib
import inspect
import io
import pathlib
import re
import textwrap

import pytest
from closeness import assert_close

import peex as px


ROOT = pathlib.Path(__file__).parent.parent
# The wrong calls of errors.md are run by `test_errors_page.py`.
DOCS = [p for p in sorted((ROOT / "docs").glob("*.md")) if p.name != "errors.md"]
PAGES = [ROOT / "README.md", *DOCS]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"^print\(.*\)  # (.*)$", re.MULTILINE)


def run(blocks, expected):
    """Runs blocks one after the other; `print(...)  # this` must print this."""
    out, namespace = io.StringIO(), {"__name__": "__main__"}
    with contextlib.redirect_stdout(out):
        for block in blocks:
            exec(compile(block, "<block>", "exec"), namespace)
    printed = out.getvalue().splitlines()
    assert len(printed) == len(expected)
    for got, comment in zip(printed, expected, strict=True):
        if comment.startswith(("[", "(")):
            numbers = lambda s: [float(x) for x in re.findall(r"-?\d+\.?\d*", s)]
            wanted = comment.partition(": ")[0]
            assert_close(numbers(got), numbers(wanted))
        else:
            assert got == comment


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_page(page):
    blocks = BLOCK.findall(page.read_text())
    run(blocks, PRINTED.findall("\n".join(blocks)))


def documented():
    for public in (px, px.debug, px.monitoring, px.patching):
        for name in getattr(public, "__all__", dir(public)):
            thing = getattr(public, name)
            if getattr(thing, "__module__", "").startswith("peex"):
                yield name, thing


def methods(thing):
    found = inspect.getmembers(thing, callable) if isinstance(thing, type) else []
    return [method for name, method in found if not name.startswith("_")]


THINGS = [t for _, thing in documented() for t in (thing, *methods(thing))]
DOCSTRINGS = [t for t in THINGS if "```python" in (t.__doc__ or "")]


@pytest.mark.parametrize("thing", DOCSTRINGS, ids=lambda t: t.__name__)
def test_docstring(thing):
    # The blocks of an admonition are indented.
    blocks = re.findall(r"^ *```python\n(.*?)^ *```", thing.__doc__, re.M | re.S)
    assert blocks
    for block in blocks:
        run([textwrap.dedent(block)], [])


def test_everything_public_is_documented():
    missing = [name for name, thing in documented() if not thing.__doc__]
    assert not missing
