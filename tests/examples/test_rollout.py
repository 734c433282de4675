"""`examples/rollout.py` on few episodes: the cart next to the equations in NumPy, the
recorded rollout next to stepping by hand and to the rollout without hooks.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import rollout
from closeness import assert_close
from pictures import check_picture

import peex as px


# Optax promotes dtypes.
pytestmark = pytest.mark.usefixtures("standard_promotion")
STEPS, N, SIZE = 5, 2, 3
POLICY = rollout.Policy(SIZE, key=jr.key(0))
# The first is off the track after step 2, whichever way it is pushed.
CART = rollout.Cart(*jnp.array([[2.25, 0.0], [3.0, 0.1], [0.01, 0.02], [0.0, -0.1]]))
KEY = jr.key(1)


@pytest.fixture(scope="module")
def plain():
    return eqx.filter_jit(rollout.rollout)(POLICY, CART, KEY, STEPS)


@pytest.fixture(scope="module")
def recorded():
    hooked = px.ForwardHook(POLICY, method=rollout.rollout)
    return eqx.filter_jit(hooked)(CART, KEY, STEPS)


def step_by_hand(cart, right):
    """As Gymnasium writes it, of one cart, in float64."""
    x, x_dot, theta, theta_dot = cart
    gravity, masspole, total_mass, length = 9.8, 0.1, 1.1, 0.5
    polemass_length, force = masspole * length, 10.0 if right else -10.0
    costheta, sintheta = np.cos(theta), np.sin(theta)
    temp = (force + polemass_length * theta_dot**2 * sintheta) / total_mass
    thetaacc = (gravity * sintheta - costheta * temp) / (
        length * (4.0 / 3.0 - masspole * costheta**2 / total_mass)
    )
    xacc = temp - polemass_length * thetaacc * costheta / total_mass
    rates = np.array([x_dot, xacc, theta_dot, thetaacc])
    return np.array(cart) + 0.02 * rates


def test_the_cart():
    cart = (0.1, -1.0, 0.15, 2.0)
    for right in (0, 1):
        found = rollout.push(rollout.Cart(*map(jnp.float32, cart)), jnp.array(right))
        assert_close(np.array(found), step_by_hand(cart, right), 1e-6)
    far, tilted = jnp.array([2.39, 2.41, -2.41, 0.0]), jnp.array([0.2, 0.0, 0.0, -0.21])
    lost = rollout.is_lost(rollout.Cart(far, far, tilted, tilted))
    assert lost.tolist() == [False, True, True, True]


def test_hooks_change_nothing(plain, recorded):
    output, _ = recorded
    assert eqx.tree_equal(output, plain)  # bitwise, what is carried too


def test_what_is_recorded_is_stepping_by_hand(plain, recorded):
    _, episodes = plain
    _, log = recorded
    assert list(log) == ["encoder", "cell", "actor", "critic"]
    assert log["cell"].shape == (STEPS, N, SIZE)
    assert log["actor"].shape == (STEPS, N, 2) and log["critic"].shape == (STEPS, N)
    assert [axis.kind for axis in log.axes["cell"]] == ["step", "batch"]
    run = eqx.filter_jit(POLICY)
    for i in range(N):
        cart, state, finished = [x[i] for x in CART], POLICY.initial_state(), False
        for t in range(STEPS):
            assert_close(np.array([x[t, i] for x in episodes.cart]), np.array(cart))
            assert episodes.finished[t, i] == finished
            logits, value, state = run(cart[0], cart[2], state)
            assert_close(log["cell"][t, i], state, 1e-5)
            assert_close(log["actor"][t, i], logits, 1e-5)
            assert_close(log["critic"][t, i], value, 1e-5)
            if not finished:
                now = step_by_hand(cart, episodes.action[t, i] == 1)
                cart = [jnp.float32(x) for x in now]
            finished = finished or abs(cart[0]) > 2.4 or abs(cart[2]) > 0.2094395


def test_what_is_over_stays_over(plain):
    (cart, _, finished), episodes = plain
    dead = episodes.finished.astype(int).T
    assert dead.tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]
    assert finished.tolist() == [True, False]
    assert episodes.cart.x[3, 0] == episodes.cart.x[4, 0] == cart.x[0] > 2.4
    run = rollout.Recorded(episodes, jnp.zeros((STEPS, N, SIZE)))
    assert run.survived() == 4.0


def test_the_loss_by_hand():
    n, steps, key = 3, 30, jr.key(4)
    start_key, run_key = jr.split(key)
    start = rollout.at_rest(n, start_key)
    _, there = eqx.filter_jit(rollout.rollout)(POLICY, start, run_key, steps)
    there = jax.tree.map(lambda x: np.asarray(x, float), there)
    assert there.finished.any()
    terms = []
    for i in range(n):
        advantage, mine = 0.0, []
        for t in reversed(range(steps - 1)):
            if there.finished[t, i]:
                continue
            value, after = there.value[t, i], there.value[t + 1, i]
            ends = bool(there.finished[t + 1, i])
            surprise = 0.1 + (0 if ends else 0.99 * after) - value
            advantage = surprise + (0 if ends else 0.99 * 0.95 * advantage)
            logs = there.logits[t, i] - np.log(np.sum(np.exp(there.logits[t, i])))
            taken = logs[int(there.action[t, i])]
            mine.append((advantage, taken, -np.sum(np.exp(logs) * logs)))
        terms += mine
    advantage, taken, entropy = np.array(terms).T
    scaled = (advantage - advantage.mean()) / advantage.std()
    # (The critic's error is the advantage itself.)
    expected = np.mean(-taken * scaled + 0.5 * advantage**2 - 0.01 * entropy)
    found = eqx.filter_jit(rollout.loss)(POLICY, n, steps, key)
    assert_close(float(found), float(expected), 1e-4)


def test_read_off():
    random = np.random.default_rng(0)
    inputs, finished = random.normal(size=(6, 4, 2)), np.zeros((6, 4), bool)
    finished[4:, 1:] = True
    outputs = inputs @ [1.0, -2.0] + 3
    assert rollout.read_off(inputs, outputs, finished) == pytest.approx(1)
    wrong = np.where(finished, 1e3, outputs)
    assert rollout.read_off(inputs, wrong, finished) == pytest.approx(1)
    noise = random.normal(size=(6, 4))
    assert rollout.read_off(inputs, noise, finished) < 0.9


def test_it_learns(tmp_path, capsys):
    out = tmp_path / "x.png"
    result = rollout.main(
        size=16, n=32, steps=50, updates=100, recorded=10, longest=60, out=out
    )
    check_picture(out)
    assert result.after.units.shape == (60, 10, 16)
    before, after = result.before.survived(), result.after.survived()
    printed = capsys.readouterr().out
    assert "Steps that the pole stays up, of 60 at most:" in printed
    assert f"{before:.1f}  before training" in printed and f"{after:.1f}  af" in printed
    assert after > before + 10
