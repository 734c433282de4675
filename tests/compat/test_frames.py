"""One canary for each thing that is read from the Python stack, and a few others."""

import contextlib

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from closeness import assert_close
from jax import tree_util as jtu
from jax.experimental import jet

from peex import _compat


class Node:
    """A pytree whose structure compares as `said` is told."""

    said: list = []

    def __init__(self, x, aux):
        self.x, self.aux = x, aux


class Aux:
    def __eq__(self, other):
        Node.said.append(_compat.mapping_frame(2) is not None)
        return True

    def __hash__(self):
        return 0


jtu.register_pytree_node(
    Node, lambda n: ((n.x,), (n.aux,)), lambda aux, xs: Node(xs[0], aux[0])
)


def test_structures_are_compared_by_tree_map_or_by_something_else():
    a, b = Node(1.0, Aux()), Node(2.0, Aux())
    for compare, expected in (
        (lambda: jax.tree.map(jnp.add, a, b), True),
        (lambda: jtu.tree_map_with_path(lambda *args: args[1], a, b), True),
        (lambda: jtu.tree_structure(a) == jtu.tree_structure(b), False),
        (lambda: jax.tree.map(lambda f: [f(a), f(b)], jax.jit(lambda n: n.x)), False),
    ):
        Node.said.clear()
        compare()
        assert Node.said and all(x is expected for x in Node.said)


def test_eval_shape_is_on_the_stack():
    seen = []

    def f(x):
        seen.append(_compat.is_abstract(None))
        return x

    f(1.0)
    jax.eval_shape(f, 1.0)
    jax.jit(lambda x: f(x))(1.0)  # of `f` itself, JAX keeps the trace
    assert seen == [False, True, False]


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_callbacks_are_on_the_stack(jit):
    seen = []

    def f(x):
        seen.append(_compat.in_callback())
        return np.asarray(x)

    wrap = jax.jit if jit else lambda f: f
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    jax.block_until_ready(wrap(lambda x: jax.pure_callback(f, shape, x))(1.0))
    wrap(lambda x: jax.debug.callback(lambda x: f(x) and None, x))(1.0)
    jax.effects_barrier()
    assert seen == [True, True]
    f(1.0)
    assert seen[2:] == [False]


def test_weak_types():
    weak, strong = jnp.sin(2.0), jnp.ones(())
    assert jax.typeof(weak).weak_type and not jax.typeof(strong).weak_type
    made = _compat.as_weak_as(strong, jax.typeof(weak))
    assert jax.typeof(made).weak_type and made.dtype == strong.dtype
    assert _compat.as_weak_as(strong, jax.typeof(strong)) is strong


def test_a_primitive_learns_its_rule_for_taylor_series():
    p = _compat.PassingPrimitive("canary")
    p.def_abstract_eval(lambda x: x)
    p.def_impl(lambda x: x)
    out, (first, second) = jet.jet(lambda x: jnp.sin(p.bind(x)), (1.0,), ((1.0, 0.0),))
    assert_close([out, first, second], [np.sin(1), np.cos(1), -np.sin(1)])


def test_a_primitive_without_results_is_linearized():
    p = _compat.Primitive("canary")
    p.multiple_results = True
    bound = []
    p.def_impl(lambda *xs: bound.append(xs) or [])
    p.def_abstract_eval(lambda *xs: [])
    _compat.linearize_to_nothing(p)

    def f(x):
        y = jnp.sin(x)
        p.bind(y)
        return y

    out, linear = jax.linearize(f, 1.0)
    assert_close(linear(1.0), np.cos(1))
    assert len(bound) == 1


def test_an_equinox_state_is_taken_anew():
    index, state = eqx.nn.make_with_state(lambda: eqx.nn.StateIndex(jnp.zeros(())))()
    restore = _compat.saved_states([state])
    state.set(index, jnp.ones(()))
    with pytest.raises(ValueError, match="old state"):
        state.get(index)
    restore()
    assert state.get(index) == 0


def test_what_equinox_keeps_of_a_module_besides_its_fields():
    layer = eqx.nn.Identity()
    for name in _compat.WRAPPER_FIELD_NAMES:
        vars(layer)[name] = f"of {name}"
    vars(layer)["other"] = 1
    again = jax.tree.map(lambda x: x, layer)
    assert set(vars(again)) == set(_compat.WRAPPER_FIELD_NAMES)


def test_the_line_of_an_equation():
    def f(x):
        return jnp.sin(  # here
            x
        )

    (equation,) = jax.make_jaxpr(f)(1.0).eqns
    (frame,) = [x for x in _compat.frames_of(equation) if x[0] is f.__code__]
    assert _compat.line_of(frame) == f.__code__.co_firstlineno + 1


def test_what_is_of_a_library():
    of_library = lambda f: _compat.is_of_library(f.__code__)
    functions = (np.ndim.__wrapped__, jtu.tree_map, eqx.nn.Linear.__call__, jnp.sin)
    assert [of_library(f) for f in functions[:3]] == [True, False, False]
    assert of_library(contextlib.contextmanager)
    assert of_library(jaxtyping.jaxtyped)
    assert of_library(eqx.filter_vmap(lambda x: x).__class__.__call__)
    assert not of_library(lambda: None)
