import jax
import numpy as np


def assert_close(a, b, rtol=1e-6, atol=None):
    """Of the same structure and shapes, and close; `atol` is `rtol` if not given.
    Of the same dtypes where both are arrays of JAX.

    What is left of values of order one that cancel is rounded as they were, and
    differently on each CPU: `rtol` alone would ask for more digits than there are.
    """
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert np.shape(x) == np.shape(y)
        if isinstance(x, jax.Array) and isinstance(y, jax.Array):
            assert x.dtype == y.dtype
        atol_ = rtol if atol is None else atol
        np.testing.assert_allclose(x, y, rtol=rtol, atol=atol_)
