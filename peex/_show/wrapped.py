"""Text broken over lines: between words, and where it has to be, behind the dots,
colons and slashes of a key, never inside of a word.
"""

import re


# Not in `0.5`, `model.py:12`, `f32[4,2]` and `{0..29}`.
_INSIDE = re.compile(r"(?<=[./:])(?=[^\W\d]|[{\"*])(?<!\.\.)")


def wrapped(text: str, width: int, indent: str = "", further: str = "") -> list[str]:
    """The lines of a text, at most this wide if no word is longer, with what is in
    front of the first and of further ones.
    """
    lines: list[str] = []
    line = ""

    def start_next() -> None:
        nonlocal line
        lines.append(f"{further if lines else indent}{line}".rstrip())
        line = ""

    def room() -> int:
        return width - len(further if lines else indent) - len(line)

    for word in text.split(" "):
        if len(word) + bool(line) <= room():
            line += f" {word}" if line else word
            continue
        if line:
            start_next()
        for part in [word] if len(word) <= room() else _INSIDE.split(word):
            if line and len(part) > room():
                start_next()
            line += part
    start_next()
    return lines


def least_width(text: str) -> int:
    """How wide the widest part is that can't be broken."""
    parts = (part for word in text.split() for part in _INSIDE.split(word))
    return max(map(len, parts), default=0)
