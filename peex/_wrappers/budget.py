"""How many bytes a log takes, and may take."""

import math
from typing import Any

import jax.tree_util as jtu

from .._errors import LogTooLargeError
from .._log import Log
from .._text import shown_arrays, shown_bytes


def num_bytes(tree: Any) -> int:
    """Of the arrays of a pytree (or their shapes)."""
    leaves = jtu.tree_leaves(tree)
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in leaves)


def check_size(log: Log, max_bytes: int) -> None:
    """**Raises:** `LogTooLargeError` if a log takes more than `max_bytes`."""
    total = num_bytes(log)
    if total <= max_bytes:
        return
    largest = sorted(log, key=lambda key: num_bytes(log[key]), reverse=True)[:5]
    shown = "; ".join(
        f"{key!r} {shown_bytes(num_bytes(log[key]))}, {shown_arrays(log[key])}"
        for key in largest
    )
    raise LogTooLargeError(
        f"The log of this call would take {shown_bytes(total)} ({total} bytes), more "
        f"than `max_bytes={max_bytes}`. Nothing has run. The largest of its {len(log)} "
        f"entries: {shown}. Choose fewer sites with `where`, or record less of each, "
        "as in `log_fn=px.MeanStdLog()`."
    )
