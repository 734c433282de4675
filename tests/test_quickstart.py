"""Runs `examples/quickstart.py` as a user would, and computes anew what it prints.

The expected numbers come from a loop in Python over the unhooked model's own layers,
and, for the gradients, from offsets that are added to what each layer returns.
"""

import dataclasses
import importlib
import importlib.util
import os
import pathlib
import re
import runpy
import struct
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest


EXTRA = ("g2p_en", "matplotlib", "rich", "tqdm")
SCRIPT = pathlib.Path(__file__).parents[1] / "examples" / "quickstart.py"
needs_extra = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in EXTRA),
    reason="needs the examples extra: pip install -e '.[examples]'",
)


# As often in CI, these may ask for what is for terminals alone.
COLOURS = ("FORCE_COLOR", "TTY_COMPATIBLE")


def run(cwd, *args):
    """As users do. Returns what it prints, and its errors."""
    inherited = {k: v for k, v in os.environ.items() if k not in COLOURS}
    # It broadcasts as users do, also where the suite runs in a strict mode.
    inherited["JAX_NUMPY_RANK_PROMOTION"] = "allow"
    environment = {"JAX_PLATFORMS": "cpu", "PYTHONUTF8": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *args],
        cwd=cwd,
        env=inherited | environment,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def quickstart():
    """The script as a module: what needs no process of its own is quicker so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        return importlib.import_module(SCRIPT.stem)


@pytest.fixture
def run_here(quickstart, monkeypatch, capsys):
    """The same without a process of its own, which takes seconds to begin."""

    def run(cwd, *args):
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *args])
        for name in COLOURS:
            monkeypatch.delenv(name, raising=False)
        with jax.numpy_rank_promotion("allow"):
            quickstart.main()
        return capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def g2p(quickstart):
    return quickstart.g2p


@dataclasses.dataclass
class Expected:
    """What the unhooked model computes. `sites`: for each key, output and gradient."""

    phonemes: list[str]
    loss: float
    sites: dict[str, tuple[np.ndarray, np.ndarray]]


def compute(g2p, model, word):
    phonemes = [*g2p.decode(model(g2p.encode(word))), "</s>"][:20]
    letters = g2p.encode(word)
    targets = [g2p.PHONEMES.index(p) for p in phonemes]

    def forward(offsets):
        values = {key: [] for key in offsets}

        def site(key, value):
            value = value + offsets[key][len(values[key])]
            values[key].append(value)
            return value

        encoder, decoder, state = model.encoder, model.decoder, jnp.zeros(256)
        for letter in letters:
            read = site("encoder.embedding", encoder.embedding(letter))
            state = site("encoder.cell", encoder.cell(read, state))
        loss = 0.0
        for before, target in zip([2, *targets], targets, strict=False):
            read = site("decoder.embedding", decoder.embedding(jnp.array(before)))
            state = site("decoder.cell", decoder.cell(read, state))
            logits = site("decoder.output", decoder.output(state))
            loss += jax.nn.logsumexp(logits) - logits[target]
        return loss, {key: jnp.stack(value) for key, value in values.items()}

    sizes = {
        "encoder.embedding": (len(letters), 256),
        "encoder.cell": (len(letters), 256),
        "decoder.embedding": (len(targets), 256),
        "decoder.cell": (len(targets), 256),
        "decoder.output": (len(targets), len(g2p.PHONEMES)),
    }
    zeros = {key: jnp.zeros(size) for key, size in sizes.items()}
    forward = jax.jit(jax.value_and_grad(forward, has_aux=True))
    (loss, values), gradients = forward(zeros)
    sites = {k: (np.asarray(values[k]), np.asarray(gradients[k])) for k in sizes}
    return Expected(phonemes, float(loss), sites)


def tables(output):
    """The tables, each a list of rows with the cells' texts; without their headers."""
    found = re.findall(r"^ ─+ *\n(.*?)\n *\n", output, flags=re.MULTILINE | re.DOTALL)
    return [[re.split(" {2,}", row.strip()) for row in t.split("\n")] for t in found]


def close(texts, values):
    # Four digits are printed.
    np.testing.assert_allclose([float(x) for x in texts], values, rtol=2e-3, atol=1e-5)


def norms(x):
    return np.sqrt(np.sum(x**2, axis=-1))


def check_sites(table, expected):
    assert [row[0] for row in table] == list(expected.sites)
    for row, (value, gradient) in zip(table, expected.sites.values(), strict=True):
        assert row[1] == str(value.shape)
        norm, gradient_norm = norms(value.ravel()), norms(gradient.ravel())
        close(row[2:], [value.mean(), value.std(), norm, gradient_norm])


