"""Accumulators inside of loops, branches and maps: the numbers are known without peex,
and nothing is stacked.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closeness import assert_close
from jax import lax
from parts import Whole

import peex as px


ITSELF = eqx.nn.Identity()


def logged(run, x, log_fn, **kwargs):
    """What is logged of the values that `run` gives to its first argument."""
    _, log = px.ForwardHook(Whole(ITSELF, run), None, log_fn, **kwargs)(x)
    assert list(log) == ["part"]
    assert log.counts == {}
    assert log.axes == {"part": ()}
    return log["part"]


def over_steps(part, xs):
    return lax.scan(lambda total, x: (total + part(x), None), 0 * xs[0], xs)[0]


def over_examples(part, xs):
    return jax.vmap(part)(xs)


def over_both(part, xs):
    return jax.vmap(lambda xs: over_steps(part, xs))(xs.reshape(2, -1, *xs.shape[1:]))


def over_steps_of_examples(part, xs):
    return lax.map(lambda xs: jax.vmap(part)(xs), xs.reshape(2, -1, *xs.shape[1:]))


def in_python(part, xs):
    return [part(x) for x in xs]


def backwards(part, xs):
    return lax.scan(lambda _, x: (None, part(x)), None, xs, reverse=True)[1]


def in_jit_and_checkpoint(part, xs):
    inner = jax.jit(jax.checkpoint(lambda xs: over_steps(part, xs)))
    return jax.grad(lambda xs: jnp.sum(jnp.sin(inner(xs))))(xs)


def in_custom_vjp(part, xs):
    @jax.custom_vjp
    def double(x):
        return 2 * part(x)

    double.defvjp(lambda x: (2 * part(x), None), lambda _, c: (2 * c,))
    return jax.grad(lambda xs: jnp.sum(jax.vmap(double)(xs)))(xs)


def in_while(part, xs):
    body = lambda state: (state[0] + 1, state[1] + part(xs[state[0]]))
    return lax.while_loop(lambda state: state[0] < len(xs), body, (0, 0 * xs[0]))


WAYS = [
    over_steps,
    over_examples,
    over_both,
    over_steps_of_examples,
    in_python,
    backwards,
    in_jit_and_checkpoint,
    in_custom_vjp,
    in_while,
]


@pytest.mark.parametrize("way", WAYS, ids=[way.__name__ for way in WAYS])
def test_each_way(way):
    xs = jnp.array([[1.0, -3], [2, 0], [3, 5], [4, 2]])
    both = px.Sum(lambda x: (x, x**2)), px.Max(), px.Min(), px.Moments()
    found = [logged(way, xs, log_fn) for log_fn in both]
    total, most, least, moments = found
    assert_close(total, (jnp.array([10.0, 4]), jnp.array([30.0, 38])))
    assert_close(most, jnp.array([4.0, 5]))
    assert_close(least, jnp.array([1.0, -3]))
    assert moments.count == 4
    assert_close(moments.mean, jnp.array([2.5, 1]))
    assert_close(moments.m2, jnp.array([5.0, 34]))
    assert_close(moments.var, jnp.array([1.25, 8.5]))
    assert_close(moments.std, jnp.sqrt(jnp.array([1.25, 8.5])))


def test_a_while_of_unknown_length():
    def run(part, x):
        return lax.while_loop(lambda x: x < 10, lambda x: 2 * part(x), x)

    one = logged(run, jnp.array(1.0), px.Moments())
    assert one.count == 4
    assert_close((one.mean, one.m2), (jnp.array(3.75), jnp.array(28.75)))
    # Examples that end at other times: 1, 2, 4, 8 and 3, 6.
    mapped = lambda part, xs: jax.vmap(lambda x: run(part, x))(xs)
    both = logged(mapped, jnp.array([1.0, 3, 20]), px.Moments(), while_buffer=2)
    assert both.count == 6
    assert_close(both.mean, jnp.array(4.0))
    assert_close(logged(run, jnp.array(20.0), px.Max()), jnp.array(-jnp.inf))


def test_the_condition_of_a_while():
    def run(part, x):
        return lax.while_loop(lambda x: part(x) < 10, lambda x: 2 * x, x)

    found = logged(run, jnp.array(1.0), px.Sum())  # of 1, 2, 4, 8, 16
    assert_close(found, jnp.array(31.0))


def test_a_branch():
    def branch(part, x):
        return lax.cond(x > 1, part, lambda x: x, x)

    def each(part, xs):
        return jax.vmap(lambda x: branch(part, x))(xs)

    xs = jnp.array([2.0, -1, 3, 0, 5])
    for run in (each, jax.jit(each, static_argnums=0)):
        taken = logged(run, xs, px.Moments())
        assert taken.count == 3
        assert_close(taken.mean, jnp.array(10 / 3))
        assert_close(taken.m2, jnp.array(14 / 3))
    assert logged(branch, xs[0], px.Moments()).count == 1
    none = logged(branch, xs[1], px.Moments())
    assert (none.count, none.mean, none.m2, none.std) == (0, 0, 0, 0)
    integers = logged(branch, jnp.array(-1), px.Min())
    assert_close(integers, jnp.array(np.iinfo(np.int32).max))
    steps = lambda part, xs: lax.map(lambda x: branch(part, x), xs)
    assert_close(logged(steps, xs, px.Max()), jnp.array(5.0))


def test_both_branches_are_one_call():
    def run(part, x):
        return lax.cond(
            x > 0, lambda x: 2 * part(x), lambda x: part(3 * x) + part(x), x
        )

    assert_close(logged(run, jnp.array(1.0), px.Sum()), jnp.array(1.0))
    assert_close(logged(run, jnp.array(-1.0), px.Sum()), jnp.array(-4.0))


def test_nothing_to_merge():
    none = jnp.zeros((0, 2))
    for run in (over_examples, backwards):
        assert logged(run, none, px.Moments()).count == 0
        assert_close(logged(run, none, px.Max()), jnp.full(2, -jnp.inf))
        assert_close(logged(run, none, px.Sum()), jnp.zeros(2))


def test_calls_that_are_unlike():
    def run(part, x):
        return part(x), part(x[:2]), part(2 * x), part(jnp.int32(3))

    model = Whole(ITSELF, run)
    _, log = px.ForwardHook(model, None, px.Sum())(jnp.ones(3))
    assert list(log) == ["part", "part#1", "part#3"]
    assert_close(log["part"], jnp.full(3, 3.0))
    assert_close(log["part#1"], jnp.ones(2))
    assert_close(log["part#3"], jnp.array(3))
    # One that is asked for by its number is of that call.
    _, log = px.ForwardHook(model, None, px.Sum(), where="part#2")(jnp.ones(3))
    assert dict(log).keys() == {"part#2"}
    assert_close(log["part#2"], jnp.full(3, 2.0))


@pytest.mark.parametrize("grad", [False, True], ids=["forward", "gradient"])
def test_memory_is_of_one_step(grad):
    """Neither the program nor its log has anything of the length of the loop that the
    program without hooks hasn't.
    """
    cell = eqx.nn.GRUCell(2, 8, key=jax.random.key(0))
    log_fn = px.Moments()

    def run(cell, xs):
        return jnp.sum(lax.scan(lambda h, x: (cell(x, h), None), jnp.ones(8), xs)[0])

    def sizes(length):
        xs = jnp.ones((length, 2))
        if grad:
            plain = eqx.filter_grad(run)
            hooked = px.value_and_grad(run, forward=log_fn, backward=log_fn)
        else:
            plain = run
            hooked = lambda cell, xs: px.ForwardHook(cell, None, log_fn, method=run)(xs)
        compiled = (
            eqx.filter_jit(f).lower(cell, xs).compile() for f in (plain, hooked)
        )
        return [of_memory(c) for c in compiled]

    short, long = sizes(16), sizes(4096)
    grown = np.subtract(long, short)
    assert_close(long[1][1] - long[0][1], short[1][1] - short[0][1])  # of the results
    # The temporary bytes: the hooked program grows by no more than the plain one.
    assert grown[1][0] <= grown[0][0] + 4096


def of_memory(compiled):
    found = compiled.compiled.memory_analysis()
    return found.temp_size_in_bytes, found.output_size_in_bytes


def test_histograms_add():
    xs = jnp.array([[1.0, -3], [2, 0], [3, 5], [4, 2]])
    counts = logged(over_steps, xs, px.Sum(px.HistogramLog([0.0, 2.5])))
    assert_close(counts, jnp.array([1, 4, 3]))
    edges = jnp.array([0.0, 2.5])  # of JAX's: data of the log
    assert_close(logged(over_examples, xs, px.Sum(px.HistogramLog(edges))), counts)
