"""Which of the two runs something is put into, and which it is taken from."""

from collections.abc import Callable
from typing import Any, Literal, TYPE_CHECKING

from jaxtyping import PyTree

from .._log import Log
from .runs import check_counts


if TYPE_CHECKING:
    Source = Literal["clean", "zero", "mean"] | Log
    Direction = Literal["denoising", "noising"]
else:
    # Checked by peex itself, whose errors say what to write instead.
    Source = Direction = Any


Metric = Callable[[Any], PyTree]


def check_direction(direction: Any) -> None:
    """**Raises:** `TypeError` for one that there isn't."""
    if direction not in ("denoising", "noising"):
        raise TypeError(
            f'`direction={direction!r}` isn\'t known. Write "denoising", which puts '
            'values of the clean run into the corrupted one, or "noising", which does '
            "the reverse."
        )


# What a run says of itself: its metric, and how often its sites ran.
Said = tuple[PyTree, dict[str, Any]]


def metrics_of(direction: Direction, given: Said, base: Said) -> tuple[PyTree, PyTree]:
    """The metric of the clean and of the corrupted run.

    **Raises:** if a site that runs under a condition did so in one run alone.
    """
    # The other way round is the same.
    (clean, *counts), (corrupted, *others) = given_and_base(direction, given, base)
    check_counts(Log({}, *counts), Log({}, *others))
    return clean, corrupted


def base_of(direction: Direction) -> Literal["clean", "corrupted"]:
    """The run that something is put into."""
    return "corrupted" if direction == "denoising" else "clean"


def given_and_base(direction: Direction, clean: Any, corrupted: Any) -> tuple[Any, Any]:
    """What there is of each run as that which gives, and that which is changed."""
    return (clean, corrupted) if direction == "denoising" else (corrupted, clean)
