"""What the engine knows of a primitive that has bodies: its [`Rule`][].

Everything that looks into programs asks the rule: the trace that brings sites out, the
values inside of a forward pass, the FLOPs, the call tree. So what is particular to a
primitive stands in one file of `rules`, which registers it.
"""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .signature import Signature


Params = dict[str, Any]
# What each tap hands out: the arrays of its log, and the count if it is counted.
LogArrays = list[list[Any]]
Outcome = tuple[list[Any], LogArrays]


class Arrays(NamedTuple):
    """What the sites in a body are given.

    - `slots`: the buffers and data that they ask for call by call, in order.
    - `shared`: the arrays of hooks and logs, which are the same for all, by name.
    """

    slots: list[Any]
    shared: dict[tuple[int, str], Any]


class AbstractRunner(abc.ABC):
    """Runs the bodies of a primitive, on behalf of who takes something out of them. JAX
    may run them long after the call, so it holds nothing of that.
    """

    @abc.abstractmethod
    def inside(self, jaxpr: Any) -> Signature:
        """What is taken out of a body."""

    @abc.abstractmethod
    def run(
        self,
        jaxpr: Any,
        args: Sequence[Any],
        arrays: Arrays,
        once_more: bool = False,
    ) -> Outcome:
        """Runs a body: its outputs, and what `inside` says, in this order. `once_more`
        says that the same body also runs at another place in the rebuilt program, from
        where the sites of other wrappers are brought out: here they are dropped.
        """


@dataclasses.dataclass(frozen=True)
class Body:
    """One program inside of a primitive.

    - `jaxpr`: the program.
    - `operands`: which operands of the primitive are its arguments, by position.
    - `times`: how often it runs; `None` if that isn't known before.
    - `carried`: which of its outputs are which of its arguments when it runs again.
    - `decides`: whether its outputs only say how often another one runs. Otherwise they
        are the first results of the primitive.
    """

    jaxpr: Any
    operands: Sequence[int]
    times: Any = 1
    carried: Sequence[tuple[int, int]] = ()
    decides: bool = False

    @property
    def times_counted(self) -> Any:
        """How often it runs, as far as that is known: of a `while` one iteration."""
        return 1 if self.times is None else self.times


@dataclasses.dataclass(frozen=True)
class Rule:
    """How sites are brought out of one primitive.

    - `signature`: what it taps and asks for as a whole, from its parameters and its
        operands (which are values, or variables of a jaxpr).
    - `bodies`: the programs that it runs, from the same. (Not those of derivatives.)
    - `rebind`: binds it again, with what a runner takes out of its bodies as further
        outputs; from its parameters, operands, and the arrays for its sites. The logs
        are in the order of the signature.
    - `call`: for a primitive that comes with functions in the place of jaxprs, calls
        it, its sites brought out; `None` where it has none. The arguments are the
        primitive, the functions, the operands, the parameters, and the collector.
    - `sees_into`: whether its bodies run as they are written, so that values in them
        have names.
    - `exclusive`: whether only one of its bodies runs, which its first operand chooses.
    - `own_derivative`: whether it has a derivative rule of its own.
    - `forwards`: whether outputs that are operands of its one body are these objects.
    - `jit_options`: for a primitive that is a jit, the options of `jax.jit`.
    """

    signature: Callable[[Params, Sequence[Any]], Signature]
    bodies: Callable[[Params, Sequence[Any]], list[Body]]
    rebind: Callable[[Params, Sequence[Any], Arrays, AbstractRunner], Outcome] | None
    call: Callable[[Any, Sequence[Any], Sequence[Any], Params, Any], Any] | None = None
    sees_into: bool = False
    exclusive: bool = False
    own_derivative: bool = False
    forwards: bool = False
    jit_options: Callable[[Params], dict[str, Any]] | None = None


_rules: dict[Any, Rule] = {}


def register(primitive: Any, rule: Rule) -> None:
    """Makes the engine see into a primitive."""
    _rules[primitive] = rule


def rule_of(primitive: Any) -> Rule | None:
    """The rule of a primitive, if it has one."""
    return _rules.get(primitive)
