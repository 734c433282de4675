"""Models with hand-written twins: the oracles of the engine's tests.

A twin computes what its model computes, in plain JAX and without peex. It adds
`eps[key]` to the value of each site, and returns the output and the values. So its
values are the forward log, and the gradient with respect to `eps`, at zero, is the
backward log.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax import lax


Twin = Callable[[Any, Any, dict[str, Any]], tuple[Any, dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    model: Any
    x: Any
    twin: Twin
    differentiable: bool = True
    where: Any = None

    def __repr__(self) -> str:
        return self.name

    def eps(self) -> dict[str, Any]:
        """Zeros of the shapes of the sites' values."""
        shapes: dict[str, Any] = {}

        class Zero(dict):
            def __missing__(self, key):
                return 0.0

        _, shapes = jax.eval_shape(lambda x: self.twin(self.model, x, Zero()), self.x)
        return {k: jnp.zeros(s.shape, s.dtype) for k, s in shapes.items()}


def _key(seed: int) -> Any:
    return jr.key(seed)


def linear(i: int, o: int, seed: int) -> eqx.nn.Linear:
    return eqx.nn.Linear(i, o, key=_key(seed))


def apply(lin: eqx.nn.Linear, x: Any) -> Any:
    return lin.weight @ x + lin.bias


def stack(fn: Callable[[Any], Any], n: int, seed: int) -> Any:
    return eqx.filter_vmap(fn)(jr.split(_key(seed), n))


# Two layers, one after the other.


class MLP(eqx.Module):
    linear1: eqx.nn.Linear
    linear2: eqx.nn.Linear

    def __init__(self, i, h, o, *, key):
        key1, key2 = jr.split(key, 2)
        self.linear1 = eqx.nn.Linear(i, h, key=key1)
        self.linear2 = eqx.nn.Linear(h, o, key=key2)

    def __call__(self, x):
        return self.linear2(jax.nn.relu(self.linear1(x)))


def mlp_twin(m, x, eps):
    a = apply(m.linear1, x) + eps["linear1"]
    b = apply(m.linear2, jax.nn.relu(a)) + eps["linear2"]
    return b, {"linear1": a, "linear2": b}


# A layer over tokens, by vmap.


class Tokens(eqx.Module):
    proj: eqx.nn.Linear
    out_axis: int = eqx.field(static=True)

    def __call__(self, x):
        y = jax.vmap(self.proj, out_axes=self.out_axis)(x)
        return jnp.tanh(y) if self.out_axis == 0 else jnp.tanh(y.T)


def tokens_twin(m, x, eps):
    a = x @ m.proj.weight.T + m.proj.bias + eps["proj"]
    return jnp.tanh(a), {"proj": a}


# vmap in vmap.


class Grid(eqx.Module):
    proj: eqx.nn.Linear

    def __call__(self, x):
        return jnp.sin(jax.vmap(jax.vmap(self.proj, in_axes=1), in_axes=1)(x))


def grid_twin(m, x, eps):
    # x: (features, rows, columns), mapped over axis 1, then over what is left of it.
    a = jnp.einsum("of,frc->rco", m.proj.weight, jnp.transpose(x, (0, 1, 2)))
    a = a + m.proj.bias + eps["proj"]
    return jnp.sin(a), {"proj": a}


# A recurrent cell, over time.


class Recurrent(eqx.Module):
    cell: eqx.nn.Linear
    reverse: bool = eqx.field(static=True)
    unroll: int = eqx.field(static=True, default=1)

    def __call__(self, xs):
        def step(h, x):
            h = jnp.tanh(self.cell(h) + x)
            return h, h[0]

        h, ys = lax.scan(
            step, jnp.ones(3), xs, reverse=self.reverse, unroll=self.unroll
        )
        return h, ys


def recurrent_twin(m, xs, eps):
    n = len(xs)
    h, values, ys = jnp.ones(3), [None] * n, [None] * n
    e = jnp.broadcast_to(eps["cell"], (n, 3))
    for i in reversed(range(n)) if m.reverse else range(n):
        a = apply(m.cell, h) + e[i]
        h = jnp.tanh(a + xs[i])
        values[i], ys[i] = a, h[0]
    return (h, jnp.stack(ys)), {"cell": jnp.stack(values)}


