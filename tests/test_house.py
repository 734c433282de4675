"""Which folder may import which, and what else holds of every file of `peex`."""

import ast
import pathlib
import subprocess
import sys

import pytest

import peex as px


ROOT = pathlib.Path(px.__file__).parent
# Imports go from a row to rows above it, or stay in one folder.
FLOORS = [
    {"_caches", "_show"},
    {"_compat", "_errors", "_table", "_text"},
    {"_engine"},
    {"_sites", "_program"},
    {"_instrument", "_log", "_state"},
    {"_hooks"},
    {"_wrappers"},
    {"_report"},
    {"_compare", "_reach", "monitoring", "patching"},
    {"debug"},
    {""},  # `peex/__init__.py`
]
FILES = sorted(ROOT.rglob("*.py"))


def module_of(file):
    parts = file.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


MODULES = {module_of(file): file for file in FILES}


def imports(tree, file):
    """The modules of peex that a file imports, as tuples of names."""
    package = file.relative_to(ROOT).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert not any(a.name.split(".")[0] == "peex" for a in node.names)
        if not isinstance(node, ast.ImportFrom):
            continue
        assert (node.module or "").split(".")[0] != "peex", "import it relatively"
        if node.level == 0:
            continue
        base = package[: len(package) - node.level + 1]
        base += tuple(node.module.split(".")) if node.module else ()
        for alias in node.names:
            found = base if (*base, alias.name) not in MODULES else (*base, alias.name)
            assert found in MODULES, (file, found)
            yield found


def floor(module):
    (n,) = (i for i, row in enumerate(FLOORS) if (module or ("",))[0] in row)
    return n


def wrong_way(graph):
    """The arrows that go up, or to another folder of the same row."""
    return [
        f"{'.'.join(a)} imports {'.'.join(b)}"
        for a, targets in graph.items()
        for b in targets
        if a[:1] != b[:1] and floor(b) >= floor(a)
    ]


def circles(graph):
    """The modules that can be reached from themselves."""

    def reached(start):
        seen, todo = set(), list(graph[start])
        while todo:
            module = todo.pop()
            if module not in seen:
                seen.add(module)
                todo += graph[module]
        return seen

    return sorted(".".join(module) for module in graph if module in reached(module))


def graph():
    return {
        module: {m for m in imports(ast.parse(file.read_text()), file) if m != module}
        for module, file in MODULES.items()
    }


def test_imports_go_one_way():
    assert wrong_way(graph()) == []
    assert circles(graph()) == []


def test_an_arrow_that_is_wrong_is_named():
    log, engine, hooks = ("_log",), ("_engine", "site"), ("_hooks", "hooks")
    assert wrong_way({engine: {log}, log: {engine}}) == ["_engine.site imports _log"]
    assert circles({engine: {log}, log: {engine}}) == ["_engine.site", "_log"]
    assert wrong_way({log: {hooks}}) == ["_log imports _hooks.hooks"]
    assert wrong_way({log: {("_instrument", "probe")}}) != []


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_each_file(file):
    text = file.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "says what lives there"
    assert len(text.splitlines()) <= 400
    inner = [
        node
        for scope in ast.walk(tree)
        if isinstance(scope, ast.FunctionDef)
        for node in ast.walk(scope)
        if isinstance(node, ast.ImportFrom | ast.Import)
    ]
    # An extra is imported where it is used; peex itself is at the top.
    assert not any(isinstance(n, ast.ImportFrom) and n.level for n in inner)
    if module_of(file)[:1] != ("_compat",):
        assert "jax._src" not in text and "equinox._" not in text


def test_the_map_of_the_contributing_page_is_whole():
    page = (pathlib.Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    folders = {f.name for f in ROOT.iterdir() if (f / "__init__.py").exists()}
    assert folders
    for folder in folders:
        assert f"`{folder}/" in page, folder
    for file in FILES:
        if file.name != "__init__.py":
            assert f"`{file.stem}`" in page, file


def test_importing_changes_nothing_of_jax():
    code = """
import jax, equinox
from jax.interpreters import ad, batching
from jax import lax
tables = [batching.fancy_primitive_batchers, ad.primitive_jvps]
before = [{p: t.get(p) for p in (lax.cond_p, lax.while_p)} for t in tables]
import peex
assert [{p: t.get(p) for p in (lax.cond_p, lax.while_p)} for t in tables] == before
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_types_are_checked():
    from beartype.roar import BeartypeCallHintViolation

    from peex._sites.keys import split

    with pytest.raises(BeartypeCallHintViolation, match="split"):
        split(3)
