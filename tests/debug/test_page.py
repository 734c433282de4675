"""What docs/debugging.md shows is what is printed there. (That the page runs is in
`test_readme.py`.)
"""

import pathlib
import re


PAGE = pathlib.Path(__file__).parents[2] / "docs" / "debugging.md"


def test_the_printed_result():
    text = PAGE.read_text()
    model, search, *_ = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    (shown,) = re.findall(r"^```text\n(.*?)^```", text, re.M | re.S)
    namespace = {}
    exec(compile(model, "model.py", "exec"), namespace)
    exec(search, namespace)
    plain = lambda text: re.sub(r"model\.py:\d+|at most \S+", "...", text).strip()
    assert plain(str(namespace["found"])) == plain(shown)
