"""Operations by the names that people write: those of functions of `jax.numpy` and
`jax.nn` that are one primitive of another name. Where the model calls such a function,
it is found as one; these are for what is written as an operator, or with `jax.lax`.
"""

from collections.abc import Container


# Each with the primitives that it may be.
_PRIMITIVES = {
    "absolute": ("abs",),
    "amax": ("reduce_max",),
    "amin": ("reduce_min",),
    "arctan2": ("atan2",),
    "astype": ("convert_element_type",),
    "concat": ("concatenate",),
    "conv": ("conv_general_dilated",),
    "divide": ("div",),
    "dot": ("dot_general",),
    "einsum": ("dot_general",),
    "equal": ("eq",),
    "expit": ("logistic",),
    "greater": ("gt",),
    "greater_equal": ("ge",),
    "less": ("lt",),
    "less_equal": ("le",),
    "matmul": ("dot_general",),
    "maximum": ("max",),
    "minimum": ("min",),
    "mod": ("rem",),
    "multiply": ("mul",),
    "negative": ("neg",),
    "not_equal": ("ne",),
    "power": ("pow", "integer_pow"),
    "prod": ("reduce_prod",),
    "remainder": ("rem",),
    "sigmoid": ("logistic",),
    "subtract": ("sub",),
    "sum": ("reduce_sum",),
    "take": ("gather",),
    "tensordot": ("dot_general",),
    "true_divide": ("div",),
    "where": ("select_n",),
}


def primitive_of(name: str, there: Container[str]) -> str | None:
    """The primitive that a name stands for, of those that are there."""
    return next((p for p in _PRIMITIVES.get(name, ()) if p in there), None)
