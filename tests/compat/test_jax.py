"""One canary for each private or version-dependent use of JAX and Equinox."""

import functools
import gc
import traceback
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
from closeness import assert_close
from jax import lax
from jaxpr_params import params_of

from peex import _compat
from peex._engine.rules.bind import bind_checkpoint, bind_cond


def test_current_trace():
    outside = _compat.current_trace()
    assert _compat.is_eval_trace(outside)
    inside = []
    jax.jit(lambda x: inside.append(_compat.current_trace()) or x)(1.0)
    jax.vmap(lambda x: inside.append(_compat.current_trace()) or x)(jnp.ones(2))
    assert not any(_compat.is_eval_trace(t) for t in inside)
    assert _compat.current_trace() is outside


class Passing(_compat.Trace):
    """Hands everything on to the trace below it."""

    def __init__(self, parent):
        super().__init__()
        self.parent = parent
        self.requires_low = parent.requires_low

    def stage_value(self, val):
        return self.parent.stage_value(val)

    def process_primitive(self, primitive, tracers, params, /):
        return self.parent.process_primitive(primitive, tracers, params)


def test_trace_processes_primitives():
    seen = []

    class Spy(Passing):
        def process_primitive(self, primitive, tracers, params, /):
            seen.append(primitive.name)
            return self.parent.process_primitive(primitive, tracers, params)

    with _compat.set_current_trace(Spy(_compat.current_trace())):
        x = lax.add(jnp.ones(2), jnp.ones(2))
    assert "add" in seen
    assert x.tolist() == [2.0, 2.0]


def test_custom_derivatives_come_with_their_functions():
    seen = {}

    class Spy(Passing):
        def process_custom_jvp_call(self, primitive, fun, jvp, tracers, /, **params):
            seen["jvp"] = sorted(params)
            _compat.fresh(fun).call_wrapped(*tracers)
            return self.parent.process_custom_jvp_call(
                primitive, _compat.fresh(fun), jvp, tracers, **params
            )

        def process_custom_vjp_call(self, primitive, f, fwd, bwd, tracers, /, **params):
            seen["vjp"] = sorted(params)
            return self.parent.process_custom_vjp_call(
                primitive, f, fwd, bwd, tracers, **params
            )

    @jax.custom_jvp
    def f(x):
        return 2 * x

    f.defjvp(lambda p, t: (f(*p), 2 * t[0]))

    @jax.custom_vjp
    def g(x):
        return 3 * x

    g.defvjp(lambda x: (g(x), None), lambda _, c: (3 * c,))
    with _compat.set_current_trace(Spy(_compat.current_trace())):
        assert float(f(jnp.array(1.0))) == 2.0
        assert float(g(jnp.array(1.0))) == 3.0
    assert seen == {"jvp": ["symbolic_zeros"], "vjp": ["out_trees", "symbolic_zeros"]}


def test_zero_tangent():
    zero = _compat.zero_tangent(jnp.ones(3))
    assert zero.aval.shape == (3,)
    assert _compat.zero_tangent(jnp.ones(3, int)).aval.dtype == jax.dtypes.float0


def test_batchers_of_control_flow():
    assert lax.cond_p in _compat.batchers
    assert lax.while_p in _compat.batchers


def test_batch_as_is():
    probe = _compat.Primitive("peex_canary")
    probe.multiple_results = True
    probe.def_abstract_eval(lambda *avals: list(avals))
    probe.def_impl(lambda *args: list(args))
    found = []

    def rule(axis, args, dims):
        run = lambda x, y: [x + 1, y]
        outs, out_dims = _compat.batch_as_is(run, axis, dims, args)
        found.append((axis.size, axis.name, out_dims))
        return outs, out_dims

    _compat.batchers[probe] = rule
    try:
        fn = lambda x, y: tuple(probe.bind(x, y))
        x, y = jax.vmap(fn, in_axes=(1, None), out_axes=(0, None), axis_name="i")(
            jnp.zeros((2, 3)), jnp.ones(())
        )
    finally:
        del _compat.batchers[probe]
    ((size, name, (dim, other)),) = found
    assert (size, name, other) == (3, "i", None)
    assert dim in (0, 1)
    assert x.shape == (3, 2)
    assert float(y) == 1.0


