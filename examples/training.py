"""Trains what the experiments look into, with a bar that shows how far it is."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray


try:
    import optax
    from tqdm import tqdm
except ModuleNotFoundError as e:
    raise ModuleNotFoundError(
        f"The experiments need the package `{e.name}`, which is not installed. Install "
        'it with: pip install -e ".[experiments]"'
    ) from e

T = TypeVar("T")


def fit(
    tree: T,
    loss: Callable[..., Float[Array, ""]],
    args: Sequence[Any] = (),
    *,
    steps: int,
    rate: float,
    name: str,
    key: PRNGKeyArray,
) -> tuple[T, list[float]]:
    """Minimises a loss with Adam, at a rate that rises for a while and then falls to 0.

    A hundred steps are one scan, so that a bar can move in between.

    **Arguments:**

    - `tree`: what is trained: all floating-point arrays in it.
    - `loss`: a function of it, of `args`, and of a key for each step. A sum of losses,
        each of its own part of `tree`, trains many at once: Adam takes each number by
        itself.
    - `args`: what else the loss needs. (What it closes over is compiled in.)
    - `rate`: the highest learning rate.
    - `name`: what the bar says.

    **Returns:**

    What was trained, and the loss at each step.
    """
    warm = min(100, steps // 2)
    schedule = optax.warmup_cosine_decay_schedule(0.0, rate, warm, steps)
    optimiser = optax.adam(schedule)

    @eqx.filter_jit
    def some_steps(tree, state, args, keys):
        trained, fixed = eqx.partition(tree, eqx.is_inexact_array)

        def step(carry, key):
            trained, state = carry
            of = lambda trained: loss(eqx.combine(trained, fixed), *args, key)
            value, grads = jax.value_and_grad(of)(trained)
            updates, state = optimiser.update(grads, state)
            return (optax.apply_updates(trained, updates), state), value

        (trained, state), values = jax.lax.scan(step, (trained, state), keys)
        return eqx.combine(trained, fixed), state, values

    state, losses = optimiser.init(eqx.filter(tree, eqx.is_inexact_array)), []
    keys = jr.split(key, steps)
    # `disable=None`: no bar where nobody would see it move.
    with tqdm(total=steps, desc=name, leave=False, disable=None) as bar:
        for start in range(0, steps, 100):
            tree, state, values = some_steps(
                tree, state, args, keys[start : start + 100]
            )
            losses += values.tolist()
            bar.set_postfix(loss=f"{jnp.mean(values):.3g}")
            bar.update(len(values))
    return tree, losses
