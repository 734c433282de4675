"""Comparing two models that should compute the same."""

from collections.abc import Callable, Mapping
from typing import Any, TYPE_CHECKING

from .._errors import PeexError, SiteNotFoundError
from .._sites.patterns import nearest
from .._sites.places import places
from .._wrappers.plan import check_method
from .._wrappers.run import as_function
from .._wrappers.types import Method
from .both_backward import both_backward
from .comparable import check_inference, check_inputs
from .compared import Unmatched
from .comparison import Comparison
from .culprits import culprits, with_notes
from .layouts import tolerance
from .pairing import does_not_fit, Pairing, shapes_of
from .parameter_rows import parameter_rows
from .rows import Compared
from .side_equinox import EquinoxSide
from .side_log import as_logs, is_log, LogSide
from .side_torch import is_torch_module, TorchSide
from .sides import AbstractSide, Visit
from .truth import limits_of, Truth


if TYPE_CHECKING:
    Match = Mapping[str, str | None]
else:
    Match = Any  # checked by peex itself, whose error says what to write instead


def compare(
    model: Any,
    other: Any,
    *args: Any,
    method: Method | None = None,
    to_other: Callable[..., Any] | None = None,
    match: Match | None = None,
    local: bool = True,
    grad: bool = False,
    rtol: float | None = None,
    truth: Any = None,
) -> Comparison:
    """Runs two models that should compute the same, as a model and what it was ported
    from, and says call by call how far they are apart, and which are to blame.

    One fault makes all that follows differ. So each call of `other` is also looked at
    alone: it is given what the model was given there, and what it returns is replaced
    by what the model returned, for whatever comes after. Its `local_error` is then its
    own fault: that of a module without others inside, of what it computes; that of one
    with others inside, of the code between these.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        key1, key2 = jax.random.split(jax.random.key(0))
        layers = [eqx.nn.Linear(4, 8, key=key1), eqx.nn.LayerNorm(8)]
        model = eqx.nn.Sequential([*layers, eqx.nn.Linear(8, 2, key=key2)])
        other = eqx.tree_at(lambda m: m[1], model, eqx.nn.LayerNorm(8, eps=0.1))
        result = px.debug.compare(model, other, jnp.arange(4.0))
        result.culprits  # ['layers.1']
        result["layers.2"].differs  # True, though not its own fault
        str(result)  # a table, as `print` shows it
        ```

    Which calls belong together is found out, and said in each row: what `match` says;
    then modules with equal parameters, in whatever layout (those of one size are told
    apart by their sums and sums of squares, in float64, and then by their values); then
    keys that are alike, where step 2 of a scanned `layers.norm` is `blocks.2.norm`;
    then what is left, in order of execution, if it is of one size. Functions in fields,
    as activations, are compared too.

    **Arguments:**

    - `model`: the reference, any Equinox module. It is run compiled.
    - `other`: what it is compared with: an Equinox module; a `torch.nn.Module`, which
        its own hooks look into; or a log of another run, as from another machine: a
        mapping from keys to arrays (of the forward pass), the [`peex.Logs`][] of both
        passes, or the path of a file, as [`peex.Log.save`][] writes it. A log has no
        local errors.
    - `*args`: the arguments of the model.
    - `method`: what is called, as for [`peex.ForwardHook`][]; also of another Equinox
        module. It may map over a batch, `lambda model, xs: jax.vmap(model)(xs)`.
        A module of PyTorch is called itself.
    - `to_other`: makes the arguments of `other` from those of the model: a tuple of
        them, or one alone, or a dict by name. Arrays become tensors by themselves;
        integers, of 64 bits.
    - `match`: a dict from patterns over keys of the model to such of the other, as
        `{"layers.*.attn": "blocks.*.attention"}`. What the wildcards stand for is the
        same in both, where the step of a stack is a number: `{"layers.attn":
        "blocks.*.attention"}` if the layers of the model are scanned. `None` leaves a
        call out; `{"args[0]": None}` doesn't ask whether the first argument is the same
        for both.
    - `local`: whether local errors are looked for, which takes another run of `other`.
    - `grad`: whether cotangents, and the gradients of parameters, are compared too:
        those of a sum of the outputs, each times a normal number; of a scalar itself.
    - `rtol`: which errors count, `max(|x - y|) / max(|x|, |y|)` of two values `x` and
        `y`. By default 1e-4 in float32, 1e-9 in float64, 1e-2 in float16, 5e-2 in
        bfloat16, and a tenth of that for local errors.
    - `truth`: a dtype, `"float32"` or `"float64"`: runs the model in that, too, and
        counts an error only where it exceeds three times that of the model itself, next
        to the truth (and what storing a value rounds).

    **Returns:**

    A [`peex.debug.Comparison`][]. Print it, or call its `assert_close()` in a test.

    **Raises:**

    [`peex.NotCloseError`][] if the two are given different inputs. [`peex.PeexError`][]
    if dropout or training mode is on. [`peex.SiteNotFoundError`][] if a pattern of
    `match` matches nothing, or nothing belongs together.
    [`peex.LogShapeError`][] if what does has shapes that no permutation of axes aligns.
    """
    method = "__call__" if method is None else method
    if is_torch_module(model):
        raise TypeError(
            "`model` is a module of PyTorch, and the other a "
            f"{type(other).__name__}. Write it the other way round: "
            "`px.debug.compare(equinox_model, torch_module, *args)`."
        )
    check_method(model, method)
    fn = as_function(method)
    match = _checked(match)
    check_inference(model, "model")
    ours = EquinoxSide(model, args, fn)
    theirs = _other_side(other, args, fn, to_other, ours)
    unasked = {key for key in match if key.startswith("args[")}
    _check_inputs(ours, theirs, unasked, rtol)
    match = {key: one for key, one in match.items() if key not in unasked}
    pairing = Pairing(ours, theirs, match)
    if not any(pair.model.is_leaf or pair.other.is_leaf for pair in pairing.pairs):
        raise _nothing_matched(pairing, ours.visits, theirs.visits)
    wide = None if truth is None else Truth(model, args, fn, ours, truth, local, rtol)
    limits = (lambda p: limits_of(p, rtol)) if wide is None else wide.limits
    compared = Compared(pairing.pairs, ours, theirs, limits, local)
    rows, backward = compared.rows, None
    if grad:
        backward = both_backward(ours, theirs, compared)
        rows = compared.with_cotangents(*backward)
    parameters = parameter_rows(ours, theirs, pairing, rtol, backward)
    rows = with_notes(rows, pairing)
    if wide is not None:
        rows = wide.said_of(rows, pairing.pairs)
    return Comparison(rows, culprits(rows, pairing), _unmatched(pairing), parameters)


