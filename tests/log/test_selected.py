"""Entries of a log that patterns choose: as a log, and stacked."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close
from parts import Chain, Seq, Whole

import peex as px


def linear(seed, size=2):
    return eqx.nn.Linear(size, size, key=jax.random.key(seed))


KEYS = [
    "embed",
    "embed:attend",
    "layers.0.attn",
    "layers.0.attn:in",
    "layers.0.attn/softmax",
    "layers.0.attn/div#1",
    "layers.0.mlp",
    "layers.1.attn",
    "layers.1.mlp",
    "cell",
    "cell#1",
    "cell#1/tanh",
    '"a.b".c',
    "head",
]
LOG = px.Log(
    {key: jnp.full(2, float(i)) for i, key in enumerate(KEYS)},
    {"head": jnp.array(1), "embed": jnp.array(0)},
)
SELECTED = {
    "head": ["head"],
    "layers.*.attn": ["layers.0.attn", "layers.1.attn"],
    "layers.1.*": ["layers.1.attn", "layers.1.mlp"],
    "**.mlp": ["layers.0.mlp", "layers.1.mlp"],
    "layers.*.attn:in": ["layers.0.attn:in"],
    "layers.*.attn/softmax": ["layers.0.attn/softmax"],
    "layers.*.attn/*": ["layers.0.attn/softmax", "layers.0.attn/div#1"],
    "**/div": ["layers.0.attn/div#1"],
    "embed:attend": ["embed:attend"],
    "cell": ["cell", "cell#1"],
    "cell#1": ["cell#1"],
    "cell/tanh": ["cell#1/tanh"],
    '"a.b".*': ['"a.b".c'],
}


@pytest.mark.parametrize("pattern", SELECTED)
def test_one_pattern(pattern):
    found = LOG.select(pattern)
    assert isinstance(found, px.Log)
    assert list(found) == SELECTED[pattern]
    for key in found:
        assert found[key] is LOG[key]


@pytest.mark.parametrize("kind", [list, tuple, set])
def test_several_patterns(kind):
    found = LOG.select(kind(["head", "layers.*.mlp", "layers.1.*"]))
    assert list(found) == ["layers.0.mlp", "layers.1.attn", "layers.1.mlp", "head"]
    assert list(found.counts) == ["head"]


def test_every_key_is_a_pattern():
    assert list(LOG.select(list(LOG))) == KEYS


def test_what_where_chooses_is_what_select_does():
    model = Seq([linear(0), Chain(linear(1)), linear(2)])
    _, whole = px.ForwardHook(model)(jnp.ones(2))
    for where in ("parts.0", "parts.*.cell", "parts.1.cell#1", ["**.cell", "parts.2"]):
        _, log = px.ForwardHook(model, where=where)(jnp.ones(2))
        assert whole.select(where) == log


def test_integers_of_a_backward_log():
    hooked = px.BackwardHook(Seq([linear(0), linear(1)]), log_fn=lambda x: x > 0)
    log = hooked.init(jnp.ones(2)).log.select("parts.1")
    assert log["parts.1"].dtype == bool
    # It can still be the log of a wrapper.
    assert jax.tree.leaves(log)[0].dtype == jnp.float32


def test_nothing_matches():
    match = (
        r"^The pattern 'layers\.\*\.atn' of `log\.select` matches nothing in the log\. "
        r"Nearest: 'layers\.[01]\.attn.*, 'head'\. As in `where`, `\*` stands for one "
        r"component"
    )
    for patterns in ("layers.*.atn", ["head", "layers.*.atn"]):
        with pytest.raises(px.SiteNotFoundError, match=match):
            LOG.select(patterns)
    with pytest.raises(px.SiteNotFoundError, match=r"'a' of `log\.stack` matches noth"):
        LOG.stack("a")
    with pytest.raises(px.SiteNotFoundError, match=r"given no pattern, so it chooses"):
        LOG.select([])


@pytest.mark.parametrize("patterns", [eqx.nn.Linear, 3, ["head", eqx.nn.Linear]])
def test_no_pattern(patterns):
    match = r"`log\.select` takes a pattern over the keys of the log or a list of patt"
    with pytest.raises(TypeError, match=match):
        LOG.select(patterns)


def test_completions():
    assert LOG._ipython_key_completions_() == KEYS


# Stacked


def test_stack_counts_as_people_do():
    layers = [linear(i) for i in range(12)]
    x = jnp.array([0.5, -1.0])
    _, log = px.ForwardHook(Seq(layers))(x)
    expected = []
    for layer in layers:
        x = layer(x)
        expected.append(x)
    assert_close(log.stack("parts.*"), jnp.stack(expected))
    # Wherever they stand in the log, and under jit.
    turned = px.Log(dict(sorted(log.items())))
    assert list(turned)[2] == "parts.10"
    stacked = jax.jit(lambda log: log.stack("parts.*"))(turned)
    assert_close(stacked, jnp.stack(expected))


def test_stack_calls():
    cell, x = linear(0), jnp.ones(2)
    _, log = px.ForwardHook(Chain(cell))(x)
    expected = []
    for _ in range(3):
        expected.append(cell(x))
        x = jnp.tanh(expected[-1])
    assert_close(log.stack("cell"), jnp.stack(expected))


def test_order_of_several_numbers_and_names():
    keys = ["z.0.x", "z.10.x#2", "z.10.x", "a.1.x", "z.2.x", "z.10.x#10", "a.0.x"]
    log = px.Log({key: i for i, key in enumerate(keys)})
    assert log.stack("*.*.x").tolist() == [0, 4, 2, 1, 5, 6, 3]


def test_stack_of_pytrees():
    fn = lambda x: {"max": x.max(), "rest": (x, None)}
    _, log = px.ForwardHook(Seq([linear(0), linear(1)]), log_fn=fn)(jnp.ones(2))
    stacked = log.stack("parts.*")
    assert list(stacked) == ["max", "rest"]
    assert stacked["max"].tolist() == [log[f"parts.{i}"]["max"] for i in (0, 1)]
    assert stacked["rest"][0].shape == (2, 2) and stacked["rest"][1] is None


def test_stack_of_scanned_entries():
    run = lambda cell, x: jax.lax.scan(lambda x, _: (cell(x), None), x, length=3)[0]
    model = Seq([Whole(linear(0), run), Whole(linear(1), run)])
    _, log = px.ForwardHook(model)(jnp.ones(2))
    one = log.select("parts.1.part")
    assert one.axes == {"parts.1.part": log.axes["parts.1.part"]}
    stacked = log.stack("parts.*.part")
    assert stacked.shape == (2, 3, 2)
    assert jnp.array_equal(stacked[1], log["parts.1.part"])


UNLIKE = {
    "shape": (jnp.ones(2), jnp.ones((2, 3)), r"'a\.0' is f32\[2\] and 'a\.1' is f32\["),
    "dtype": (jnp.ones(2), np.ones(2, int), r"'a\.0' is f32\[2\] and 'a\.1' is i64\["),
    "structure": (
        (jnp.ones(2),),
        [jnp.ones(2)],
        r"'a\.0' is PyTreeDef\(\(\*,\)\) and 'a\.1' is PyTreeDef\(\[\*\]\)",
    ),
    "number": (jnp.ones(2), (jnp.ones(2), jnp.ones(1)), r"is f32\[2\], f32\[1\]\."),
}


@pytest.mark.parametrize("case", UNLIKE)
def test_stack_of_what_is_unlike(case):
    first, second, match = UNLIKE[case]
    log = px.Log({"a.0": first, "a.1": second})
    with pytest.raises(px.LogShapeError, match=match) as error:
        log.stack("a.*")
    assert str(error.value).startswith("`log.stack('a.*')` needs entries of one shape")
    # What the message says to write.
    assert log.map(jnp.mean).select("a.0").stack("a.*") is not None
