"""What is told of a hook or log before it is called."""

from typing import Any

import equinox as eqx


def refuse_class(what: str, fn: Any) -> None:
    """Refuses a class in the place of an instance: called with a value, it would make
    one that holds it.

    **Raises:** `TypeError`.
    """
    if isinstance(fn, type) and issubclass(fn, eqx.Module):
        raise TypeError(
            f"{what} is the class {fn.__name__} itself; give an instance of it, as "
            f"`{fn.__name__}(...)`."
        )
