"""How amounts and arrays are written, in errors and in tables."""

import math
from typing import Any

import jax.tree_util as jtu


def plural(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def shown_count(n: int) -> str:
    """`12,345`, from a million on `1.23M`."""
    return f"{n:,}" if n < 10**6 else _scaled(n, "")


def shown_bytes(n: int) -> str:
    """`512 B`, `1.23 kB` (powers of 1000)."""
    return f"{n} B" if n < 1000 else f"{_scaled(n, ' ')}B"


def _scaled(n: int, space: str) -> str:
    power = min((len(str(n)) - 1) // 3, 6)
    scaled = n / 1000**power
    digits = 2 - int(math.log10(scaled)) if scaled < 1000 else 0
    return f"{scaled:.{digits}f}{space}{['', 'k', 'M', 'G', 'T', 'P', 'E'][power]}"


_SHORT = {
    "float": "f",
    "bfloat": "bf",
    "int": "i",
    "uint": "u",
    "complex": "c",
}


def shown_arrays(tree: Any) -> str:
    """The arrays of a pytree, as `f32[8, 4], i32[]`."""
    return ", ".join(_shown_array(x) for x in jtu.tree_leaves(tree)) or "-"


def _shown_array(x: Any) -> str:
    name = str(x.dtype)
    kind = name.rstrip("0123456789")
    short = _SHORT.get(kind, kind) + name[len(kind) :]
    return f"{short}[{','.join(str(n) for n in x.shape)}]"
