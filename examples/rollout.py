"""What the units of a recurrent policy do while it balances a pole, seeing neither
how fast the cart nor how fast the pole moves: recorded in the rollout itself.

The cart and the pole are those of [Barto, Sutton and Anderson,
1983](https://doi.org/10.1109/TSMC.1983.6313077), with the equations and numbers of
[Gymnasium's CartPole](https://gymnasium.farama.org/environments/classic_control/cart_pole/).
The policy, an actor and a critic on one GRU, is told the two positions alone, and has
to find out the velocities from what it remembers. It is trained by advantage
actor-critic ([Mnih et al., 2016](https://arxiv.org/abs/1602.01783)) with generalised
advantages ([Schulman et al., 2016](https://arxiv.org/abs/1506.02438)), through whole
episodes.

    pip install -e ".[experiments]" && python examples/rollout.py

It takes half a minute, and prints how long the pole stays up before and after, and how
much of the velocities can be read off the units. A picture of an episode is saved as
`examples/rollout.png`.
"""

import argparse
import pathlib
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


class Cart(NamedTuple):
    """A cart with a pole on it, or many of them: m, m/s, rad, rad/s."""

    x: Float[Array, "*n"]
    speed: Float[Array, "*n"]
    angle: Float[Array, "*n"]
    turning: Float[Array, "*n"]


def at_rest(n: int, key: PRNGKeyArray) -> Cart:
    """Carts that nearly stand still, with poles that are nearly upright."""
    return Cart(*jr.uniform(key, (4, n), minval=-0.05, maxval=0.05))


def push(cart: Cart, right: Int[Array, "*n"]) -> Cart:
    """One step of 20 ms by Euler's method, pushed by 10 N to the left (0) or right (1).
    Gravity 9.8 m/s^2, cart 1 kg, pole 0.1 kg, and 0.5 m to its centre.
    """
    x, speed, angle, turning = cart
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    force = jnp.where(right == 1, 10.0, -10.0)
    pushed = (force + 0.1 * 0.5 * turning**2 * sin) / 1.1
    turned = (9.8 * sin - cos * pushed) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    moved = pushed - 0.1 * 0.5 * turned * cos / 1.1
    rates = Cart(speed, moved, turning, turned)
    return Cart(*(now + 0.02 * rate for now, rate in zip(cart, rates, strict=True)))


def is_lost(cart: Cart) -> Bool[Array, "*n"]:
    """Off the track of 2.4 m to each side, or tilted by more than 12 degrees."""
    return (jnp.abs(cart.x) > 2.4) | (jnp.abs(cart.angle) > jnp.pi * 12 / 180)


class Policy(eqx.Module):
    """Two logits, to push left and right, and the value of the state."""

    encoder: eqx.nn.Linear
    cell: eqx.nn.GRUCell
    actor: eqx.nn.Linear
    critic: eqx.nn.Linear

    def __init__(self, size: int, *, key: PRNGKeyArray):
        keys = jr.split(key, 4)
        self.encoder = eqx.nn.Linear(2, size, key=keys[0])
        self.cell = eqx.nn.GRUCell(size, size, key=keys[1])
        self.actor = eqx.nn.Linear(size, 2, key=keys[2])
        self.critic = eqx.nn.Linear(size, "scalar", key=keys[3])

    def initial_state(self) -> Float[Array, " size"]:
        return jnp.zeros(self.cell.hidden_size)

    def __call__(
        self, x: Float[Array, ""], angle: Float[Array, ""], state: Float[Array, " size"]
    ) -> tuple[Float[Array, "2"], Float[Array, ""], Float[Array, " size"]]:
        seen = jnp.stack([x / 2.4, angle / 0.21])
        state = self.cell(jnp.tanh(self.encoder(seen)), state)
        return self.actor(state), self.critic(state), state


class Episodes(NamedTuple):
    """What there was at each step, `[steps, n]`.

    `finished`: whether an episode was over before the step. Once it is, it stays so:
    one that is lost in step 2 of 5 has 0, 0, 0, 1, 1.
    """

    cart: Cart
    finished: Bool[Array, "steps n"]
    logits: Float[Array, "steps n 2"]
    action: Int[Array, "steps n"]
    value: Float[Array, "steps n"]