def test_scan_layout():
    w = jnp.ones(2)

    def fn(x):
        return lax.scan(lambda c, y: ((c[0] + y, c[1] * w), y), (x[0], x), x)

    params = params_of(fn, "scan", jnp.ones(2))
    num_consts, num_carry = _compat.scan_layout(params)
    assert num_carry == 2
    assert num_consts in (0, 1)  # the constant may be in the jaxpr
    assert {"jaxpr", "length", "reverse", "unroll"} <= set(params)

    def fn(x, w):
        return lax.scan(lambda c, y: (c * w + y, y), x, jnp.ones(3))

    assert _compat.scan_layout(params_of(fn, "scan", 1.0, 2.0)) == (1, 1)


def test_while_params():
    fn = lambda x: lax.while_loop(lambda x: x < 9, lambda x: x + 1, x)
    assert {"cond_nconsts", "body_nconsts", "cond_jaxpr", "body_jaxpr"} <= set(
        params_of(fn, "while", 1.0)
    )


def test_checkpoint_params():
    params = params_of(jax.checkpoint(jnp.sin), "remat2", 1.0)
    assert params["differentiated"] is False
    assert {"prevent_cse", "policy", "jaxpr"} <= set(params)
    grad = jax.grad(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x))))
    again = params_of(grad, "remat2", 1.0)
    assert again["differentiated"] is True
    fn = lambda x: bind_checkpoint(lambda x: [jnp.sin(x) * x], again, x)[0]
    assert params_of(fn, "remat2", 1.0)["differentiated"] is True
    assert_close(jax.jit(fn)(2.0), jnp.sin(2.0) * 2.0)


def test_bind_cond():
    fn = lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x)
    params = params_of(fn, "cond", jnp.ones(2))
    branches = [lambda x, y: {"a": x + y}, lambda x, y: {"a": x - y}]
    run = lambda i, x, y: bind_cond(params, i, branches, x, y)
    for transform in (lambda f: f, jax.jit):
        for i, expected in ((0, 3.0), (1, -1.0)):
            out = transform(run)(jnp.int32(i), 1.0, 2.0)
            assert float(out["a"]) == expected


def test_jit_options():
    params = params_of(jax.jit(jnp.sin), "jit", 1.0)
    inline = params["inline"]
    assert _compat.jit_options(params) == {"keep_unused": False, "inline": inline}
    assert _compat.jit_shardings(params) == ((None,), (None,))
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    fn = jax.jit(jnp.sin, in_shardings=device, donate_argnums=0, keep_unused=True)
    params = params_of(fn, "jit", 1.0)
    assert _compat.jit_options(params) == {
        "keep_unused": True,
        "inline": inline,
        "donate_argnums": (0,),
    }
    assert _compat.jit_shardings(params)[0] == (device,)


def test_random_keys_are_a_dtype():
    assert jnp.issubdtype(jax.random.key(0).dtype, jax.dtypes.prng_key)


def test_jvp_as_is():
    zero = _compat.zero_tangent(jnp.ones(2))
    run = lambda x, y: [x * y, y]
    primals, tangents = (jnp.ones(2), jnp.ones(2)), (zero, jnp.full(2, 3.0))
    outs, tangents = _compat.jvp_as_is(run, primals, tangents)
    assert [x.tolist() for x in outs] == [[1.0, 1.0]] * 2
    assert [x.tolist() for x in tangents] == [[3.0, 3.0]] * 2


def test_holds_no_module():
    found = {}

    class Spy(Passing):
        def process_custom_jvp_call(self, primitive, fun, jvp, tracers, /, **params):
            found[len(found)] = _compat.holds_no_module(fun)
            return self.parent.process_custom_jvp_call(
                primitive, fun, jvp, tracers, **params
            )

    def with_rule(fn):
        fn = jax.custom_jvp(fn)
        fn.defjvp(lambda primals, tangents: (fn(*primals), tangents[-1]))
        return fn

    call = lambda linear, x: linear(x)
    linear = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    takes_a_module, plain = with_rule(call), with_rule(lambda x, y: x * y)
    closes_over_it = with_rule(lambda x: linear(x))
    defaults_to_it = with_rule(lambda x, linear=linear: linear(x))
    bound = with_rule(functools.partial(call, linear))
    x = jnp.ones(2)
    with _compat.set_current_trace(Spy(_compat.current_trace())):
        jax.nn.relu(x)
        plain(x, x)
        assert found == {0: True, 1: True}
        takes_a_module(linear, x)
        closes_over_it(x)
        defaults_to_it(x)
        bound(x)
    assert list(found.values())[2:] == [False] * 4