# A stack of layers, scanned.


class Stack(eqx.Module):
    blocks: MLP

    def __init__(self, n, seed):
        self.blocks = stack(lambda k: MLP(3, 4, 3, key=k), n, seed)

    def __call__(self, x):
        dynamic, static = eqx.partition(self.blocks, eqx.is_array)

        def step(x, layer):
            return x + jax.vmap(eqx.combine(layer, static))(x), None

        return lax.scan(step, x, dynamic)[0]


def stack_twin(m, x, eps):
    b = m.blocks
    n, t = b.linear1.weight.shape[0], x.shape[0]
    e1 = jnp.broadcast_to(eps["blocks.linear1"], (n, t, 4))
    e2 = jnp.broadcast_to(eps["blocks.linear2"], (n, t, 3))
    firsts, seconds = [], []
    for i in range(n):
        a = x @ b.linear1.weight[i].T + b.linear1.bias[i] + e1[i]
        c = jax.nn.relu(a) @ b.linear2.weight[i].T + b.linear2.bias[i] + e2[i]
        x = x + c
        firsts.append(a)
        seconds.append(c)
    return x, {
        "blocks.linear1": jnp.stack(firsts),
        "blocks.linear2": jnp.stack(seconds),
    }


# lax.map, and fori_loop with static bounds.


class Mapped(eqx.Module):
    proj: eqx.nn.Linear
    step: eqx.nn.Linear

    def __call__(self, xs):
        ys = lax.map(self.proj, xs)
        return lax.fori_loop(0, 3, lambda i, y: jnp.tanh(jax.vmap(self.step)(y)), ys)


def mapped_twin(m, xs, eps):
    y = a = xs @ m.proj.weight.T + m.proj.bias + eps["proj"]
    e = jnp.broadcast_to(eps["step"], (3, *y.shape))
    steps = []
    for i in range(3):
        b = y @ m.step.weight.T + m.step.bias + e[i]
        steps.append(b)
        y = jnp.tanh(b)
    return y, {"proj": a, "step": jnp.stack(steps)}


# A vmapped scan: steps come before the batch.


class BatchedScan(eqx.Module):
    cell: eqx.nn.Linear

    def __call__(self, xs):
        def one(xs):
            return lax.scan(lambda h, x: (jnp.tanh(self.cell(h) + x),) * 2, xs[0], xs)

        return jax.vmap(one)(xs)[1]


def batched_scan_twin(m, xs, eps):
    b, n, f = xs.shape
    e = jnp.broadcast_to(eps["cell"], (n, b, f))
    h, values, hs = xs[:, 0], [], []
    for i in range(n):
        a = h @ m.cell.weight.T + m.cell.bias + e[i]
        h = jnp.tanh(a + xs[:, i])
        values.append(a)
        hs.append(h)
    return jnp.stack(hs, 1), {"cell": jnp.stack(values)}


# A branch; `both` is called in each.


class Branch(eqx.Module):
    yes: eqx.nn.Linear
    no: eqx.nn.Linear
    both: eqx.nn.Linear

    def __call__(self, x):
        return lax.cond(
            x[0] > 0,
            lambda x: self.both(jnp.tanh(self.yes(x))),
            lambda x: self.both(jnp.sin(self.no(x))),
            x,
        )


def branch_twin(m, x, eps):
    taken = x[0] > 0
    yes = jnp.where(taken, apply(m.yes, x), 0) + eps["yes"]
    no = jnp.where(taken, 0, apply(m.no, x)) + eps["no"]
    # What is added to the value of a branch not taken must not get into the output.
    h = jnp.where(taken, jnp.tanh(yes), jnp.sin(no))
    both = apply(m.both, h) + eps["both"]
    return both, {"yes": yes, "both": both, "no": no}


class Switch(eqx.Module):
    layers: list[eqx.nn.Linear]

    def __call__(self, x):
        index = jnp.clip(jnp.floor(jnp.abs(x[0]) * 3), 0, 2).astype(jnp.int32)
        return jnp.tanh(
            lax.switch(index, [lambda x, f=f: f(x) for f in self.layers], x)
        )


