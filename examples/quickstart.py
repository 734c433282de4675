"""Looks inside a trained model, without editing it: `python examples/quickstart.py`.

The model (`g2p.py`) reads the letters of a word with a GRU, the encoder, and writes
phonemes with another, the decoder. Both run in a `jax.lax.scan`. For a word, this shows

1. activations: what each part of the model returns, at every step of the scans;
2. gradients: how the loss depends on that, and so which letters matter;
3. patches: what the model writes if the encoder's output is replaced by the one for a
    second word, or by a mixture of the two;

as tables, and 1 and 2 also as a picture, `examples/quickstart.png`. For other words:
`python examples/quickstart.py WORD1 WORD2`.
"""

import argparse
import itertools as it
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import g2p
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

import peex as px


try:
    from matplotlib.figure import Figure
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from tqdm import tqdm
except ModuleNotFoundError as e:
    raise ModuleNotFoundError(
        f"The examples need the package `{e.name}`, which is not installed. Install it "
        'with: pip install -e ".[examples]"'
    ) from e


class Word(NamedTuple):
    """A word, and what the model writes for it: phonemes, of which the last is `</s>`
    unless the model reached its limit of steps.
    """

    spelling: str
    letters: Int[Array, "letters"]
    phonemes: list[str]

    def __str__(self) -> str:
        return f"{self.spelling!r} ({' '.join(self.phonemes).removesuffix(' </s>')})"


class Loop(NamedTuple):
    """One of the two scans: the tokens at each of its steps, and L2 norms."""

    tokens: dict[str, list[str]]
    norms: dict[str, list[float]]


class Replace(px.AbstractHook):
    """Puts its own array in place of what the model computed."""

    new: Array

    def __call__(self, value: Array) -> Array:
        return self.new


def write(model: g2p.G2P, spelling: str, letters: Int[Array, "letters"]) -> Word:
    """Runs the model as it is."""
    logits = eqx.filter_jit(model)(letters)
    phonemes = [*g2p.decode(logits), "</s>"][: len(logits)]
    return Word(spelling, letters, phonemes)


def get_activations(model: g2p.G2P, word: Word) -> px.Log:
    """What every layer returns. Those in a scan have a leading axis, of its steps."""
    hooked = px.ForwardHook(model)
    _, log = eqx.filter_jit(hooked)(word.letters, steps=len(word.phonemes))
    return log


def loss(
    model: g2p.G2P, letters: Int[Array, "letters"], phonemes: Int[Array, "steps"]
) -> Float[Array, ""]:
    """Cross entropy, in nats: minus the log-probability of these phonemes."""
    logits = model(letters, steps=len(phonemes))
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), phonemes[:, None], axis=-1)
    return -jnp.sum(chosen)


def get_gradients(model: g2p.G2P, word: Word) -> tuple[Float[Array, ""], px.Log]:
    """The loss of the model's own phonemes, and its gradients with respect to what
    every layer returns.
    """
    phonemes = jnp.array([g2p.PHONEMES.index(p) for p in word.phonemes])
    value_and_grad = eqx.filter_jit(px.value_and_grad(loss))
    (value, logs), _ = value_and_grad(model, word.letters, phonemes)
    return value, logs.backward


def get_state(model: g2p.G2P, word: Word) -> Float[Array, "hidden"]:
    """The encoder's output. It isn't a layer, so it is logged only where asked for."""
    hooked = px.ForwardHook(model, where="encoder")
    _, log = eqx.filter_jit(hooked)(word.letters)
    return log["encoder"]


def patch(
    model: g2p.G2P, letters: Int[Array, "letters"], state: Float[Array, "hidden"]
) -> Float[Array, "steps phonemes"]:
    """The model's logits if the encoder's output is `state`."""
    hooked = px.ForwardHook(model, Replace(state), log_fn=None, where="encoder")
    logits, _ = hooked(letters)
    return logits


def swap(model: g2p.G2P, words: Sequence[Word]) -> list[tuple[str, str, str]]:
    """For each word, with the encoder's output for each: what is written."""
    run = eqx.filter_jit(patch)
    rows = []
    for word, source in it.product(words, repeat=2):
        # Another patch is another array in the same program: nothing compiles anew.
        logits = run(model, word.letters, get_state(model, source))
        rows.append((word.spelling, source.spelling, " ".join(g2p.decode(logits))))
    return rows


def mix(model: g2p.G2P, word1: Word, word2: Word) -> list[tuple[str, str]]:
    """For ranges of a, what is written from `(1 - a) * state1 + a * state2`."""
    state1, state2 = get_state(model, word1), get_state(model, word2)
    a = jnp.linspace(0, 1, 101)
    states = (1 - a[:, None]) * state1 + a[:, None] * state2
    # An array in a hook is traced like any other, so that it can be batched too.
    run = eqx.filter_jit(eqx.filter_vmap(patch, in_axes=(None, None, 0)))
    written = [" ".join(g2p.decode(x)) for x in run(model, word1.letters, states)]
    rows = []
    pairs = zip(written, a.tolist(), strict=True)
    for phonemes, group in it.groupby(pairs, key=lambda pair: pair[0]):
        fractions = [fraction for _, fraction in group]
        rows.append((f"{fractions[0]:.2f} to {fractions[-1]:.2f}", phonemes))
    return rows


