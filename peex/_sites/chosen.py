"""One site that was chosen, and what it is called."""

import dataclasses
import fnmatch
from typing import Any

from .._engine.site import INPUT, suffix_of
from .keys import split_call
from .patterns import key_matches


def is_wild(pattern: str) -> bool:
    """Whether a pattern holds wildcards."""
    return any(sign in pattern for sign in "*?[")


@dataclasses.dataclass(frozen=True)
class Chosen:
    """One chosen site: a module (or function) and its method; or a named value inside
    of that, and which one of its name (`None`: all). `call` is which further call of it
    (`None`: all); `is_input`, whether it is at the arguments; `alias`, the name of the
    user's own. `but` are further calls in which its hook doesn't act, since a dict of
    hooks has another for them: of those, `own_hook` is true.
    """

    place: str
    method: str
    inside: str | None = None
    index: int | None = None
    call: int | None = None
    is_input: bool = False
    alias: str | None = None
    but: tuple[int, ...] = ()
    own_hook: bool = False

    def key(self, root_method: str) -> str:
        """What it is called in the log."""
        alias = self.named(self.suffix)
        if alias is not None:
            return "".join(alias)
        call = "" if self.call is None else f"#{self.call}"
        return f"{self._base(root_method)}{call}{self.suffix}"

    def module_key(self, root_method: str) -> str:
        """The key of the module."""
        if self.method == "__call__" or (
            self.place == "." and self.method == root_method
        ):
            return self.place
        return f"{self.place}:{self.method}"

    def site_key(self, root_method: str) -> str:
        """The key of its site, which is that of all calls."""
        return f"{self._base(root_method)}{self.suffix}"

    def _base(self, root_method: str) -> str:
        return f"{self.module_key(root_method)}{INPUT if self.is_input else ''}"

    @property
    def suffix(self) -> str:
        return "" if self.inside is None else suffix_of(self.inside, self.index)

    def named(self, suffix: str) -> tuple[str, str] | None:
        """The name of the user's own of a site that this chooses, whose key ends with
        `suffix`, as a site has it. Of values inside, it says which where it is one of
        several.
        """
        if self.alias is None:
            return None
        only = suffix == self.suffix and not is_wild(self.inside or "")
        return self.alias, "" if only else suffix

    @property
    def value(self) -> tuple[str, int | None] | None:
        """The value inside, as a site says it."""
        return None if self.inside is None else (self.inside, self.index)

    def names(self, name: str, index: int | None = None) -> bool:
        """Whether it is a value inside, of this name, and this one of its name."""
        if self.inside is None or not fnmatch.fnmatchcase(name, self.inside):
            return False
        return None in (index, self.index) or index == self.index


def with_calls(
    chosen: tuple[Chosen, ...], hook_fn: Any, root_method: str
) -> tuple[Chosen, ...]:
    """What is chosen, with the further calls for which a dict of hooks has one of their
    own, as `{"cell#1": hook}`.
    """
    patterns = hook_fn if isinstance(hook_fn, dict) else {}
    calls = [
        (p, n) for p, n in ((p, split_call(p)[1]) for p in patterns) if n is not None
    ]
    if not calls:
        return chosen
    with_own: list[Chosen] = []
    for each in chosen:
        numbers = {
            n
            for pattern, n in calls
            if each.call is None
            and each.inside is None
            and key_matches(pattern, f"{each.key(root_method)}#{n}", each.suffix)
        }
        with_own.append(dataclasses.replace(each, but=tuple(sorted(numbers))))
        with_own += [
            dataclasses.replace(each, call=n, own_hook=True) for n in sorted(numbers)
        ]
    return tuple(with_own)