def switch_twin(m, x, eps):
    index = jnp.clip(jnp.floor(jnp.abs(x[0]) * 3), 0, 2).astype(jnp.int32)
    values, out = {}, 0.0
    for i, layer in enumerate(m.layers):
        taken = index == i
        key = f"layers.{i}"
        values[key] = jnp.where(taken, apply(layer, x), 0) + eps[key]
        out = out + jnp.where(taken, values[key], 0)
    return jnp.tanh(out), values


# A branch for each example.


class BatchedBranch(eqx.Module):
    branch: Branch

    def __call__(self, xs):
        return jax.vmap(self.branch)(xs)


def batched_branch_twin(m, xs, eps):
    keys = ("branch.yes", "branch.both", "branch.no")
    e = {k: jnp.broadcast_to(eps[k], (len(xs), 3)) for k in keys}
    outs, values = [], {k: [] for k in keys}
    for i, x in enumerate(xs):
        one = {k.removeprefix("branch."): v[i] for k, v in e.items()}
        out, found = branch_twin(m.branch, x, one)
        outs.append(out)
        for k in keys:
            values[k].append(found[k.removeprefix("branch.")])
    return jnp.stack(outs), {k: jnp.stack(v) for k, v in values.items()}


# Checkpointed layers.


class Checkpointed(eqx.Module):
    mlp: MLP
    head: eqx.nn.Linear
    policy: Any = eqx.field(static=True)

    def __call__(self, x):
        x = eqx.filter_checkpoint(self.mlp, policy=self.policy)(x)
        return self.head(jnp.tanh(x))


def checkpointed_twin(m, x, eps):
    y, values = mlp_twin(m.mlp, x, {k: eps[f"mlp.{k}"] for k in ("linear1", "linear2")})
    z = apply(m.head, jnp.tanh(y)) + eps["head"]
    return z, {**{f"mlp.{k}": v for k, v in values.items()}, "head": z}


# One layer, called often: in Python, and through a jitted helper that JAX has cached.


@eqx.filter_jit
def _jitted(layer, x):
    return jnp.tanh(layer(x))


class Repeated(eqx.Module):
    layer: eqx.nn.Linear
    jit: bool = eqx.field(static=True)

    def __call__(self, x):
        for _ in range(3):
            x = _jitted(self.layer, x) if self.jit else jnp.tanh(self.layer(x))
        return x


def repeated_twin(m, x, eps):
    values = {}
    for i in range(3):
        key = "layer" if i == 0 else f"layer#{i}"
        values[key] = apply(m.layer, x) + eps[key]
        x = jnp.tanh(values[key])
    return x, values


# Layers passed one by one to one jitted helper keep their own names.


class OneByOne(eqx.Module):
    layers: list[eqx.nn.Linear]

    def __call__(self, x):
        for layer in self.layers:
            x = _jitted(layer, x)
        return x


def one_by_one_twin(m, x, eps):
    values = {}
    for i, layer in enumerate(m.layers):
        key = f"layers.{i}"
        values[key] = apply(layer, x) + eps[key]
        x = jnp.tanh(values[key])
    return x, values


# One layer at two places.


class Tied(eqx.Module):
    first: eqx.nn.Linear
    second: eqx.nn.Linear

    def __call__(self, x):
        return self.second(jnp.tanh(self.first(x)))


def tied_twin(m, x, eps):
    a = apply(m.first, x) + eps["first"]
    b = apply(m.second, jnp.tanh(a)) + eps["second"]
    return b, {"first": a, "second": b}


# A force: the gradient of an energy, inside the model.


class Force(eqx.Module):
    energy: MLP
    head: eqx.nn.Linear
    how: str = eqx.field(static=True)

    def __call__(self, x):
        energy = lambda x: jnp.sum(jnp.tanh(self.energy(x)) ** 2)
        if self.how == "grad":
            force = jax.grad(energy)(x)
        elif self.how == "jitted grad":
            force = jax.jit(jax.grad(energy))(x)
        elif self.how == "checkpointed grad":
            force = jax.grad(jax.checkpoint(energy))(x)
        elif self.how == "jvp":
            force = jax.jvp(energy, (x,), (x,))[1] * x
        else:
            value, lin = jax.linearize(energy, x)
            force = lin(x) * x + value
        return self.head(force)


