import jax

from peex import _compat


def params_of(fn, name, *args):
    jaxpr, _ = _compat.open_jaxpr(jax.make_jaxpr(fn)(*args))
    (params,) = [e.params for e in jaxpr.eqns if e.primitive.name == name]
    return params
