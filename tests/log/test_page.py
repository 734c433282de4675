"""The table that docs/logs.md shows is what is printed there. (That the page runs is in
`test_readme.py`.)
"""

import pathlib
import re

from closeness import assert_close


PAGE = pathlib.Path(__file__).parents[2] / "docs" / "logs.md"


def rows(text):
    """The words, and the numbers that may be rounded differently."""
    found = [line.split() for line in text.strip().splitlines()]
    is_number = lambda word: re.fullmatch(r"-?\d+(\.\d+)?(e[+-]\d+)?", word)
    words = [[word for word in line if not is_number(word)] for line in found]
    numbers = [[float(word) for word in line if is_number(word)] for line in found]
    return words, numbers


def test_the_table():
    text = PAGE.read_text()
    first, *_ = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    (shown,) = re.findall(r"^```text\n(.*?)^```", text, re.M | re.S)
    namespace = {}
    exec(first, namespace)
    (words, numbers), (found, printed) = rows(shown), rows(str(namespace["log"]))
    # The columns may be wider.
    dashes = lambda lines: [[word.strip("-") for word in line] for line in lines]
    assert dashes(found) == dashes(words)
    assert len(numbers) == len(words) > 5
    assert_close(printed, numbers, 2e-3)