def force_twin(m, x, eps):
    parts = {k: eps[f"energy.{k}"] for k in ("linear1", "linear2")}

    def energy(x):
        y, values = mlp_twin(m.energy, x, parts)
        return jnp.sum(jnp.tanh(y) ** 2), values

    if "grad" in m.how:
        force, values = jax.grad(energy, has_aux=True)(x)
    elif m.how == "jvp":
        _, tangent = jax.jvp(lambda x: energy(x)[0], (x,), (x,))
        force, values = tangent * x, energy(x)[1]
    else:
        value, tangent = jax.jvp(lambda x: energy(x)[0], (x,), (x,))
        force, values = tangent * x + value, energy(x)[1]
    out = apply(m.head, force) + eps["head"]
    return out, {**{f"energy.{k}": v for k, v in values.items()}, "head": out}


# The composite: vmap in checkpoint in scan in jit, with a branch behind it.


class Composite(eqx.Module):
    blocks: MLP
    branch: Branch

    def __init__(self, n, seed, branch):
        self.blocks = stack(lambda k: MLP(3, 4, 3, key=k), n, seed)
        self.branch = branch

    @eqx.filter_jit
    def body(self, x):
        dynamic, static = eqx.partition(self.blocks, eqx.is_array)

        @jax.checkpoint
        def step(x, layer):
            return x + jax.vmap(eqx.combine(layer, static))(x), None

        return lax.scan(step, x, dynamic)[0]

    def __call__(self, x):
        return self.branch(jnp.mean(self.body(x), 0))


def composite_twin(m, x, eps):
    y, values = stack_twin(m, x, eps)
    parts = {k: eps[f"branch.{k}"] for k in ("yes", "no", "both")}
    out, more = branch_twin(m.branch, jnp.mean(y, 0), parts)
    return out, {**values, **{f"branch.{k}": v for k, v in more.items()}}


# Loops inside loops, with a branch in the inner one.


class Nested(eqx.Module):
    outer: eqx.nn.Linear
    inner: Branch

    def __call__(self, x):
        def one(x, _):
            x, _ = lax.scan(lambda x, _: (jnp.tanh(self.inner(x)), None), x, length=2)
            return jnp.tanh(self.outer(x)), None

        return lax.scan(one, x, length=3)[0]


def nested_twin(m, x, eps):
    inner = ("yes", "both", "no")
    e = {k: jnp.broadcast_to(eps[f"inner.{k}"], (3, 2, 3)) for k in inner}
    e_outer = jnp.broadcast_to(eps["outer"], (3, 3))
    values = {f"inner.{k}": [] for k in inner}
    outer = []
    for i in range(3):
        rows = {k: [] for k in inner}
        for j in range(2):
            x, found = branch_twin(m.inner, x, {k: e[k][i, j] for k in inner})
            x = jnp.tanh(x)
            for k in inner:
                rows[k].append(found[k])
        for k in inner:
            values[f"inner.{k}"].append(jnp.stack(rows[k]))
        a = apply(m.outer, x) + e_outer[i]
        outer.append(a)
        x = jnp.tanh(a)
    stacked = {k: jnp.stack(v) for k, v in values.items()}
    return x, {**stacked, "outer": jnp.stack(outer)}


# While: the last iteration. Forward only.


class While(eqx.Module):
    cell: eqx.nn.Linear
    check: eqx.nn.Linear

    def __call__(self, x):
        def keep_going(state):
            i, x = state
            return (i < 5) & (self.check(x)[0] < 2.0)

        def step(state):
            i, x = state
            return i + 1, x + jnp.abs(self.cell(x))

        return lax.while_loop(keep_going, step, (0, x))[1]


def while_twin(m, x, eps):
    del eps
    cell, check = jnp.zeros(3), apply(m.check, x)
    running = check[0] < 2.0
    for i in range(5):
        a = apply(m.cell, x)
        cell = jnp.where(running, a, cell)
        x = jnp.where(running, x + jnp.abs(a), x)
        check = jnp.where(running, apply(m.check, x), check)
        running = running & (check[0] < 2.0) & (i + 1 < 5)
    return x, {"check": check, "cell": cell}


