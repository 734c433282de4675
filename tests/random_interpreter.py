"""Runs compiled programs without compiling them, by interpreting their jaxprs in NumPy.

Nearly all the time of a random program goes into XLA, which isn't what is tested.
Everything else is as usual: JAX traces, batches, differentiates, stages.
"""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import pjit
from jax.extend.core import Literal

from peex import _compat


# What runs a jitted function that is new (JAX 0.10 to 0.12; its canary is a test in
# `test_random_programs.py`).
_PRIVATE = "_pjit_call_impl_python"


@contextlib.contextmanager
def interpreted():
    """Inside, jitted functions that are new are interpreted. (If JAX has no more the
    private function that this replaces, they are compiled.)"""
    compiled = getattr(pjit, _PRIVATE, None)
    if compiled is None:
        yield None
        return
    interpreter = _Interpreter(compiled)
    setattr(pjit, _PRIVATE, interpreter)
    try:
        yield interpreter
    finally:
        setattr(pjit, _PRIVATE, compiled)


class _Interpreter:
    def __init__(self, compiled):
        self.compiled = compiled
        self.off = False
        self.runs = 0

    def __call__(self, *args, jaxpr, **params):
        inside, consts = _compat.open_jaxpr(jaxpr)
        if self.off or self._is_simple(inside):
            return self.compiled(*args, jaxpr=jaxpr, **params)
        self.runs += 1
        with np.errstate(all="ignore"):
            outs = self.run(inside, consts, [np.asarray(x) for x in args])
        return [jax.device_put(x) for x in outs], None, None, []

    def _is_simple(self, jaxpr):
        """A single operation, compiled once and for all; or not to be interpreted."""
        extended = jax.dtypes.extended
        return (
            (len(jaxpr.eqns) <= 1 and not any(map(_bodies, jaxpr.eqns)))
            or jaxpr.effects
            or any(
                jax.dtypes.issubdtype(v.aval.dtype, extended)
                for v in (*jaxpr.invars, *jaxpr.outvars)
            )
        )

    def run(self, jaxpr, consts, args) -> list[Any]:
        env = dict(zip(jaxpr.constvars, map(np.asarray, consts), strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))

        def read(v):
            return np.asarray(v.val, v.aval.dtype) if type(v) is Literal else env[v]

        for eqn in jaxpr.eqns:
            outs = self.equation(eqn, [read(v) for v in eqn.invars])
            for v, x in zip(eqn.outvars, outs, strict=True):
                assert np.shape(x) == v.aval.shape, eqn
                env[v] = np.asarray(x, v.aval.dtype)
        return [read(v) for v in jaxpr.outvars]

    def equation(self, eqn, args) -> list[Any]:
        primitive, name = eqn.primitive, eqn.primitive.name
        if name in _CONTROL:
            return _CONTROL[name](self.body, eqn.params, *args)
        if name in _SIMPLE:
            outs = _SIMPLE[name](*args)
        elif name in _OTHERS:
            outs = _OTHERS[name](eqn, *args)
        elif name in _CALLS:
            return self.body(eqn.params[_CALLS[name]], args)
        else:
            self.off = True
            try:
                outs = primitive.bind(*map(jnp.asarray, args), **eqn.params)
            finally:
                self.off = False
        return list(outs) if primitive.multiple_results else [outs]

    def body(self, jaxpr, args) -> list[Any]:
        return self.run(*_compat.open_jaxpr(jaxpr), args)


def _bodies(eqn):
    return list(_compat.sub_jaxprs(eqn.params))


def _scan(body, params, *args):
    num_consts, num_carry = _compat.scan_layout(params)
    consts, carry = args[:num_consts], args[num_consts : num_consts + num_carry]
    xs, ys = args[num_consts + num_carry :], {}
    steps = range(params["length"])
    for i in reversed(steps) if params["reverse"] else steps:
        outs = body(params["jaxpr"], [*consts, *carry, *(x[i] for x in xs)])
        carry, ys[i] = outs[:num_carry], outs[num_carry:]
    return [*carry, *(np.stack(y) for y in zip(*(ys[i] for i in steps), strict=True))]


