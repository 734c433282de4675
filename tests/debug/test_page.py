"""What docs/debugging.md and docs/comparing.md show is what is printed there. (That the
pages run is in `test_readme.py`.)
"""

import pathlib
import re


DOCS = pathlib.Path(__file__).parents[2] / "docs"


def test_the_printed_result():
    text = (DOCS / "debugging.md").read_text()
    model, search, *_ = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    (shown,) = re.findall(r"^```text\n(.*?)^```", text, re.M | re.S)
    namespace = {}
    exec(compile(model, "model.py", "exec"), namespace)
    exec(search, namespace)
    plain = lambda text: re.sub(r"model\.py:\d+|at most \S+", "...", text).strip()
    assert plain(str(namespace["found"])) == plain(shown)


def test_the_printed_comparison():
    text = (DOCS / "comparing.md").read_text()
    models, compare, *_ = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    shown, *_ = re.findall(r"^```text\n(.*?)^```", text, re.M | re.S)
    namespace = {}
    exec(models + compare, namespace)
    # Digits behind the point, rules and what is rounded differ.
    words = lambda text: re.findall(r"[A-Za-z][\w.\[\]]*|\b0\b", text)
    assert words(str(namespace["result"])) == words(shown)
