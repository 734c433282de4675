"""Finds where in a network a variable of an algorithm is: distributed alignment search.

A GRU reads pairs of symbols. After each pair it says whether the number of pairs so far
whose two symbols differ is even: for four symbols a b c d, first whether `a == b`, then
whether `(a == b) == (c == d)`. Does it compute the second from the first, and if so,
where is that?

Distributed alignment search ([Geiger et al., 2023](https://arxiv.org/abs/2303.02536))
asks by an interchange: at one time step, a subspace of the state is given the value
that it has in a run on other symbols, the source. If the subspace is where `a == b` is,
then the network says what the algorithm does with the source's `a == b` and the base's
`c == d`. The subspace is trained to make that so (`px.RotateHook`). Where the accuracy
of new interchanges stays near a half, which is chance, the variable isn't.

    pip install -e ".[experiments]" && python examples/alignment_search.py

This trains several networks, and a subspace for each of them at each time step, all at
once by `vmap`. It prints the accuracies, and saves `examples/alignment_search.png`.
"""

import argparse
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from training import fit

import peex as px


try:
    from matplotlib.figure import Figure
except ModuleNotFoundError as e:
    raise ModuleNotFoundError(
        f"The experiments need the package `{e.name}`, which is not installed. Install "
        'it with: pip install -e ".[experiments]"'
    ) from e


PICTURE = pathlib.Path(__file__).with_suffix(".png")


class Parity(eqx.Module):
    """Reads symbols with a GRU, and gives the logit of "even" after each pair."""

    cell: eqx.nn.GRUCell
    output: eqx.nn.Linear
    symbols: int = eqx.field(static=True)

    def __init__(self, symbols: int, width: int, *, key: PRNGKeyArray):
        ckey, okey = jr.split(key)
        self.cell = eqx.nn.GRUCell(symbols, width, key=ckey)
        self.output = eqx.nn.Linear(width, "scalar", key=okey)
        self.symbols = symbols

    def __call__(self, tokens: Int[Array, "steps"]) -> Float[Array, "steps/2"]:
        def step(state, token):
            state = self.cell(jax.nn.one_hot(token, self.symbols), state)
            return state, state

        _, states = jax.lax.scan(step, jnp.zeros(self.cell.hidden_size), tokens)
        return jax.vmap(self.output)(states[1::2])


class Examples(NamedTuple):
    """Four symbols each, and whether those of the two pairs are equal: each is, with a
    probability of a half.
    """

    tokens: Int[Array, "n 4"]
    equal: Bool[Array, "n 2"]


def make_examples(key: PRNGKeyArray, symbols: int, n: int) -> Examples:
    akey, bkey, ckey = jr.split(key, 3)
    first = jr.randint(akey, (n, 2), 0, symbols)
    other = (first + jr.randint(bkey, (n, 2), 1, symbols)) % symbols
    equal = jr.bernoulli(ckey, 0.5, (n, 2))
    tokens = jnp.stack([first, jnp.where(equal, first, other)], axis=-1)
    return Examples(tokens.reshape(n, 4), equal)


def cross_entropy(logits: Float[Array, "..."], right: Bool[Array, "..."]) -> Array:
    return jnp.mean(jax.nn.softplus(jnp.where(right, -logits, logits)))


def accuracy(logits: Float[Array, "..."], right: Bool[Array, "..."]) -> Array:
    return jnp.mean((logits > 0) == right)


def batched(model: Parity, tokens: Int[Array, "n steps"]) -> Float[Array, "n steps/2"]:
    return jax.vmap(model)(tokens)


def get_states(model: Parity, tokens: Int[Array, "n steps"]) -> px.Log:
    """The states, of shape `(steps, n, width)`."""
    return px.ForwardHook(model, where="cell", method=batched)(tokens)[1]


def wrap(
    model: Parity, site: Int[Array, ""], rank: int, key: PRNGKeyArray
) -> px.ForwardHook:
    """The network, with some directions of its state at step `site` taken from another
    run. These are random at first.
    """
    source = get_states(model, jnp.zeros((1, 4), int))  # until there is one
    rotate = px.RotateHook(source, model.cell.hidden_size, rank, key)
    hook = px.At(rotate, (jnp.arange(4) == site)[:, None, None])
    return px.ForwardHook(model, hook, None, where="cell", method=batched)


def interchange(
    hooked: px.ForwardHook, key: PRNGKeyArray, n: int
) -> tuple[Float[Array, "n"], Bool[Array, "n"]]:
    """The network's last logits for `n` bases, of which a part of the state is that of
    as many sources; and what the algorithm says.
    """
    bkey, skey = jr.split(key)
    symbols = hooked.model.symbols
    base, source = make_examples(bkey, symbols, n), make_examples(skey, symbols, n)
    states = get_states(hooked.model, source.tokens)
    hooked = eqx.tree_at(lambda h: h.hook_fn.hook.source, hooked, states)
    logits, _ = hooked(base.tokens)
    return logits[:, -1], source.equal[:, 0] == base.equal[:, 1]


def train_networks(
    make: Callable[[PRNGKeyArray], Parity],
    *,
    seeds: int,
    steps: int,
    batch: int,
    key: PRNGKeyArray,
) -> Parity:
    """Several networks, stacked."""
    ikey, tkey = jr.split(key)
    models = eqx.filter_vmap(make)(jr.split(ikey, seeds))

    def loss(models, key):
        def one(model, key):
            tokens, equal = make_examples(key, model.symbols, batch)
            right = jnp.stack([equal[:, 0], equal[:, 0] == equal[:, 1]], axis=1)
            return cross_entropy(jax.vmap(model)(tokens), right)

        return jnp.sum(eqx.filter_vmap(one)(models, jr.split(key, seeds)))

    return fit(models, loss, steps=steps, rate=5e-3, name="Networks", key=tkey)[0]