def _checked(match: Any) -> dict[str, str | None]:
    fine = lambda key, one: isinstance(key, str) and isinstance(one, str | None)
    if match is None:
        return {}
    if not isinstance(match, Mapping) or not all(fine(*x) for x in match.items()):
        raise TypeError(
            "`match` is a dict from patterns over the keys of the model to such of the "
            "other, or to `None` for what isn't compared, as in "
            f"`match={{'layers.*.attn': 'blocks.*.attention'}}`; got {match!r}."
        )
    return dict(match)


def _other_side(
    other: Any,
    args: tuple[Any, ...],
    fn: Callable[..., Any],
    to_other: Callable[..., Any] | None,
    ours: EquinoxSide,
) -> AbstractSide:
    if is_log(other):
        return LogSide(as_logs(other), ours.log)
    if not is_torch_module(other) and not places(other, "__call__"):
        raise TypeError(
            "`other` is an Equinox module, a `torch.nn.Module`, a mapping from keys to "
            f"arrays, or the path of a safetensors file; got {other!r}."
        )
    check_inference(other, "other")
    given = args if to_other is None else to_other(*args)
    if is_torch_module(other):
        named = isinstance(given, Mapping)
        return TorchSide(other, given if named else _as_tuple(given))
    return EquinoxSide(other, _as_tuple(given), fn)


def _as_tuple(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, tuple | list) else (given,)


def _check_inputs(
    ours: AbstractSide, theirs: AbstractSide, unasked: set[str], rtol: float | None
) -> None:
    if ours.args is None or theirs.args is None:
        return
    asked = {i: x for i, x in enumerate(ours.args) if f"args[{i}]" not in unasked}
    names = [x.dtype.name for x in (*asked.values(), *theirs.args)]
    usual = tolerance(*names) / 10
    check_inputs(asked, theirs.args, usual if rtol is None else rtol)


def _unmatched(pairing: Pairing) -> list[Unmatched]:
    found = []
    for side, visits in zip(("model", "other"), pairing.unmatched(), strict=True):
        for v in visits:
            misfit = pairing.misfits.get(v)
            why = ""
            if misfit is not None:
                why = f"{shapes_of(v)}, but {misfit.name!r} is {shapes_of(misfit)}"
            elif (around := pairing.single_around(v)) is not None:
                why = f"in {around.name!r}, which is a single call there"
            found.append(Unmatched(side, v.name, v.class_name, why))
    return found


def _nothing_matched(
    pairing: Pairing, mine: list[Visit], theirs: list[Visit]
) -> PeexError:
    for a in mine:
        if a in pairing.misfits:
            return does_not_fit(a, pairing.misfits[a], "parameters")
    keys = [
        nearest("", dict.fromkeys(v.name for v in visits if v.is_leaf))
        for visits in (mine, theirs)
    ]
    return SiteNotFoundError(
        "Nothing of the two models belongs together: no parameters are equal, no keys "
        "alike, and nothing is of the same size at the same place. The model has "
        f"{keys[0]}; the other {keys[1]}. Say what belongs together, as in "
        "`match={'layers.*.attn': 'blocks.*.attention'}`."
    )