def rollout(
    policy: Policy, cart: Cart, key: PRNGKeyArray, steps: int
) -> tuple[tuple[Cart, Float[Array, "n size"], Bool[Array, " n"]], Episodes]:
    """One episode from each of these carts on: what is carried from step to step, at
    the end; and what there was at each.
    """
    n = cart.x.shape[0]
    state = jnp.broadcast_to(policy.initial_state(), (n, policy.cell.hidden_size))

    def step(carry, key):
        cart, state, finished = carry
        logits, value, state = jax.vmap(policy)(cart.x, cart.angle, state)
        action = jr.categorical(key, logits)
        there = Episodes(cart, finished, logits, action, value)
        # Where it is over the cart stays where it is.
        keep = lambda old, new: jnp.where(finished, old, new)
        cart = jax.tree.map(keep, cart, push(cart, action))
        return (cart, state, finished | is_lost(cart)), there

    carry = cart, state, jnp.zeros(n, bool)
    return jax.lax.scan(step, carry, jr.split(key, steps))


def loss(policy: Policy, n: int, steps: int, key: PRNGKeyArray) -> Float[Array, ""]:
    """Of an actor and a critic, over the steps of `n` episodes that weren't over: one
    point of reward for each, discounted by 0.99 a step.
    """
    start_key, key = jr.split(key)
    _, there = rollout(policy, at_rest(n, start_key), key, steps)
    # The last step only says what the one before is worth.
    alive, goes_on = 1.0 - there.finished[:-1], 1.0 - there.finished[1:]
    values = jax.lax.stop_gradient(there.value)
    surprise = 0.1 + 0.99 * goes_on * values[1:] - values[:-1]

    def back(advantage, here):
        surprise, goes_on = here
        advantage = surprise + 0.99 * 0.95 * goes_on * advantage
        return advantage, advantage

    _, advantages = jax.lax.scan(back, jnp.zeros(n), (surprise, goes_on), reverse=True)
    mean = lambda x: jnp.sum(alive * x) / jnp.sum(alive)
    scaled = advantages - mean(advantages)
    scaled = scaled / (jnp.sqrt(mean(scaled**2)) + 1e-6)
    logs = jax.nn.log_softmax(there.logits[:-1])
    taken = jnp.take_along_axis(logs, there.action[:-1, :, None], axis=-1)[..., 0]
    entropy = -jnp.sum(jnp.exp(logs) * logs, axis=-1)
    errors = there.value[:-1] - values[:-1] - advantages
    return mean(-taken * scaled + 0.5 * errors**2 - 0.01 * entropy)


class Recorded(NamedTuple):
    """Episodes, and what the units were at each step: `[steps, n, size]`."""

    episodes: Episodes
    units: Float[Array, "steps n size"]

    def survived(self) -> float:
        """For how many steps, on average."""
        return float(jnp.mean(jnp.sum(~self.episodes.finished, axis=0)))


@eqx.filter_jit
def record(policy: Policy, n: int, steps: int, key: PRNGKeyArray) -> Recorded:
    """The policy isn't changed for this: the rollout is run with a hook."""
    start_key, key = jr.split(key)
    hooked = px.ForwardHook(policy, where="cell", method=rollout)
    (_, episodes), log = hooked(at_rest(n, start_key), key, steps)
    return Recorded(episodes, log["cell"])


def read_off(
    inputs: Float[Array, "steps n inputs"],
    outputs: Float[Array, "steps n"],
    finished: Bool[Array, "steps n"],
) -> float:
    """Which share of the variance of something a linear map of the inputs explains:
    fitted to one half of the episodes, of the other half, without the steps behind the
    end.
    """
    here = 1.0 - np.asarray(finished)
    ones = np.ones_like(here)[..., None]
    inputs = np.concatenate([inputs, ones], axis=-1) * here[..., None]
    half = here.shape[1] // 2
    flat = lambda x, side: x[:, side].reshape(-1, *x.shape[2:])
    x, y = flat(inputs, slice(half)), flat(outputs * here, slice(half))
    weights, *_ = np.linalg.lstsq(x, y)
    x, y, weight = (flat(a, slice(half, None)) for a in (inputs, outputs, here))
    mean = np.sum(weight * y) / np.sum(weight)
    left = np.sum(weight * (y - x @ weights) ** 2)
    return float(1 - left / np.sum(weight * (y - mean) ** 2))