def check_steps(table, part, tokens, expected):
    value, gradient = expected.sites[f"{part}.cell"]
    _, embedding_gradient = expected.sites[f"{part}.embedding"]
    columns = list(zip(*table, strict=True))
    assert [list(column) for column in columns[:-3]] == tokens
    close(columns[-3], norms(value))
    close(columns[-2], norms(gradient))
    close(columns[-1], norms(embedding_gradient))


def check_mixtures(table, g2p, model, words):
    state1, state2 = (model.encoder(g2p.encode(word)) for word in words)
    ranges = [[float(a) for a in row[0].split(" to ")] for row in table]
    assert ranges[0][0] == 0 and ranges[-1][1] == 1
    for (_, stop), (start, _) in zip(ranges, ranges[1:], strict=False):
        assert round(start - stop, 2) == 0.01
    for (start, stop), row in zip(ranges, table, strict=True):
        middle = round(start + stop, 2) / 2
        logits = model.decoder((1 - middle) * state1 + middle * state2)
        assert row[1] == " ".join(g2p.decode(logits))


def check_picture(path):
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(content) > 20_000
    width, height = struct.unpack(">II", content[16:24])
    assert 600 < height < 2000 and height < width < 4000


# In the second, the first word is longer, and has upper case.
@needs_extra
@pytest.mark.parametrize(
    "args, words",
    [
        ([], ["photograph", "photography"]),
        (["Nation", "cat"], ["nation", "cat"]),
    ],
    ids=["default", "words"],
)
def test_output(g2p, run_here, tmp_path, args, words):
    picture = tmp_path / "x.png"
    default_picture = SCRIPT.with_suffix(".png")
    before = default_picture.exists()
    out, err = (run_here if args else run)(tmp_path, *args, "--out", str(picture))
    assert default_picture.exists() == before

    # No progress bar, no colours: neither stream is a terminal.
    assert not set("\r\x1b") & set(out + err)
    assert "Warning" not in err
    lines = out.splitlines()
    assert lines[-1] == f"Saved the picture as {picture}"
    assert all(len(line) <= 100 for line in lines if line.startswith(" "))
    check_picture(picture)

    model = g2p.load()
    expected = compute(g2p, model, words[0])
    [loss] = re.findall(r"loss \((.*) nats\)", out)
    close([loss], [expected.loss])
    sites, encoder, decoder, patches, mixtures = tables(out)
    check_sites(sites, expected)
    check_steps(encoder, "encoder", [[*words[0], "</s>"]], expected)
    read = ["<s>", *expected.phonemes[:-1]]
    check_steps(decoder, "decoder", [expected.phonemes, read], expected)

    # The decoder knows of the letters only through the encoder's output.
    written = {w: " ".join(g2p.decode(model(g2p.encode(w)))) for w in words}
    assert patches == [[w, source, written[source]] for w in words for source in words]
    assert written[words[0]] != written[words[1]]
    check_mixtures(mixtures, g2p, model, words)


@needs_extra
@pytest.mark.parametrize(
    "args, message",
    [
        (["na\u00efve", "word"], "Words consist of letters a-z; 'na\u00efve' also has"),
        (["word", "two words"], "Words consist of letters a-z; 'two words' also has"),
        (["word", ""], "Cannot encode an empty word."),
        (["one"], "expected two words, or none for the default; got 1"),
        (["one", "two", "three"], "expected two words, or none for the default; got 3"),
        (["--out", "no/such/folder.png"], "--out must be a .png in a folder that"),
        (["--out", "picture.txt"], "--out must be a .png in a folder that"),
    ],
)
def test_bad_arguments(quickstart, monkeypatch, capsys, tmp_path, args, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *args])
    with pytest.raises(SystemExit) as done:
        quickstart.main()
    assert done.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"quickstart.py: error: {message}" in err
    assert list(tmp_path.iterdir()) == []


@needs_extra
@pytest.mark.parametrize("name", ["matplotlib.figure", "rich", "tqdm"])
def test_extra_missing(monkeypatch, g2p, name):
    monkeypatch.setitem(sys.modules, name, None)
    install = (
        rf"^The examples need the package `{name}`.*pip install -e \"\.\[examples\]\""
    )
    with pytest.raises(ModuleNotFoundError, match=install):
        runpy.run_path(str(SCRIPT))
