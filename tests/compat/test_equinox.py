"""One canary for each use of Equinox's private API."""

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from closeness import assert_close

from peex import _compat


def test_wrappers_of_equinox():
    linear = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    other = eqx.nn.Linear(2, 2, key=jax.random.key(1))
    x = jnp.ones(2)
    for wrap, arg in (
        (eqx.filter_jit, x),
        (eqx.filter_vmap, x[None]),
        (eqx.filter_checkpoint, x),
        (lambda m: eqx.filter_jit(eqx.filter_checkpoint(m)), x),
    ):
        wrapped, rewrap = _compat.stood_for(wrap(linear))
        again = rewrap(jax.tree.map(lambda x: x, other))
        assert type(again) is type(wrap(linear))
        assert_close(again(arg).ravel(), other(x))
        while _compat.stood_for(wrapped) is not None:
            wrapped, _ = _compat.stood_for(wrapped)
        assert eqx.tree_equal(wrapped, linear)
    loss = lambda m: jnp.sum(m(x))
    assert _compat.stood_for(eqx.filter_grad(loss))[0] is loss
    assert _compat.stood_for(linear) is None
    assert _compat.stood_for(eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0))) is None


def test_noinline():
    jaxpr, _ = _compat.open_jaxpr(jax.make_jaxpr(eqxi.noinline(lambda x: x + 1))(1.0))
    (eqn,) = jaxpr.eqns
    assert eqn.primitive is _compat.noinline_p
    assert sorted(eqn.params) == ["flatten", "static", "treedef"]
    # First the number of the function, then its arguments.
    index, _ = (v.val for v in eqn.invars[:1]), eqn.invars[1]
    (out,) = _compat.noinline_impl(*index, jnp.array(1.0), **eqn.params)
    assert float(out) == 2.0
