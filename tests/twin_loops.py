"""Twins with loops and branches."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from twin_case import apply, stack
from twin_models import MLP


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


# A branch in a branch, with one layer in all of them.


class DeepBranch(eqx.Module):
    layer: eqx.nn.Linear

    def __call__(self, x):
        deeper = lambda x: lax.cond(
            x[1] > 0, lambda x: jnp.sin(self.layer(x)), lambda x: -x, x
        )
        return lax.cond(x[0] > 0, deeper, lambda x: jnp.tanh(self.layer(x)), x)


def deep_branch_twin(m, x, eps):
    ran = (x[0] <= 0) | (x[1] > 0)
    a = jnp.where(ran, apply(m.layer, x), 0) + eps["layer"]
    out = jnp.where(x[0] > 0, jnp.where(x[1] > 0, jnp.sin(a), -x), jnp.tanh(a))
    return out, {"layer": a}


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
