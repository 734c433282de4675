"""What is static of a log: how it rides in the structure of a pytree, and how it is
written into what `jax.export` makes.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from .axes import Axis


class Unseen:
    """Rides in the structure of a log without being part of what that is: logs of equal
    keys can be mapped together, and are alike to a jitted function.
    """

    def __init__(self, axes: dict[str, tuple[Axis, ...]]):
        self.axes = axes

    def __eq__(self, other: object) -> bool:
        return type(other) is Unseen

    def __repr__(self) -> str:
        return "<axes>"

    def __hash__(self) -> int:
        return 0


def axes_as_plain(axes: Mapping[str, tuple[Axis, ...]]) -> dict[str, Any]:
    """As lists, as for JSON."""
    return {key: [dataclasses.astuple(x) for x in mine] for key, mine in axes.items()}


def axes_of_plain(plain: Mapping[str, Any]) -> dict[str, tuple[Axis, ...]]:
    return {key: tuple(Axis(*axis) for axis in mine) for key, mine in plain.items()}


def to_bytes(aux: Any) -> bytes:
    *keys, unseen = aux
    return json.dumps((*keys, axes_as_plain(unseen.axes)), default=str).encode()


def from_bytes(data: bytes) -> Any:
    keys, count_keys, axes = json.loads(data)
    return tuple(keys), tuple(count_keys), Unseen(axes_of_plain(axes))
