"""What a search for what isn't finite hands back."""

import dataclasses
from typing import NoReturn

from .._errors import NonFiniteError
from .._text import plural
from .blamed import Blame


@dataclasses.dataclass(frozen=True)
class NonFinite:
    """What [`peex.debug.find_nonfinite`][] found. False if neither the value nor a
    gradient holds anything that isn't finite.

    - `value`: what the value holds: `"finite"`, `"inf"` or `"nan"`.
    - `gradients`: the paths of the parameters whose gradient isn't finite, each with
        `"inf"` or `"nan"`. Empty without `grad`.
    - `producers`: what is to blame, the first first: parameters and arguments, then
        calls of the forward pass, then those of the backward pass.
    - `masked`: what made or held something that isn't finite, which went nowhere: it is
        in no value and no gradient.
    - `lost`: the sites that weren't seen, by their keys, with the reason.
    """

    value: str
    gradients: dict[str, str]
    producers: tuple[Blame, ...]
    masked: tuple[Blame, ...]
    lost: dict[str, str]

    @property
    def first(self) -> Blame | None:
        """The first of the producers, `None` if there is none."""
        return self.producers[0] if self.producers else None

    def __bool__(self) -> bool:
        return self.value != "finite" or bool(self.gradients)

    def __str__(self) -> str:
        if not self:
            lines = ["The value and all gradients are finite."]
        else:
            bad = [f"the value is {self.value}"] if self.value != "finite" else []
            if self.gradients:
                bad.append(f"{plural(len(self.gradients), 'gradient')} not finite")
            lines = [f"Not finite: {', '.join(bad)}."]
            lines += _listed("to blame", self.producers)
            if not self.producers:
                lines.append("Nothing that was seen is to blame.")
            elif self.producers[0].trail:
                lines.append(f"from there: {_shown(self.producers[0].trail)}")
            if self.gradients:
                named = [f"{path} ({kind})" for path, kind in self.gradients.items()]
                lines.append(f"gradients: {_shown(tuple(named))}")
        lines += _listed("went nowhere", self.masked)
        lines += [f"not seen: {key}: {why}" for key, why in self.lost.items()]
        return "\n".join(lines)

    def raise_if_found(self) -> None:
        """**Raises:** [`peex.NonFiniteError`][] unless all is finite."""
        if self:
            _raise(self)


def _raise(found: NonFinite) -> NoReturn:
    raise NonFiniteError(str(found))


_MOST = 8


def _listed(title: str, blames: tuple[Blame, ...]) -> list[str]:
    lines = [f"{title}: {blame}" for blame in blames[:_MOST]]
    if len(blames) > _MOST:
        lines.append(f"{title}: {len(blames) - _MOST} more")
    return lines


def _shown(names: tuple[str, ...]) -> str:
    more = f", and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more