def search(
    models: Parity, *, rank: int, steps: int, batch: int, tests: int, key: PRNGKeyArray
) -> tuple[Float[Array, "seeds steps"], Float[Array, "seeds steps"]]:
    """Trains directions for each network at each time step, all of them side by side.

    **Returns:** the accuracies of new interchanges, with the random directions from
    which that starts, and with the trained ones.
    """
    wkey, skey, tkey = jr.split(key, 3)
    seeds = len(models.output.bias)
    each, sites = jnp.repeat(jnp.arange(seeds), 4), jnp.tile(jnp.arange(4), seeds)
    copies = jax.tree.map(lambda x: x[each] if eqx.is_array(x) else x, models)
    wrap_one = lambda model, site, key: wrap(model, site, rank, key)
    hooked = eqx.filter_vmap(wrap_one)(copies, sites, jr.split(wkey, 4 * seeds))
    random, fixed = eqx.partition(hooked, px.trainable(hooked))

    def loss(trained, fixed, key):
        one = lambda hooked, key: cross_entropy(*interchange(hooked, key, batch))
        keys = jr.split(key, 4 * seeds)
        return jnp.sum(eqx.filter_vmap(one)(eqx.combine(trained, fixed), keys))

    @eqx.filter_jit
    def test(trained, fixed):
        one = lambda hooked: accuracy(*interchange(hooked, tkey, tests))
        return eqx.filter_vmap(one)(eqx.combine(trained, fixed)).reshape(seeds, 4)

    kwargs = {"steps": steps, "rate": 1e-2, "name": "Directions", "key": skey}
    trained, _ = fit(random, loss, (fixed,), **kwargs)
    return test(random, fixed), test(trained, fixed)


class Result(NamedTuple):
    """Accuracies: of each network, and of its interchanges at each step, with random
    directions and with trained ones.
    """

    networks: Float[Array, "seeds"]
    random: Float[Array, "seeds steps"]
    trained: Float[Array, "seeds steps"]


def main(
    *,
    seeds: int = 4,
    symbols: int = 4,
    width: int = 16,
    rank: int = 2,
    steps: int = 2000,
    search_steps: int = 600,
    batch: int = 128,
    tests: int = 2000,
    seed: int = 0,
    out: pathlib.Path = PICTURE,
) -> Result:
    nkey, skey, tkey = jr.split(jr.key(seed), 3)
    make = lambda key: Parity(symbols, width, key=key)
    models = train_networks(make, seeds=seeds, steps=steps, batch=batch, key=nkey)
    random, trained = search(
        models, rank=rank, steps=search_steps, batch=batch, tests=tests, key=skey
    )
    tokens, equal = make_examples(tkey, symbols, tests)
    right = equal[:, 0] == equal[:, 1]
    own = lambda model: accuracy(batched(model, tokens)[:, -1], right)
    result = Result(eqx.filter_vmap(own)(models), random, trained)
    draw(out, result, rank)
    show(result, out)
    return result


def show(result: Result, out: pathlib.Path) -> None:
    print("Accuracy of each network, and of its interchanges after each symbol, with")
    print("trained directions (and random ones):")
    for i, own in enumerate(result.networks.tolist()):
        pairs = zip(result.trained[i].tolist(), result.random[i].tolist(), strict=True)
        print(f"{own:.3f}  ", *(f"{a:.3f} ({b:.3f})  " for a, b in pairs))
    best = int(np.argmax(np.mean(result.trained, axis=0)))
    others = np.delete(np.asarray(result.trained), best, axis=1)
    least, most = np.min(result.trained[:, best]), np.max(others)
    print(f"After symbol {best + 1}, {least:.3f} or more.", end=" ")
    print(f"Elsewhere, {most:.3f} or less; chance is 0.5.")
    print(f"Saved the picture as {out}")


def draw(out: pathlib.Path, result: Result, rank: int) -> None:
    figure = Figure(figsize=(8, 5), layout="constrained")
    ax = figure.subplots()
    steps = np.arange(result.trained.shape[1])
    kinds = {
        "trained": ("o", "#0072B2", -0.1, f"{rank} trained directions"),
        "random": ("x", "#E69F00", 0.1, f"{rank} random directions"),
    }
    for name, (marker, colour, shift, label) in kinds.items():
        values = np.asarray(getattr(result, name))
        width = 0.12 * (np.arange(len(values)) / max(1, len(values) - 1) - 0.5)
        x = steps + shift + width[:, None]
        ax.plot(x.ravel(), values.ravel(), marker, color=colour, label=label)
    ax.axhline(0.5, color="grey", linestyle="--", linewidth=1)
    ax.text(steps[-1] + 0.45, 0.505, "chance", color="grey", ha="right")
    ax.axhline(1, color="grey", linewidth=0.5)
    names = ["a", "a b: a pair", "a b c", "a b c d: both pairs"]
    ax.set_xticks(steps, names)
    ax.set_xlim(-0.5, steps[-1] + 0.5)
    ax.set(
        xlabel="symbols read when the state is changed",
        ylabel="interchange accuracy",
        title=f"Where {len(result.trained)} networks keep whether a == b",
    )
    ax.legend(loc="upper right")
    ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Distributed alignment search.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=PICTURE,
        help="where to save the picture (default: next to this script)",
    )
    main(**vars(parser.parse_args()))
