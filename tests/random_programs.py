"""Random programs, each with a twin by construction.

A plan is plain data, so that a failing one can be read and pasted into a test:

- `"linear"`, `"norm"`, `"gru"`: a layer, which is the site. Its output goes through
    `tanh`, as everything else maps a vector of 3 to a vector of 3.
- `("seq", plan, ...)`: one after the other. `("shared", plan)`: one module, stored at
    two attributes.
- `("under", (how, ...), plan)`: one module that is called once under each `how` of
    `HOWS`: in a loop, in a `vmap`, in an inner derivative, ...
- `("branch", after, plan, plan[, plan])`: a `cond` or `switch`; each branch calls
    `after` (`None`: nothing) at its end.
- `("wrapped", how, plan)`: a module inside of a `filter_jit` or `filter_checkpoint`.
- `("stack", how, plan)`: layers with stacked parameters, under a `scan` or `vmap`.
- `("while", check, plan)`: a `while_loop`; its condition calls `check` (or `None`).

`build` makes the model of a plan, and `programs` draws plans. The twin of a model is
in `random_twins.py`.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax
from parts import Seq


SCALES = np.array([1.1, -0.7])
WEIGHTS = np.array([0.6, 0.5])
MAX_STEPS = 3  # of a while loop
NUM = len(SCALES)


#
# Models.
#


class Leaf(eqx.Module):
    layer: Any

    def __call__(self, x):
        return jnp.tanh(call_layer(self.layer, x))


def call_layer(layer, x):
    return layer(jnp.cos(x), x) if isinstance(layer, eqx.nn.GRUCell) else layer(x)


class Under(eqx.Module):
    inner: Any
    hows: tuple[str, ...] = eqx.field(static=True)

    def __call__(self, x):
        for how in self.hows:
            x = HOWS[how](self.inner, x)
        return x


class Branch(eqx.Module):
    branches: list[Any]
    after: Any

    def __call__(self, x):
        def branch(module):
            return lambda x: module(x) if self.after is None else self.after(module(x))

        branches = [branch(b) for b in self.branches]
        if len(branches) == 2:
            return lax.cond(index(x, 2) == 1, *reversed(branches), x)
        return lax.switch(index(x, len(branches)), branches, x)


def index(x, num):
    return jnp.clip(jnp.floor((x[0] + 1) * num / 2), 0, num - 1).astype(int)


class Stack(eqx.Module):
    inner: Any
    how: str = eqx.field(static=True)

    def __call__(self, x):
        if self.how == "vmap":
            axes = (eqx.if_array(0), 0)
            ys = eqx.filter_vmap(lambda m, x: m(x), in_axes=axes)(self.inner, many(x))
            return WEIGHTS @ ys
        if self.how == "ensemble":
            axes = (eqx.if_array(0), None)
            return WEIGHTS @ eqx.filter_vmap(lambda m, x: m(x), in_axes=axes)(
                self.inner, x
            )
        dynamic, static = eqx.partition(self.inner, eqx.is_array)

        def step(x, layer):
            return eqx.combine(layer, static)(x), None

        return lax.scan(step, x, dynamic, reverse=self.how == "reverse")[0]


class While(eqx.Module):
    check: Any
    inner: Any

    def __call__(self, x):
        check = (lambda x: x) if self.check is None else self.check
        return while_loop(check, self.inner, x)


def while_loop(check, module, x):
    def keep_going(state):
        i, h = state
        return (i < MAX_STEPS) & (h[0] < 0.4) & (check(h)[1] < 0.4)

    return lax.while_loop(keep_going, lambda s: (s[0] + 1, module(s[1])), (0, x))[1]


#
# The ways to call a module, without and with its twin.
#


def many(x):
    """A batch, or the inputs of a loop."""
    return jnp.outer(SCALES, x)


@eqx.filter_jit
def _jitted(module, x):
    return module(x)


def _scan(module, x, **kwargs):
    def step(h, x):
        h = module(jnp.sin(h + x))
        return h, h * x

    h, ys = lax.scan(step, x, many(x), **kwargs)
    return h + WEIGHTS @ ys


def _switch(module, x):
    branches = [
        lambda x: module(x),
        lambda x: HOWS["repeat"](module, x),
        lambda x: module(module(x)),
    ]
    return lax.switch(index(x, 3), branches, x)


def _loss(module, x):
    return jnp.sum(jnp.sin(module(x)))


def _jvp(module, x):
    y, t = jax.jvp(module, (x,), (jnp.cos(x),))
    return y + t


def _linearize(module, x):
    y, linear = jax.linearize(module, x)
    return y + linear(jnp.cos(x))


def _custom_jvp(module, x):
    """A rule that is wrong on purpose: it shows whether it is used."""
    params, static = eqx.partition(module, eqx.is_array)

    @jax.custom_jvp
    def f(params, x):
        return eqx.combine(params, static)(x)

    f.defjvp(lambda primals, tangents: (f(*primals), 0.5 * tangents[1]))
    return f(params, x)


def _custom_vjp(module, x):
    params, static = eqx.partition(module, eqx.is_array)

    @jax.custom_vjp
    def f(params, x):
        return eqx.combine(params, static)(x)

    f.defvjp(
        lambda params, x: (f(params, x), params),
        lambda params, c: (jax.tree.map(jnp.zeros_like, params), 0.5 * c),
    )
    return f(params, x)


# How often the code around an "effect" ran.
EFFECTS: list[None] = []


def _effect(module, x):
    EFFECTS.append(None)
    return module(x)


def _closure(module, x):
    def make():
        return lambda y: module(y)

    return make()(x)


def _container(module, x):
    """What is put into a list is still there, and dicts keep their order."""
    cache = {"z": [x], "a": []}

    def fill(cache):
        cache["a"].append(module(cache["z"][0]))
        return cache

    filled = list(fill(cache).values())
    assert filled[1] is cache["a"]
    return filled[1][0]


def _chosen(module, x):
    """One of several closures over modules, by `switch`."""
    modules = [module, lambda x: module(-x)]
    calls = [lambda x, m=m: m(x) for m in modules]
    return lax.switch(index(x, 2), calls, x)


_dots = jax.checkpoint_policies.dots_saveable

HOWS: dict[str, Callable[[Any, Any], Any]] = {
    "call": lambda m, x: m(x),
    "jit": _jitted,
    "closed jit": lambda m, x: jax.jit(lambda x: m(x))(x),
    "checkpoint": lambda m, x: eqx.filter_checkpoint(lambda m, x: m(x))(m, x),
    "dots": lambda m, x: jax.checkpoint(lambda x: m(x), policy=_dots)(x),
    "scan": _scan,
    "reverse": lambda m, x: _scan(m, x, reverse=True),
    "unroll": lambda m, x: _scan(m, x, unroll=2),
    "repeat": lambda m, x: lax.scan(lambda h, _: (m(h), None), x, length=NUM)[0],
    "fori": lambda m, x: lax.fori_loop(0, NUM, lambda i, h: m(h + 0.1 * i), x),
    "map": lambda m, x: WEIGHTS @ lax.map(m, many(x)),
    "vmap": lambda m, x: WEIGHTS @ jax.vmap(m)(many(x)),
    "vmap 1": lambda m, x: jax.vmap(m, 1, 1)(many(x).T) @ WEIGHTS,
    "cond": lambda m, x: lax.cond(x[1] > 0.1, lambda x: m(x), lambda x: -x, x),
    "switch": _switch,
    "while": lambda m, x: while_loop(m, m, x),
    "grad": lambda m, x: jax.grad(lambda x: _loss(m, x))(x),
    "jvp": _jvp,
    "linearize": _linearize,
    "custom_jvp": _custom_jvp,
    "custom_vjp": _custom_vjp,
    "effect": _effect,
    "closure": _closure,
    "container": _container,
    "chosen": _chosen,
}
WRAPPERS = {"jit": eqx.filter_jit, "checkpoint": eqx.filter_checkpoint}
Wrapped = tuple(type(w(lambda x: x)) for w in WRAPPERS.values())
STEPS = ("scan", "reverse", "unroll", "repeat", "fori", "map")
BATCHES = ("vmap", "vmap 1", "ensemble")
CUSTOM = ("custom_jvp", "custom_vjp")
INNER = ("grad", "jvp", "linearize")


#
# Plans.
#


def build(plan, seed: int):
    """The model of a plan, and an input. In double precision where that is enabled."""
    rng = np.random.default_rng(seed)
    return _build(plan, rng), jnp.asarray(rng.normal(size=3))


def _build(plan, rng):
    match plan:
        case None:
            return None
        case str():
            return Leaf(_layer(plan, rng))
        case "seq", *parts:
            return Seq([_build(p, rng) for p in parts])
        case "shared", part:
            return Seq([_build(part, rng)] * 2)
        case "under", hows, inner:
            return Under(_build(inner, rng), hows)
        case "branch", after, *branches:
            return Branch([_build(b, rng) for b in branches], _build(after, rng))
        case "wrapped", how, inner:
            return WRAPPERS[how](_build(inner, rng))
        case "stack", how, inner:
            layers = [_build(inner, rng) for _ in range(NUM)]
            arrays = [eqx.filter(layer, eqx.is_array) for layer in layers]
            stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *arrays)
            return Stack(eqx.combine(stacked, layers[0]), how)
        case "while", check, inner:
            return While(_build(check, rng), _build(inner, rng))
    raise ValueError(plan)


def _layer(kind, rng):
    make = {
        "linear": lambda: eqx.nn.Linear(3, 3, key=jax.random.key(0)),
        "norm": lambda: eqx.nn.LayerNorm(3),
        "gru": lambda: eqx.nn.GRUCell(3, 3, key=jax.random.key(0)),
    }[kind]
    fill = lambda s: jnp.asarray(rng.normal(size=s.shape))
    return jax.tree.map(fill, eqx.filter_eval_shape(make))


def uses(plan, *words: str) -> bool:
    return any(w == plan for w in words) or (
        isinstance(plan, tuple) and any(uses(p, *words) for p in plan)
    )


#
# Drawing plans.
#

_COSTS = {
    **dict.fromkeys((*STEPS, *BATCHES, *INNER), NUM),
    "while": 2 * MAX_STEPS,
    "switch": 5,
    "chosen": 2,
}
_FORBIDS = {
    "grad": {"while"},  # no reverse mode
    "linearize": {"while", "custom_vjp"},
    "jvp": {"custom_vjp"},  # no forward mode
}


def draw_plan(pick, depth=5, budget=40, forbidden=frozenset()):
    """A plan in which at most `budget` layers run, one step counted as one. `pick`
    chooses from a list."""
    kinds = ["layer", "under", "under", "under"]
    kinds += ["seq", "branch", "stack", "wrapped"] + ["shared"] * (depth < 4)
    if "while" not in forbidden:
        kinds.append("while")
    kind = "layer" if depth == 0 or budget < 4 else pick(kinds)

    def part(cost=1, more=frozenset()):
        return draw_plan(pick, depth - 1, budget // cost, forbidden | more)

    match kind:
        case "layer":
            return pick(["linear", "norm", "gru"])
        case "seq":
            return ("seq", part(2), part(2))
        case "shared":
            return ("shared", part(2))
        case "wrapped":
            return ("wrapped", pick(list(WRAPPERS)), part())
        case "while":
            check = pick([None, part(2 * MAX_STEPS)])
            return ("while", check, part(MAX_STEPS))
        case "branch":
            num = pick([2, 3])
            after = pick([None, part(2 * num)])
            return ("branch", after, *(part(num) for _ in range(num)))
        case "stack":
            how = pick(["scan", "reverse", "vmap", "ensemble"])
            return ("stack", how, part(NUM))
    allowed = [h for h in HOWS if h not in forbidden]
    hows = tuple(pick(allowed) for _ in range(pick([1, 1, 2])))
    more = frozenset().union(*(_FORBIDS.get(h, ()) for h in hows))
    return ("under", hows, part(sum(_COSTS.get(h, 1) for h in hows), more))


_NONE_OF_THESE = ("while", *CUSTOM)


def draw_program(pick, depth=5, budget=40):
    """A plan, more often than not one that has cotangents, and a seed."""
    forbidden = pick([(), ("while",), _NONE_OF_THESE, _NONE_OF_THESE])
    return draw_plan(pick, depth, budget, frozenset(forbidden)), pick(range(100))


@st.composite
def programs(draw, depth=5, budget=40):
    return draw_program(lambda xs: draw(st.sampled_from(xs)), depth, budget)