def get_loops(word: Word, activations: px.Log, gradients: px.Log) -> list[Loop]:
    """What there is to show of the encoder and of the decoder."""
    written, read = word.phonemes, ["<s>", *word.phonemes[:-1]]
    tokens = {
        "encoder": {"Letter": [*word.spelling, "</s>"]},
        "decoder": {"Phoneme": written, "Phoneme read": read},
    }
    loops = []
    for part in tokens:
        cell, embedding = f"{part}.cell", f"{part}.embedding"
        arrays = {
            cell: activations[cell],
            f"{cell} gradient": gradients[cell],
            f"{embedding} gradient": gradients[embedding],
        }
        norms = {k: jnp.linalg.norm(x, axis=-1).tolist() for k, x in arrays.items()}
        loops.append(Loop(tokens[part], norms))
    return loops


def make_table(
    text: Sequence[str], numbers: Sequence[str], rows: Iterable[tuple[Any, ...]]
) -> Table:
    """A table with columns for text, then columns for numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in text:
        table.add_column(column, overflow="fold")
    for column in numbers:
        table.add_column(column, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*(x if isinstance(x, str) else f"{x:#.4g}" for x in row))
    return table


def site_table(activations: px.Log, gradients: px.Log) -> Table:
    rows = []
    for key, x in activations.items():
        norm, gradient_norm = jnp.linalg.norm(x), jnp.linalg.norm(gradients[key])
        rows.append((key, str(x.shape), x.mean(), x.std(), norm, gradient_norm))
    numbers = ("Mean", "Std", "L2 norm", "L2 norm of gradient")
    return make_table(("Site", "Shape"), numbers, rows)


def loop_table(loop: Loop) -> Table:
    rows = zip(*loop.tokens.values(), *loop.norms.values(), strict=True)
    return make_table(list(loop.tokens), list(loop.norms), rows)


def draw(path: pathlib.Path, word: Word, loops: Sequence[Loop]) -> None:
    """Saves bar charts of the norms at each step: a column of panels for each loop."""
    # Inches. Phonemes need more of them for their names than letters do.
    widths = [0.3 * (len(word.spelling) + 1), 0.45 * len(word.phonemes)]
    figure = Figure(figsize=(max(11, sum(widths) + 2), 8.5), layout="constrained")
    title = f"Activations, and gradients of the loss, for {word.spelling!r}"
    figure.suptitle(title, fontsize="x-large")
    panels = figure.subplots(3, 2, width_ratios=widths).T
    # Of Okabe and Ito's palette for the colour-blind.
    colours = ("#0072B2", "#E69F00", "#009E73")
    for column, loop in zip(panels, loops, strict=True):
        # The state goes with what is written (if so), the embedding with what is read.
        first, last = list(loop.tokens)[0], list(loop.tokens)[-1]
        rows = zip(column, loop.norms, (first, first, last), colours, strict=True)
        for ax, name, label, colour in rows:
            steps = range(len(loop.norms[name]))
            ax.bar(steps, loop.norms[name], color=colour)
            ax.set_xticks(steps, loop.tokens[label])
            kind = "gradient" if name.endswith("gradient") else "output"
            ax.set(title=name, xlabel=label, ylabel=f"L2 norm of {kind}")
            ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def parse(argv: Sequence[str] | None) -> tuple[list[tuple[str, Array]], pathlib.Path]:
    """The two words with the ids of their letters, and where the picture goes."""
    parser = argparse.ArgumentParser(
        usage="%(prog)s [-h] [--out PATH] [WORD1 WORD2]",
        description="Looks inside a model that writes the phonemes of words.",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="WORD",
        help="two words, of letters a-z (default: photograph photography)",
    )
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=pathlib.Path(__file__).with_suffix(".png"),
        metavar="PATH",
        help="where to save the picture, a .png (default: next to this script)",
    )
    args = parser.parse_args(argv)
    words = args.words or ["photograph", "photography"]
    if len(words) != 2:
        parser.error(f"expected two words, or none for the default; got {len(words)}")
    if args.out.suffix.lower() != ".png" or not args.out.parent.is_dir():
        parser.error(f"--out must be a .png in a folder that exists; got {args.out}")
    try:
        return [(word.lower(), g2p.encode(word)) for word in words], args.out
    except ValueError as e:
        parser.error(str(e))


def main(argv: Sequence[str] | None = None) -> None:
    words, out = parse(argv)
    # `disable=None`: no bar where nobody would see it move.
    with tqdm(total=8, leave=False, disable=None) as bar:

        def stage(name: str, fn: Callable[..., Any], *args: Any) -> Any:
            bar.set_description(name)
            result = fn(*args)
            bar.update()
            return result

        model = stage("Loading", g2p.load)
        word1, word2 = (stage("Writing", write, model, *word) for word in words)
        activations = stage("Activations", get_activations, model, word1)
        value, gradients = stage("Gradients", get_gradients, model, word1)
        swapped = stage("Patches", swap, model, (word1, word2))
        mixtures = stage("Mixtures", mix, model, word1, word2)
        loops = get_loops(word1, activations, gradients)
        stage("Picture", draw, out, word1, loops)

    console = Console()
    console.width = min(console.width, 100) if console.is_terminal else 100
    for part in (
        f"What the parts of the model return for {word1}, and",
        f"the gradient of the loss ({value:#.4g} nats) with respect to that:",
        site_table(activations, gradients),
        "L2 norms at each step of the encoder:",
        loop_table(loops[0]),
        "L2 norms at each step of the decoder:",
        loop_table(loops[1]),
        "Patches of the encoder's output:",
        make_table(("Letters of", "Output for", "Phonemes"), (), swapped),
        f"Mixtures, (1 - a) * output for {word1.spelling!r} "
        f"+ a * output for {word2.spelling!r}:",
        make_table(("a", "Phonemes"), (), mixtures),
        f"Saved the picture as {out}",
    ):
        is_text = isinstance(part, str)
        console.print(part, soft_wrap=is_text, markup=False, highlight=False)


if __name__ == "__main__":
    main()
