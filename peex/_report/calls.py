"""One call of a report, and calls within calls."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax.tree_util as jtu

from .._log import Axis
from .._show.shown import AbstractShown
from .._show.wrapped import wrapped
from .._text import shown_arrays
from .._wrappers.budget import num_bytes
from .nested import lines
from .parameters import HasParameters, Parameter


@dataclasses.dataclass(frozen=True, eq=False)
class Call(HasParameters):
    """One call of one site.

    - `key`, `site`, `number`: its key in a log, as `"cell#2"`; the key of the site,
        `"cell"`; and the number of the call, 2 (0 for the first).
    - `is_inside`: whether it is a value inside of a call, rather than its output: one
        that is named inside of a module, or its arguments, as `"cell:in"`.
    - `class_name`: of the module; `"value"` for a value inside of one, `"arguments"`
        for its arguments.
    - `inputs`: the pair `(args, kwargs)` of one example at one step, as a pytree of
        `jax.ShapeDtypeStruct`s (`None` for what isn't an array). `None` if it isn't
        known.
    - `outputs`: the output, likewise.
    - `axes`: the axes that the output gains in a log, in their order, as a
        [`peex.Log`][] has them: `kind`, `size`, and `loop` where a step axis is of one.
    - `stacked`: of each of the axes, whether it is one of stacked layers: a step axis
        of a `scan` over parameters, rather than over data.
    - `log`: the output with these axes, as `px.IdentityLog` records it.
    - `when`: `"always"`; `"conditional"`, in a branch of a `cond` or `switch`; or
        `"last of many"`, in a `while` loop, of which a log holds the last iteration.
        How often it was, if not always, is in `log.counts`.
    - `parameters`: the arrays in the module.
    - `own_parameters`: those of them that aren't in a module inside of it which is
        called itself, or has public methods.
    - `flops`: over all axes, with the calls inside, and with the derivatives of both
        where the model itself takes these; in a `while`, of one iteration.
        `None` where JAX has rewritten the branch or loop around it, to batch it. The
        formulas are those of [`peex.Report`][].
    - `line`: of a value inside of a module's forward pass, where it is written, as
        `"model.py:12"`; otherwise `None`.
    - `children`: the calls inside, in the order in which they begin.
    """

    key: str
    site: str
    number: int
    is_inside: bool
    class_name: str
    inputs: Any
    outputs: Any
    axes: tuple[Axis, ...]
    stacked: tuple[bool, ...]
    log: Any
    when: str
    parameters: tuple[Parameter, ...]
    own_parameters: tuple[Parameter, ...]
    flops: int | None
    line: str | None
    children: tuple["Call", ...]

    @property
    def own_parameter_count(self) -> int:
        return sum(p.count for p in self.own_parameters)

    @property
    def log_bytes(self) -> int:
        """What the output would take in a log."""
        return num_bytes(self.log)

    def walk(self) -> Iterator["Call"]:
        """This call and all inside, outer ones first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def __repr__(self) -> str:
        return f"<call {self.key}: {self.arrows}>"

    def __str__(self) -> str:
        return str(Tree((self,)))

    def to_dict(self) -> dict[str, Any]:
        """As of [`peex.Report`][]; the calls inside by their keys."""
        return {
            "key": self.key,
            "site": self.site,
            "number": self.number,
            "class": self.class_name,
            "inputs": _arrays(self.inputs),
            "outputs": _arrays(self.outputs),
            "axes": [
                [*axis, axis.loop] if axis.loop else [*axis] for axis in self.axes
            ],
            "when": self.when,
            "parameters": self.parameter_count,
            "own_parameters": self.own_parameter_count,
            "parameter_bytes": self.parameter_bytes,
            "log_bytes": self.log_bytes,
            "flops": self.flops,
            "line": self.line,
            "children": [child.key for child in self.children],
        }

    @property
    def shown_inputs(self) -> str:
        return "?" if self.inputs is None else shown_arrays(self.inputs)

    @property
    def arrows(self) -> str:
        """What goes in and comes out."""
        outputs = shown_arrays(self.outputs)
        return outputs if self.is_inside else f"{self.shown_inputs} -> {outputs}"

    @property
    def flow(self) -> str:
        """The same, with its axes and whether it always runs."""
        axes = self._axes()
        return f"{self.arrows}  [{axes}]" if axes else self.arrows

    def _axes(self) -> str:
        loop = lambda axis: "" if axis.loop is None else f" ({axis.loop})"
        shown = [f"{axis.kind} {axis.size}{loop(axis)}" for axis in self.axes]
        return ", ".join([*shown, *([] if self.when == "always" else [self.when])])


def _arrays(tree: Any) -> list[dict[str, Any]] | None:
    if tree is None:
        return None
    leaves = jtu.tree_leaves(tree)
    return [{"shape": list(x.shape), "dtype": str(x.dtype)} for x in leaves]


@dataclasses.dataclass(frozen=True, eq=False)
class Tree(AbstractShown):
    """Calls within calls. Iterates over all of them, outer ones first; printed, the
    calls indented as they are nested; of more than 30, those that are alike but for the
    numbers in their keys are one (`tree.show(fold=False)` has all).
    """

    children: tuple[Call, ...]

    def __iter__(self) -> Iterator[Call]:
        for child in self.children:
            yield from child.walk()

    def _text(self, fold: bool | None, width: int) -> str:
        made = []
        for line in lines(self.children, fold):
            for depth, text in line.walk():
                indent = "  " * depth
                made += wrapped(text, width, indent, f"{indent}    ")
        return "\n".join(made)

    def _html(self, fold: bool | None) -> str:
        inside = "".join(line.html() for line in lines(self.children, fold))
        return f'<div style="font-family:monospace">{inside}</div>'