def identity(name):
    primitive = _compat.Primitive(name)
    primitive.def_impl(lambda x: x)
    primitive.def_abstract_eval(lambda x: x)
    _compat.primitive_jvps[primitive] = lambda primals, tangents: (
        primitive.bind(*primals),
        *tangents,
    )
    _compat.register_lowering(primitive, lambda ctx, x: [x])
    return primitive


def test_keep_unused():
    kept, dropped = identity("peex_kept"), identity("peex_dropped")
    _compat.keep_unused(kept, lambda x: x)

    def run(x):
        kept.bind(x)
        dropped.bind(x)
        return jnp.sin(x)

    loop = lambda x: lax.scan(lambda h, _: (run(h), None), x, length=2)[0]
    for fn in (jax.jit(run), jax.checkpoint(run), loop):
        text = str(jax.make_jaxpr(jax.grad(fn))(1.0))
        assert (text.count("peex_kept"), text.count("peex_dropped")) == (1, 0)
        # An equation that is left is an error of its own lowering rule, not of JAX's.
        assert jnp.isfinite(jax.jit(fn)(1.0))


def test_on_recomputation():
    first, later = identity("peex_first"), identity("peex_later")
    _compat.on_recomputation(first, lambda eqn: eqn.replace(primitive=later))
    saved = identity("peex_saved")
    _compat.on_recomputation(saved, lambda eqn: None)

    def count(policy, first=first):
        run = jax.checkpoint(lambda x: jnp.sin(first.bind(jnp.sin(x))), policy=policy)
        text = str(jax.make_jaxpr(jax.grad(run))(1.0))
        return text.count(first.name), text.count("peex_later")

    assert count(None) == (1, 1)
    assert count(None, saved) == (1, 0)
    assert count(jax.checkpoint_policies.everything_saveable) == (1, 0)


def test_abandon():
    class Ended(BaseException):
        pass

    constant = jnp.ones(2)

    def body(x, _):
        jnp.sin(x + constant)
        raise Ended

    traces = []

    def outside(x):
        try:
            lax.scan(lambda *args: body(*args), x, length=2)
        except Ended as error:
            frames = [f for f, _ in traceback.walk_tb(error.__traceback__)]
            found = [v for f in frames for v in f.f_locals.values()]
            traces.extend(
                weakref.ref(v) for v in found if type(v).__name__ == "DynamicJaxprTrace"
            )
            del frames, found
            _compat.abandon(error)
        return x

    jax.make_jaxpr(outside)(constant)
    gc.collect()
    assert traces
    assert not any(trace() is not None for trace in traces)


def test_symbolic_zeros():
    x = jnp.ones(2)
    zero = _compat.zero_tangent(x)
    assert _compat.is_zero(zero)
    made = _compat.instantiate_zeros(zero)
    assert not _compat.is_zero(made)
    assert made.tolist() == [0.0, 0.0]


def test_undefined_primals():
    seen = []
    primitive = identity("peex_linear")

    def transpose(cotangent, x):
        seen.append((_compat.is_undefined_primal(x), x.aval.shape))
        return [cotangent]

    _compat.primitive_transposes[primitive] = transpose
    jax.linear_transpose(primitive.bind, jnp.ones(2))(jnp.ones(2))
    assert seen == [(True, (2,))]


def test_traces_that_share_the_cache_of_a_jitted_function():
    class Passing(_compat.Trace):
        def process_primitive(self, primitive, tracers, params, /):
            return parent.process_primitive(primitive, tracers, params)

    parent, jitted, sizes = _compat.current_trace(), jax.jit(jnp.sin), []
    for share in (True, False):
        jitted.clear_cache()
        for _ in range(3):
            trace = Passing()
            if share:
                _compat.share_jit_cache(trace)
            with _compat.set_current_trace(trace):
                assert_close(jitted(jnp.ones(2)), jnp.sin(jnp.ones(2)))
            sizes.append(jitted._cache_size())
            del trace
    # Else JAX has found another way, and there is nothing to be shared.
    assert sizes == [1, 1, 1, 1, 2, 3]
