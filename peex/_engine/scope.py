"""Which of what sites say somebody takes: a [`Scope`][]."""

import dataclasses
from typing import Any

from .primitives import mark_p, tap_p
from .signature import Signature
from .site import Site


EVERY = -1


@dataclasses.dataclass(frozen=True)
class Scope:
    """Compares by value: what is compiled for one is good for all that equal it.

    - `depth`: that of the wrapper whose sites these are; `EVERY` for those of all.
    - `takes_marks`: whether marks are answered too, or stay where they are.
    - `drops_others`: whether taps of other wrappers are taken as well, and dropped. A
        `while` runs its condition at two places, of which they shall hear once.
    - `discards`: whether all that is taken is thrown away, as in a derivative rule: the
        function that the rule is of has been listened to.
    """

    depth: int
    takes_marks: bool = True
    drops_others: bool = False
    discards: bool = False

    def holds(self, site: Site) -> bool:
        """Whether it is one of these sites."""
        return self.depth == EVERY or site.depth == self.depth

    def hands_on(self, site: Site) -> bool:
        """Whether what is taken of this site's taps is handed on, one level up."""
        return self.drops_others or self.holds(site)

    def takes(self, primitive: Any, info: Any) -> bool:
        """Whether this tap, ask or mark is answered."""
        if self.drops_others and primitive is tap_p:
            return True
        return self.holds(info.site) and (self.takes_marks or primitive is not mark_p)

    def part(self, signature: Signature) -> Signature:
        """What of a signature is taken."""
        if not signature:
            return signature
        mine = signature if self.depth == EVERY else signature.at(self.depth)
        if self.drops_others:
            mine = dataclasses.replace(mine, taps=signature.taps)
        return mine if self.takes_marks else dataclasses.replace(mine, marked=())