class Result(NamedTuple):
    """Before training and after; and for each velocity, how much of it is read off the
    two positions that the policy sees, and off its units.
    """

    before: Recorded
    after: Recorded
    shares: dict[str, tuple[float, float]]


def main(
    *,
    size: int = 32,
    n: int = 32,
    steps: int = 200,
    updates: int = 400,
    recorded: int = 100,
    longest: int = 500,
    out: pathlib.Path = PICTURE,
) -> Result:
    """Trains a policy of `size` units by so many `updates`, each from `n` episodes of
    `steps` steps, and records it in others, up to the `longest`.
    """
    model_key, train_key, record_key = jr.split(jr.key(0), 3)
    untrained = Policy(size, key=model_key)
    policy, _ = fit(
        untrained,
        lambda policy, key: loss(policy, n, steps, key),
        steps=updates,
        rate=1e-2,
        name="Training",
        key=train_key,
    )
    before, after = (
        record(p, recorded, longest, record_key) for p in (untrained, policy)
    )
    shares, there = {}, after.episodes
    seen = jnp.stack([there.cart.x, there.cart.angle], axis=-1)
    for name in ("speed", "turning"):
        found = getattr(there.cart, name), there.finished
        shares[name] = read_off(seen, *found), read_off(after.units, *found)
    result = Result(before, after, shares)
    draw(out, result)
    show(result, longest)
    print(f"Saved the picture as {out}")
    return result


def show(result: Result, longest: int) -> None:
    print(f"Steps that the pole stays up, of {longest} at most:")
    print(f"    {result.before.survived():6.1f}  before training")
    print(f"    {result.after.survived():6.1f}  after")
    print("Share of a velocity that a linear map reads off")
    print("             what is seen    the units")
    for name, (seen, units) in result.shares.items():
        print(f"    {name:8} {seen:12.3f} {units:12.3f}")


def draw(out: pathlib.Path, result: Result, shown: int = 200) -> None:
    """One episode before training and one after: the cart, and all units."""
    figure = Figure(figsize=(10, 6), layout="constrained")
    grid = figure.subplots(2, 2, sharex="col", height_ratios=[1, 2.2])
    # Units in the order of what they have to do with the pole's turning.
    cart = result.after.episodes.cart
    here = 1.0 - result.after.episodes.finished
    alike = jnp.einsum("tnu,tn,tn->u", result.after.units, cart.turning, here)
    order = jnp.argsort(alike)
    for column, (title, run) in enumerate(
        {"before training": result.before, "after training": result.after}.items()
    ):
        above, below = grid[:, column]
        finished = run.episodes.finished[:shown, 0]
        there = lambda x, finished=finished: jnp.where(
            finished, jnp.nan, x[: len(finished), 0]
        )
        # Of Okabe and Ito's palette for the colour-blind.
        above.plot(there(run.episodes.cart.angle) * 180 / jnp.pi, color="#0072B2")
        above.set_title(f"{title}: {int(jnp.sum(~finished))} steps of {len(finished)}")
        above.set_ylabel("angle (degrees)", color="#0072B2")
        speed = above.twinx()
        speed.plot(there(run.episodes.cart.turning), color="#E69F00", linewidth=1)
        speed.set_ylabel("turning (rad/s), not seen", color="#E69F00")
        units = jnp.where(finished[:, None], jnp.nan, run.units[: len(finished), 0])
        image = below.imshow(
            units[:, order].T,
            cmap="RdBu_r",
            vmin=-1,
            vmax=1,
            aspect="auto",
            interpolation="nearest",
        )
        below.set(xlabel="step", ylabel="unit (sorted by turning)")
        figure.colorbar(image, ax=below)
    figure.savefig(out, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A recurrent policy's units.")
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=PICTURE,
        help="where to save the picture (default: next to this script)",
    )
    main(**vars(parser.parse_args()))
