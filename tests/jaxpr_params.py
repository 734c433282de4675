import jax

from peex import _compat


def params_of(fn, name, *args):
    jaxpr, _ = _compat.open_jaxpr(jax.make_jaxpr(fn)(*args))
    (params,) = [e.params for e in jaxpr.eqns if e.primitive.name == name]
    return params


def equations(jaxpr):
    """All equations of a program, with those inside of others."""
    jaxpr, _ = _compat.open_jaxpr(jaxpr)
    for eqn in jaxpr.eqns:
        yield eqn
        for param in jax.tree.leaves(eqn.params):
            if hasattr(param, "eqns") or hasattr(param, "jaxpr"):
                yield from equations(param)
