"""What the compiled program of a hooked call is, next to one written by hand."""

import collections
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from closeness import assert_close
from jax import lax

import peex as px


pytestmark = pytest.mark.usefixtures("optimised")


DEPTH, BATCH, WIDTH = 3, 8, 16


class MLP(eqx.Module):
    layers: list[eqx.nn.Linear]

    def __init__(self, key):
        keys = jr.split(key, DEPTH)
        self.layers = [eqx.nn.Linear(WIDTH, WIDTH, key=k) for k in keys]

    def __call__(self, x, adds=None):
        outs = []
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if adds is not None:
                x = x + adds[i]
            outs.append(x)
            x = jnp.tanh(x)
        return x, outs


class Scanned(eqx.Module):
    layers: eqx.nn.Linear

    def __init__(self, key):
        make = lambda k: eqx.nn.Linear(WIDTH, WIDTH, key=k)
        self.layers = eqx.filter_vmap(make)(jr.split(key, DEPTH))

    def __call__(self, x, adds=None):
        dynamic, static = eqx.partition(self.layers, eqx.is_array)

        def step(x, layer_and_add):
            layer, add = layer_and_add
            out = eqx.combine(layer, static)(x)
            if add is not None:
                out = out + add
            return jnp.tanh(out), out

        return lax.scan(step, x, (dynamic, adds))


XS = jr.normal(jr.key(1), (BATCH, WIDTH))


def compiled(f, *args):
    return jax.jit(f).lower(*args).compile()


def operations(program):
    text = re.sub(r"metadata=\{[^}]*\}", "", program.as_text())
    return collections.Counter(re.findall(r"= \S+ ([a-z][\w\-]*)\(", text))


def loss(model, xs):
    return jnp.mean(jax.vmap(lambda x: model(x)[0])(xs) ** 2)


@pytest.mark.parametrize("make", [MLP, Scanned])
@pytest.mark.parametrize("forward", [None, px.IdentityLog()])
def test_value_and_grad_is_the_additive_zero_program(make, forward):
    model = make(jr.key(0))
    step = px.value_and_grad(loss, forward=forward)

    def hooked(model, xs):
        (value, logs), grads = step(model, xs)
        forward = list(logs.forward.values())
        return value, list(logs.backward.values()), forward, grads

    def by_hand(model, xs):
        # Zeros, added to each value: their gradient is its cotangent.
        def run(model, adds):
            axes = 0, 1 if make is Scanned else 0
            out, acts = jax.vmap(model, in_axes=axes)(xs, adds)
            return jnp.mean(out**2), acts

        shape = (DEPTH, BATCH, WIDTH)
        adds = jnp.zeros(shape) if make is Scanned else [jnp.zeros(shape[1:])] * DEPTH
        (value, acts), (grads, cotangents) = jax.value_and_grad(
            run, argnums=(0, 1), has_aux=True
        )(model, adds)
        if make is Scanned:
            acts, cotangents = [jnp.swapaxes(acts, 0, 1)], [cotangents]
        return value, cotangents, [] if forward is None else acts, grads

    ours, theirs = compiled(hooked, model, XS), compiled(by_hand, model, XS)
    got, expected = ours(model, XS), theirs(model, XS)
    assert_close(got, expected, rtol=1e-5)
    ours_memory, theirs_memory = ours.memory_analysis(), theirs.memory_analysis()
    # No zero buffer is an argument, and none is made.
    inputs = sum(x.size for x in jax.tree.leaves((model, XS)))
    assert ours_memory.argument_size_in_bytes == 4 * inputs
    assert ours_memory.temp_size_in_bytes <= theirs_memory.temp_size_in_bytes
    assert sum(operations(ours).values()) <= sum(operations(theirs).values())
    size = rf"f32\[({DEPTH},)?{BATCH},{WIDTH}\]"
    zeros = rf"= {size}\S* broadcast\(\S*(zero|constant)"
    made = len(re.findall(zeros, ours.as_text()))
    assert made <= len(re.findall(zeros, theirs.as_text()))


@pytest.mark.parametrize("log_fn", [px.MeanStdLog(), px.HistogramLog([-1.0, 0.0, 1.0])])
def test_statistics_in_a_scan_keep_no_value(log_fn):
    model = Scanned(jr.key(0))
    size = 512
    xs = jnp.ones((size, WIDTH))

    def hooked(model, xs):
        run = lambda m, xs: jax.vmap(lambda x: m(x)[0])(xs)
        return px.ForwardHook(model, log_fn=log_fn, where="layers", method=run)(xs)

    plain = lambda model, xs: jax.vmap(lambda x: model(x)[0])(xs)
    ours, theirs = compiled(hooked, model, xs), compiled(plain, model, xs)
    _, log = ours(model, xs)
    assert jax.tree.leaves(log["layers"])[0].shape[:2] == (DEPTH, size)
    assert f"f32[{DEPTH},{size},{WIDTH}]" not in ours.as_text()
    # At most the value of one step: XLA doesn't fuse all that is done with it.
    one_step = 4 * size * WIDTH
    more = ours.memory_analysis().temp_size_in_bytes
    assert more - theirs.memory_analysis().temp_size_in_bytes < 1.1 * one_step


@pytest.mark.parametrize("wrapper", [px.ForwardHook, px.BackwardHook])
@pytest.mark.parametrize("make", [MLP, Scanned])
def test_operations_carry_the_key_of_their_module(wrapper, make):
    model = make(jr.key(0))
    run = lambda m, x: jax.vmap(lambda x: m(x)[0])(x)
    hooked = wrapper(model, px.ScaleHook(2.0), None, method=run)
    value = lambda h, xs: h(xs)[0] if wrapper is px.ForwardHook else h(xs)
    loss = lambda h, xs: jnp.sum(value(h, xs) ** 2)
    text = compiled(jax.grad(loss), hooked, XS).as_text()
    names = set(re.findall(r'op_name="([^"]*)"', text))
    keys = [f"layers.{i}" for i in range(DEPTH)] if make is MLP else ["layers"]
    for key in keys:
        dots = [n for n in names if f"{key}/" in n or f"{key})" in n]
        assert any("dot_general" in n for n in dots), (key, names)
        assert any("transpose" in n for n in dots), (key, names)
    plain = compiled(jax.grad(lambda m, xs: jnp.sum(run(m, xs) ** 2)), model, XS)
    assert "layers.0" not in plain.as_text()
