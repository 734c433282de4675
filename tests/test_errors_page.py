"""Each section of docs/errors.md shows a wrong call, which raises that error with the
message shown, and a right one, which doesn't.
"""

import pathlib
import re

import pytest

import peex as px


PAGE = pathlib.Path(__file__).parent.parent / "docs" / "errors.md"
SETUP, *SECTIONS = re.split(r"^## (?=\w+$)", PAGE.read_text(), flags=re.MULTILINE)
SECTIONS = {s.partition("\n")[0]: s for s in SECTIONS}
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)

ERRORS = {
    name: error
    for name, error in vars(px).items()
    if isinstance(error, type) and issubclass(error, px.PeexError)
}


def blocks(section):
    return BLOCK.findall(section)


def run(code, namespace):
    exec(compile(code, str(PAGE), "exec"), namespace)


def namespace():
    made = {"__name__": "__main__"}
    for _, code in blocks(SETUP):
        run(code, made)
    return made


def test_every_error_has_a_section():
    assert set(SECTIONS) == set(ERRORS)


@pytest.mark.parametrize("name", [name for name in SECTIONS if name != "PeexError"])
def test_section(name):
    (kind1, wrong), (kind2, message), (kind3, right) = blocks(SECTIONS[name])
    assert (kind1, kind2, kind3) == ("python", "text", "python")
    made = namespace()
    with pytest.raises(ERRORS[name]) as error:
        run(wrong, made)
    assert type(error.value) is ERRORS[name]
    # In the page it is broken over lines.
    said = str(error.value).partition("\n-----")[0]
    assert " ".join(said.split()) == " ".join(message.split())
    run(right, made)


def test_base_class():
    made = namespace()
    ((_, code),) = blocks(SECTIONS["PeexError"])
    run(code, made)
    assert len(made["hooked"](made["x"])[1]) == 2
    with pytest.raises(px.PeexError):
        px.ForwardHook(made["model"], where="attention")