def _while(body, params, *args):
    num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
    of_cond, of_body = args[:num_cond], args[num_cond : num_cond + num_body]
    state = args[num_cond + num_body :]
    while True:
        (go,) = body(params["cond_jaxpr"], [*of_cond, *state])
        if not go.any():
            return list(state)
        new = body(params["body_jaxpr"], [*of_body, *state])
        # The loops of a batch stop one by one.
        state = [
            np.where(go.reshape(go.shape + (1,) * (x.ndim - go.ndim)), x, y)
            for x, y in zip(new, state, strict=True)
        ]


def _cond(body, params, index, *args):
    branches = params["branches"]
    return body(branches[np.clip(int(index), 0, len(branches) - 1)], args)


def _dot(eqn, a, b):
    (contract_a, contract_b), (batch_a, batch_b) = eqn.params["dimension_numbers"]
    axes_a, axes_b = list(range(a.ndim)), list(range(a.ndim, a.ndim + b.ndim))
    for i, j in zip((*contract_a, *batch_a), (*contract_b, *batch_b), strict=True):
        axes_b[j] = i
    free_a = [i for i in axes_a if i not in (*contract_a, *batch_a)]
    free_b = [i for i in axes_b if i >= a.ndim]
    return np.einsum(a, axes_a, b, axes_b, [*batch_a, *free_a, *free_b])


def _broadcast(eqn, x):
    shape = [1] * len(eqn.params["shape"])
    for size, i in zip(x.shape, eqn.params["broadcast_dimensions"], strict=True):
        shape[i] = size
    return np.broadcast_to(x.reshape(shape), eqn.params["shape"])


def _window(starts, sizes, shape):
    """The part of an array that a dynamic slice is of: clamped to be inside."""
    parts = zip(starts, sizes, shape, strict=True)
    starts = [np.clip(int(i), 0, n - k) for i, k, n in parts]
    return tuple(slice(i, i + k) for i, k in zip(starts, sizes, strict=True))


def _update(eqn, x, new, *starts):
    x = x.copy()
    x[_window(starts, new.shape, x.shape)] = new
    return x


def _slice(eqn, x):
    bounds = (eqn.params[k] for k in ("start_indices", "limit_indices", "strides"))
    start, stop, step = (b if b is not None else (None,) * x.ndim for b in bounds)
    return x[tuple(slice(*b) for b in zip(start, stop, step, strict=True))]


def _select(which, *cases):
    return (
        np.where(which, *reversed(cases))
        if len(cases) == 2
        else np.choose(which, cases)
    )


def _reshaped(eqn, x):
    return x.reshape(eqn.outvars[0].aval.shape)


def _reduce(fn):
    return lambda eqn, x: fn(x, axis=tuple(eqn.params["axes"]))


# Those that stand for their body, and its name.
_CALLS = {
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
    "jit": "jaxpr",
    "remat2": "jaxpr",
}
_CONTROL = {"scan": _scan, "while": _while, "cond": _cond}
_SIMPLE = {
    "add": np.add,
    "add_any": np.add,
    "and": np.bitwise_and,
    "cos": np.cos,
    "copy": np.asarray,
    "copy_p": np.asarray,
    "eq": np.equal,
    "exp": np.exp,
    "floor": np.floor,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "le_to": np.less_equal,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "lt": np.less,
    "lt_to": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.invert,
    "optimization_barrier": lambda *xs: xs,
    "or": np.bitwise_or,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "select_n": _select,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "square": np.square,
    "sub": np.subtract,
    "tanh": np.tanh,
}
_OTHERS = {
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda eqn, *xs: np.concatenate(xs, eqn.params["dimension"]),
    "convert_element_type": lambda eqn, x: x.astype(eqn.params["new_dtype"]),
    "dot_general": _dot,
    "dynamic_slice": lambda eqn, x, *starts: x[
        _window(starts, eqn.params["slice_sizes"], x.shape)
    ],
    "dynamic_update_slice": _update,
    "expand_dims": _reshaped,
    "reduce_and": _reduce(np.all),
    "reduce_max": _reduce(np.max),
    "reduce_or": _reduce(np.any),
    "reduce_sum": _reduce(np.sum),
    "reshape": _reshaped,
    "rev": lambda eqn, x: np.flip(x, eqn.params["dimensions"]),
    "slice": _slice,
    "squeeze": _reshaped,
    "transpose": lambda eqn, x: np.transpose(x, eqn.params["permutation"]),
}
