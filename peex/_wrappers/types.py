"""The types of what a wrapper is given, for type checkers and readers."""

from collections.abc import Callable, Mapping
from typing import Any, TYPE_CHECKING, TypeVar

import equinox as eqx

from .._hooks.step_hooks import AbstractStepHook


Model = TypeVar("Model")
# The name of a method of the model, or a function of it and of its arguments.
Method = str | Callable[..., Any]

if TYPE_CHECKING:
    # For all sites, or by pattern; `None` is nothing.
    OneHook = Callable[[Any], Any] | AbstractStepHook
    Hook = OneHook | Mapping[str, OneHook | None] | None
    LogFn = Callable[[Any], Any] | Mapping[str, Callable[[Any], Any] | None] | None
    Pattern = str | type[eqx.Module]
    Patterns = Pattern | list[Pattern] | tuple[Pattern, ...]
    # As a dict, from names of one's own.
    Where = Patterns | Mapping[str, Pattern] | Callable[[Any], Any] | None
else:
    # Checked by peex itself, whose errors say what to write instead.
    Hook = LogFn = Where = Any