class BatchedWhile(eqx.Module):
    loop: While

    def __call__(self, xs):
        return jax.vmap(self.loop)(xs)


def batched_while_twin(m, xs, eps):
    found = [while_twin(m.loop, x, eps) for x in xs]
    values = {
        f"loop.{k}": jnp.stack([v[k] for _, v in found]) for k in ("check", "cell")
    }
    return jnp.stack([out for out, _ in found]), values


def _branch(seed: int) -> Branch:
    return Branch(linear(3, 3, seed), linear(3, 3, seed + 1), linear(3, 3, seed + 2))


def cases() -> list[Case]:
    x3 = jr.normal(_key(100), (3,))
    tokens = jr.normal(_key(101), (5, 3))
    tied = linear(3, 3, 3)
    save_dots = jax.checkpoint_policies.dots_saveable
    mlp = MLP(3, 4, 3, key=_key(0))
    while_ = While(linear(3, 3, 50), linear(3, 1, 51))
    return [
        Case("mlp", mlp, x3, mlp_twin),
        Case("tokens", Tokens(linear(3, 4, 1), 0), tokens, tokens_twin),
        Case("tokens_out_axis", Tokens(linear(3, 4, 1), 1), tokens, tokens_twin),
        Case("grid", Grid(linear(3, 2, 2)), jr.normal(_key(102), (3, 4, 5)), grid_twin),
        Case("recurrent", Recurrent(linear(3, 3, 4), False), tokens, recurrent_twin),
        Case("reverse", Recurrent(linear(3, 3, 4), True), tokens, recurrent_twin),
        Case("unrolled", Recurrent(linear(3, 3, 4), False, 2), tokens, recurrent_twin),
        Case("stack", Stack(4, 5), tokens, stack_twin),
        Case("mapped", Mapped(linear(3, 4, 6), linear(4, 4, 7)), tokens, mapped_twin),
        Case(
            "batched_scan",
            BatchedScan(linear(3, 3, 8)),
            jr.normal(_key(103), (2, 5, 3)),
            batched_scan_twin,
        ),
        Case("branch_yes", _branch(9), jnp.abs(x3), branch_twin),
        Case("branch_no", _branch(9), -jnp.abs(x3), branch_twin),
        Case(
            "switch",
            Switch([linear(3, 2, s) for s in (12, 13, 14)]),
            jnp.array([0.5, 1.0, -1.0]),
            switch_twin,
        ),
        Case("batched_branch", BatchedBranch(_branch(15)), tokens, batched_branch_twin),
        Case(
            "checkpointed",
            Checkpointed(mlp, linear(3, 2, 18), None),
            x3,
            checkpointed_twin,
        ),
        Case(
            "checkpoint_policy",
            Checkpointed(mlp, linear(3, 2, 18), save_dots),
            x3,
            checkpointed_twin,
        ),
        Case("repeated", Repeated(linear(3, 3, 19), False), x3, repeated_twin),
        Case("repeated_jit", Repeated(linear(3, 3, 19), True), x3, repeated_twin),
        Case(
            "one_by_one",
            OneByOne([linear(3, 3, s) for s in (20, 21, 22)]),
            x3,
            one_by_one_twin,
        ),
        Case("tied", Tied(tied, tied), x3, tied_twin),
        *(
            Case(
                f"force_{how.replace(' ', '_')}",
                Force(mlp, linear(3, 2, 23), how),
                x3,
                force_twin,
                # Forward mode over what a backward hook inserts isn't possible.
                differentiable="grad" in how,
            )
            for how in ("grad", "jitted grad", "checkpointed grad", "jvp", "linearize")
        ),
        Case("composite", Composite(4, 24, _branch(25)), tokens, composite_twin),
        Case("nested", Nested(linear(3, 3, 28), _branch(29)), x3, nested_twin),
        Case("while", while_, jnp.array([0.1, -0.2, 0.3]), while_twin, False),
        Case("batched_while", BatchedWhile(while_), tokens, batched_while_twin, False),
    ]
