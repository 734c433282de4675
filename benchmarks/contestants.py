"""Who is measured: the unhooked model, peex, the model edited by hand, and the peers.

A `Contestant` is one way to run a case. `line_up` makes all that there are for a case,
and asserts that they compute the same, before anything is timed.
"""

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import peex as px

from .models import Case, Values


class Call(NamedTuple):
    """A function with its arguments. It can be called as it is, or staged."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]

    def __call__(self) -> Any:
        return self.fn(*self.args)

    def lower(self) -> Callable[[], Any]:
        """A function that traces and lowers this each time that it is called."""
        arrays, static = eqx.partition(self.args, eqx.is_array)
        # Without their structure, since JAX names parameters by their place in that.
        leaves, treedef = jax.tree.flatten(arrays)
        traced = 0

        def once() -> Any:
            def run(leaves: list[Array]) -> Any:  # new: JAX has no trace of it
                nonlocal traced
                traced += 1
                arrays = jax.tree.unflatten(treedef, leaves)
                return self.fn(*eqx.combine(arrays, static))

            before = traced
            lowered = jax.jit(run).lower(leaves)
            assert traced > before, "JAX has reused a trace"
            return lowered

        return once

    def compiled(self) -> "Compiled":
        structure: Any = None

        def flat(*args: Any) -> list[Array]:
            nonlocal structure
            leaves, structure = jax.tree.flatten(self.fn(*args))
            return leaves

        program = Call(flat, self.args).lower()().compile()
        leaves = jax.tree.leaves(eqx.filter(self.args, eqx.is_array))
        return Compiled(program, leaves, structure)


class Compiled(NamedTuple):
    """A compiled call. It is timed without structure: what the library's containers
    cost in Python is in the rows on dispatch.
    """

    program: Any
    leaves: list[Array]
    structure: Any

    def __call__(self) -> list[Array]:
        return self.program(self.leaves)

    def result(self) -> Any:
        return jax.tree.unflatten(self.structure, self())


@dataclasses.dataclass(frozen=True)
class Contestant:
    """One way to run a case.

    - `plain`: its model, without hooks: what it is compared with.
    - `logged`: returns the output and what the layers return, in whatever form this
        library has; `values` brings that into the form of `Case.by_hand`.
    - `plain_step`: `(loss, gradient)`; `step`: the cotangents too, of which
        `cotangents` makes `(loss, {key: cotangent})`.
    - `eager`: what is called instead of `logged` where nothing is staged, if that is
        another way to use the library.
    - `own`: whether `plain` is another model than the unhooked one.
    - `staged`: whether `jax.jit` can compile it; otherwise it runs as it is.
    """

    plain: Call
    logged: Call | None = None
    values: Callable[[Any], tuple[Any, Values]] = lambda out: out
    plain_step: Call | None = None
    step: Call | None = None
    cotangents: Callable[[Any], tuple[Any, Values]] = lambda out: out
    eager: Call | None = None
    own: bool = False
    staged: bool = True
    _compiled: dict[str, Compiled] = dataclasses.field(default_factory=dict, init=False)

    def ready(self, name: str) -> Call | Compiled | None:
        """The call in the field `name`, as one runs it many times: compiled (once), if
        that can be.
        """
        call = getattr(self, name)
        if call is None or not self.staged:
            return call
        if name not in self._compiled:
            self._compiled[name] = call.compiled()
        return self._compiled[name]


class Unsupported(Exception):
    """A peer that can't run a case. The message is the reason, which is printed."""


# Each is a module in `peers`, with a function `contestant(case)`.
PEERS = {
    "peex 0.0.3": "peex003",
    "Flax capture": "flax_capture",
    "Flax perturb": "flax_perturb",
    "Penzai": "penzai_save",
    "TorchLens": "torchlens_jax",
    "Oryx": "oryx_harvest",
    "PyTorch hooks": "torch_hooks",
    "TransformerLens": "transformer_lens_cache",
    "nnsight": "nnsight_save",
}


def loss_of(out: Array) -> Array:
    return jnp.sum(out**2)


def _plain_loss(model: Any, x: Array) -> Array:
    return loss_of(model(x))


