"""Canaries, as in `test_jax.py`: what jaxprs are made of, and come from."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxpr_params import params_of

from peex import _compat


def test_sub_jaxprs():
    find = lambda fn, name: list(_compat.sub_jaxprs(params_of(fn, name, jnp.ones(2))))
    assert len(find(lambda x: jax.jit(jnp.sin)(x), "jit")) == 1
    assert len(find(jax.checkpoint(jnp.sin), "remat2")) == 1
    assert len(find(lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x), "cond")) == 2
    loop = lambda x: lax.while_loop(lambda x: x[0] < 9, lambda x: x + 1, x)
    assert len(find(loop, "while")) == 2


def test_jaxprs_can_be_referred_to_weakly():
    import weakref

    jaxpr, consts = _compat.open_jaxpr(jax.make_jaxpr(jnp.sin)(1.0))
    assert _compat.is_jaxpr(jaxpr)
    assert list(consts) == []
    assert weakref.WeakKeyDictionary({jaxpr: 1})[jaxpr] == 1


def test_equations_as_a_jaxpr():
    jaxpr, _ = _compat.open_jaxpr(jax.make_jaxpr(lambda x: jnp.sin(x) * 2)(1.0))
    sin = jaxpr.eqns[0]
    alone = _compat.jaxpr_of([sin], sin.invars, sin.outvars)
    assert _compat.eval_jaxpr(alone, (), 1.0) == [jnp.sin(1.0)]


def test_parts_of_a_root():
    if jax.__version_info__ < (0, 12):
        return  # a `custom_jvp` there

    def fn(b):
        f = lambda x: x - jnp.tanh(x) - b
        return lax.custom_root(f, b, lambda f, x: x - f(x), lambda g, y: y / g(1.0))

    params = params_of(fn, "call_hi_primitive", 1.0)
    root = _compat.parts_of(params)
    assert isinstance(root, _compat.Root)
    assert _compat.parts_of(params) is root
    assert [len(j.in_avals) for j in root] == [2, 2, 3]
    assert len(list(_compat.sub_jaxprs(params))) == 3
    tangent, _ = _compat.open_jaxpr(root.tangent_solve)
    (inlined,) = (e for e in tangent.eqns if e.primitive.name == "eval_jaxpr")
    inside, _ = _compat.open_jaxpr(inlined.params["call_jaxpr"])
    parts = [_compat.parts_of(eqn.params) for eqn in inside.eqns]
    assert any(isinstance(part, _compat.LinearMap) for part in parts)


def test_a_root_is_bound_by_its_parts():
    if jax.__version_info__ < (0, 12):
        return
    fn = lambda b: lax.custom_root(
        lambda x: x - b, b, lambda f, x: x - f(x), lambda g, y: y
    )
    seen = []

    def run(i, args, more):
        seen.append(i)
        root = _compat.parts_of(eqn.params)
        assert root is not None
        jaxpr, consts = _compat.open_jaxpr(root[i])
        return _compat.eval_jaxpr(jaxpr, consts, *args), more

    (eqn,) = _compat.open_jaxpr(jax.make_jaxpr(fn)(1.0))[0].eqns

    def bound(b, more):
        args = [b] * len(eqn.invars)
        (x,), more = _compat.bind_root(eqn.params, args, more, run)
        return x, more

    x, more = bound(2.0, {"a": 3.0})
    assert (float(x), float(more["a"])) == (2.0, 3.0)
    assert float(jax.grad(lambda b: bound(b, 3.0)[0])(2.0)) == 1.0
    assert set(seen) == {0, 1, 2}


def test_linear_solve_has_four_jaxprs():
    solve = lambda matvec, b: b / 2
    fn = lambda b: lax.custom_linear_solve(lambda x: 2 * x, b, solve, solve)
    params = params_of(fn, "custom_linear_solve", jnp.ones(2))
    assert params["jaxprs"]._fields == ("matvec", "vecmat", "solve", "transpose_solve")
    assert len(params["const_lengths"]) == 4
    assert len(list(_compat.sub_jaxprs(params))) == 4
    assert lax.linear_solve_p in _compat.primitive_jvps


def test_literals():
    jaxpr, _ = _compat.open_jaxpr(jax.make_jaxpr(lambda x: x + 2.0)(1.0))
    (equation,) = jaxpr.eqns
    assert [_compat.is_literal(v) for v in equation.invars] == [False, True]


def test_frames_of_an_equation():
    def inner(x):
        return jnp.sin(x) * x

    def outer(x):
        return inner(x), _compat.current_frames()

    frames = []

    def traced(x):
        y, stack = outer(x)
        frames.append(stack)
        return y

    jaxpr, _ = _compat.open_jaxpr(jax.make_jaxpr(traced)(1.0))
    stacks = [_compat.frames_of(eqn) for eqn in jaxpr.eqns]
    for stack in stacks:
        codes = [code for code, _ in stack]
        at = codes.index(inner.__code__)
        assert codes[at + 1 : at + 3] == [outer.__code__, traced.__code__]
        assert not any(map(_compat.is_of_jax, codes[at : at + 3]))
    # Outside of what calls them, the stacks are one.
    depth = [code for code, _ in frames[0]].index(outer.__code__)
    below = frames[0][depth + 1 :]
    assert all(stack[-len(below) :] == below for stack in stacks)
    # The places are those in the bytecode.
    (sin, _), (mul, _) = stacks[0][0], stacks[1][0]
    assert _compat.is_of_jax(sin) and _compat.is_of_jax(mul)
    lines = [stack[[c for c, _ in stack].index(inner.__code__)][1] for stack in stacks]
    assert 0 < lines[0] < lines[1] < len(inner.__code__.co_code)


def test_function_of_a_body():
    def step(x, _):
        return jnp.sin(x), x

    scanned = lambda x: lax.scan(step, x, None, length=2)
    body, _ = _compat.open_jaxpr(params_of(scanned, "scan", 1.0)["jaxpr"])
    code = step.__code__
    assert _compat.function_of(body) == (code.co_filename, code.co_firstlineno)
    jitted, _ = _compat.open_jaxpr(params_of(jax.jit(step), "jit", 1.0, None)["jaxpr"])
    assert _compat.function_of(jitted) == (code.co_filename, code.co_firstlineno)
    assert jitted.debug_info.func_name == "step"


def test_part_of_a_jaxpr():
    jaxpr, _ = _compat.open_jaxpr(jax.make_jaxpr(lambda x: jnp.sin(x) * 2 + x)(1.0))
    sin, mul, _ = jaxpr.eqns
    assert [_compat.is_literal(v) for v in mul.invars] == [False, True]
    part = _compat.part_of_jaxpr(jaxpr, 1, 2, sin.outvars, mul.outvars)
    assert _compat.eval_jaxpr(part, (), 3.0) == [6.0]


def test_inlined_jits():
    def names(fn):
        return [eqn.primitive.name for eqn in jax.make_jaxpr(fn)(1.0).eqns]

    (eqn,) = jax.make_jaxpr(jax.jit(lax.sin))(1.0).eqns
    for inline, name in ((True, "sin"), (False, "jit")):
        params = _compat.with_inlining(eqn.params, inline)
        assert _compat.is_inlined(params) == inline
        assert names(lambda x, params=params: _compat.jit_p.bind(x, **params)) == [name]
        again = jax.jit(lax.sin, **_compat.jit_options(params))
        assert names(lambda x, again=again: again(x)) == [name]
