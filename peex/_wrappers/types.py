"""The types of what a wrapper is given, for type checkers and readers."""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, TYPE_CHECKING, TypeVar

import equinox as eqx
from jaxtyping import PyTree

from .._hooks.step_hooks import AbstractStepHook


Model = TypeVar("Model")
# The name of a method of the model, or a function of it and of its arguments.
Method = str | Callable[..., Any]

if TYPE_CHECKING:
    # For all sites, or by pattern; `None` is nothing.
    OneHook = Callable[[Any], Any] | AbstractStepHook
    Hook = OneHook | Mapping[str, OneHook | None] | None
    LogFn = OneHook | Mapping[str, OneHook | None] | None
    Pattern = str | type[eqx.Module]
    Patterns = Sequence[Pattern] | Set[Pattern]
    # As a dict, from names of one's own.
    Where = Pattern | Patterns | Mapping[str, Pattern] | Callable[[Any], Any] | None
    # As that of `equinox.partition`.
    FilterSpec = PyTree[bool | Callable[[Any], bool]]
else:
    # Checked by peex itself, whose errors say what to write instead.
    Hook = LogFn = Where = FilterSpec = Any