def unhooked(case: Case) -> Contestant:
    model, x = case.model, case.x
    return Contestant(
        plain=Call(lambda model, x: model(x), (model, x)),
        plain_step=Call(eqx.filter_value_and_grad(_plain_loss), (model, x)),
    )


def peex(case: Case) -> Contestant:
    forward = px.ForwardHook(case.model)
    backward = px.BackwardHook(case.model).init(case.x)
    return dataclasses.replace(
        unhooked(case),
        logged=Call(lambda hooked, x: hooked(x), (forward, case.x)),
        values=lambda result: (result[0], dict(result[1])),
        step=Call(eqx.filter_value_and_grad(_plain_loss), (backward, case.x)),
        cotangents=lambda result: (result[0], dict(result[1].log)),
    )


def one_call(case: Case) -> Contestant:
    """peex without `init`, by `px.value_and_grad`."""
    step = px.value_and_grad(_plain_loss)
    return dataclasses.replace(
        unhooked(case),
        step=Call(step, (case.model, case.x)),
        cotangents=lambda result: (result[0][0], dict(result[0][1].backward)),
    )


def by_hand(case: Case) -> Contestant:
    shapes = eqx.filter_eval_shape(case.by_hand, case.model, case.x)[1]
    zeros = {key: jnp.zeros(s.shape, s.dtype) for key, s in shapes.items()}

    @eqx.filter_value_and_grad
    def step(varied: Any, x: Array) -> Array:
        model, added = varied
        return loss_of(case.by_hand(model, x, added)[0])

    def cotangents(result: Any) -> tuple[Any, Values]:
        loss, (_, values) = result
        return loss, values

    return dataclasses.replace(
        unhooked(case),
        logged=Call(case.by_hand, (case.model, case.x)),
        step=Call(step, ((case.model, zeros), case.x)),
        cotangents=cotangents,
    )


class LineUp(NamedTuple):
    """The contestants of a case, and why the others aren't there."""

    contestants: dict[str, Contestant]
    skipped: dict[str, str]


def line_up(case: Case) -> LineUp:
    """**Raises:** `AssertionError` if two contestants don't compute the same."""
    contestants = {
        "unhooked": unhooked(case),
        "peex": peex(case),
        "value_and_grad": one_call(case),
        "by hand": by_hand(case),
    }
    skipped = {}
    for name, module in PEERS.items():
        try:
            peer = importlib.import_module(f"{__package__}.peers.{module}")
        except (ImportError, AttributeError) as e:
            # The latter from a package that is for another version of JAX.
            skipped[name] = f"can't be imported: {e}"
            continue
        try:
            contestants[name] = peer.contestant(case)
        except Unsupported as e:
            skipped[name] = str(e)
    check(contestants)
    return LineUp(contestants, skipped)


def check(contestants: dict[str, Contestant]) -> None:
    """Asserts that all outputs, values, losses and cotangents are those of the model
    that was edited by hand.
    """
    hand = contestants["by hand"]
    output, values = hand.values(_run(hand, "logged"))
    cotangents = hand.cotangents(_run(hand, "step"))
    for name, other in contestants.items():
        if other.own or name == "unhooked":
            assert_same(f"{name}: output", _run(other, "plain"), output)
        if other.logged is not None:
            logged = other.values(_run(other, "logged"))
            assert_same(f"{name}: values", logged, (output, values))
        if other.step is not None:
            step = other.cotangents(_run(other, "step"))
            assert_same(f"{name}: cotangents", step, cotangents)


def _run(contestant: Contestant, name: str) -> Any:
    call = contestant.ready(name)
    assert call is not None
    return call.result() if isinstance(call, Compiled) else call()


def assert_same(what: str, got: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert set(got) == set(expected), (
            f"{what}: {sorted(set(got) ^ set(expected))} is on one side only"
        )
        for key, value in expected.items():
            assert_same(f"{what} {key}", got[key], value)
    elif isinstance(expected, tuple):
        for a, b in zip(got, expected, strict=True):
            assert_same(what, a, b)
    else:
        a, b = np.asarray(got), np.asarray(expected)
        # A layer's heads may be an axis of their own; the numbers are the same.
        error = np.max(np.abs(a.reshape(b.shape) - b)) / max(np.max(np.abs(b)), 1e-30)
        assert error < 1e-3, f"{what} differs by {error:.1e} of its largest value"
