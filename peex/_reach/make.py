"""From the flow of a program to names: which parameter reaches which state."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .._engine.values import once
from .._program.edges import Carry, Flow
from .._program.reach import Found, Reaching
from .._program.spread import bits
from .._report.abstract_run import AbstractRun
from .._report.parameters import is_array_or_shape, Parameters
from .arguments import Argument, Leaf, named_arrays
from .result import Link, Reach, Reached
from .state import find_new, NewState, state_leaves


class Source(NamedTuple):
    """An array that may reach others: what is known of it, and its value in a flow."""

    key: str
    uses: tuple[str, ...]
    kind: str
    shape: tuple[int, ...]
    dtype: Any
    node: int


class Target(NamedTuple):
    """An array that may be reached: its value in a flow, and the loops that may not go
    on for it.
    """

    key: str
    node: int | None
    cut: frozenset[int] = frozenset()


class Analysis(NamedTuple):
    """What was found, and where in a call the arrays are.

    - `places`: of each parameter, which of the leaves of the model it is.
    - `state`: the arrays of the state, by their places among those of all arguments.
    - `new`: of each of these, which array of the output is the new one; `None` if it
        isn't returned.
    """

    reach: Reach
    places: dict[str, tuple[int, ...]]
    state: list[Leaf]
    new: list[int | None]


def analysis(
    model: Any,
    abstract: AbstractRun,
    flow: Flow,
    arguments: Sequence[Argument],
    wanted: Sequence[Argument],
    new_state: NewState,
    of_scans: bool,
) -> Analysis:
    """What the flow of a run says of the model."""
    parameters, places = _parameters(model, flow)
    plain, of_equinox = state_leaves(arguments, wanted)
    outputs, inputs = flow.outputs, flow.inputs[len(parameters) :]
    same = lambda i: outputs[i]
    new = find_new(abstract.output, plain, of_equinox, new_state, same)
    of_state = [leaf for _, leaves in (*plain, *of_equinox) for leaf in leaves]
    positions = {leaf.position for leaf in of_state}
    source = lambda kind, leaf: Source(
        leaf.key, (leaf.key,), kind, leaf.shape, leaf.dtype, inputs[leaf.position]
    )
    states = [source("state", leaf) for leaf in of_state]
    everything = [leaf for a in arguments for leaf in a.leaves]
    others = [source("input", x) for x in everything if x.position not in positions]
    returned = [new.get(leaf.position) for leaf in of_state]
    targets = [
        Target(leaf.key, None if i is None else outputs[i])
        for leaf, i in zip(of_state, returned, strict=True)
    ]
    for scan in flow.scans if of_scans else ():
        # One step of all of them, but for those that run whole within one.
        cut = frozenset(s.loop for s in flow.scans if scan.loop not in s.around)
        for before, after in _carried(scan, cut):
            states.append(before)
            targets.append(after)
    named = enumerate(named_arrays("out", abstract.output, {}))
    rest = [Target(key, outputs[i]) for i, (key, _) in named if i not in new.values()]
    sources = [*parameters, *states, *others]
    reach = _found(flow, sources, len(parameters), targets, rest)
    names = [parameter.key for parameter in parameters]
    return Analysis(reach, dict(zip(names, places, strict=True)), of_state, returned)


def _found(
    flow: Flow,
    sources: Sequence[Source],
    number: int,
    states: Sequence[Target],
    rest: Sequence[Target],
) -> Reach:
    """What the sources reach, of which so many are parameters."""
    reaching = Reaching(flow, [s.node for s in sources], (1 << number) - 1)
    to_states = _links(sources, reaching, "state", states)
    to_rest = _links(sources, reaching, "output", rest)
    made: dict[str, list[Reached]] = {"parameter": [], "state": [], "input": []}
    for i, source in enumerate(sources):
        reached = _reached(i, source, reaching, to_states[i], to_rest[i])
        made[source.kind].append(reached)
    names = [target.key for target in rest]
    return Reach(made["parameter"], made["state"], made["input"], names)


def _parameters(model: Any, flow: Flow) -> tuple[list[Source], list[tuple[int, ...]]]:
    """Each array of a model once, with all of its names, in the order of a program; and
    which leaves of the model it is.
    """
    arrays = lambda tree: [x for x in jtu.tree_leaves(tree) if is_array_or_shape(x)]
    unique, places = once(arrays(model))
    # In a copy each is an object of its own, also where two are one.
    shape = lambda x: (
        jax.ShapeDtypeStruct(x.shape, x.dtype) if is_array_or_shape(x) else x
    )
    copy = jtu.tree_map(shape, model)
    known = Parameters(copy).by_id
    uses: list[list[str]] = [[] for _ in unique]
    for i, x in zip(places, arrays(copy), strict=True):
        uses[i] += known[id(x)].uses
    sources = [
        Source(mine[0] or ".", tuple(mine), "parameter", tuple(x.shape), x.dtype, node)
        for mine, x, node in zip(uses, unique, flow.inputs, strict=False)
    ]
    leaves = [i for i, x in enumerate(jtu.tree_leaves(model)) if is_array_or_shape(x)]
    at: list[list[int]] = [[] for _ in unique]
    for i, leaf in zip(places, leaves, strict=True):
        at[i].append(leaf)
    return sources, [tuple(mine) for mine in at]


def _carried(scan: Carry, cut: frozenset[int]) -> list[tuple[Source, Target]]:
    """What a scan carries that can have a derivative, in one iteration and the next."""
    name = f"{scan.call}/scan[{scan.number}]"
    inexact = [
        n
        for n, aval in enumerate(scan.avals)
        if jnp.issubdtype(aval.dtype, jnp.inexact)
    ]
    made = []
    for n in inexact:
        key = f"{name}.{n}" if len(inexact) > 1 else name
        aval = scan.avals[n]
        source = Source(key, (key,), "state", aval.shape, aval.dtype, scan.before[n])
        made.append((source, Target(key, scan.after[n], cut)))
    return made


def _links(
    sources: Sequence[Source],
    reaching: Reaching,
    kind: str,
    targets: Sequence[Target],
) -> list[dict[str, Link]]:
    """For each source what it reaches of the targets."""
    links: list[dict[str, Link]] = [{} for _ in sources]
    found: dict[int, Found] = {}
    for cut in dict.fromkeys(target.cut for target in targets):
        mine = [j for j, target in enumerate(targets) if target.cut == cut]
        answers = reaching.to(kind, [targets[j].node for j in mine], cut)
        found |= dict(zip(mine, answers, strict=True))
    for j, target in enumerate(targets):
        for i in bits(found[j].value):
            links[i][target.key] = _link(sources, found[j], i)
    return links


def _link(sources: Sequence[Source], found: Found, i: int) -> Link:
    direct, through = found.direct >> i & 1, found.through >> i & 1
    if not direct and not through:
        return Link("value")
    masks = [
        factors for factors, arriving in found.factors.items() if arriving >> i & 1
    ]
    names = dict.fromkeys(sources[k].key for mask in masks for k in bits(mask))
    how = "both" if direct and through else "through" if through else "direct"
    return Link(how, tuple(names) if through else ())


def _reached(
    i: int,
    source: Source,
    reaching: Reaching,
    states: Mapping[str, Link],
    outputs: Mapping[str, Link],
) -> Reached:
    derived = lambda links: any(link.how != "value" for link in links.values())
    kind = "state" if states else "output"
    links = states or outputs
    cut_by: list[tuple[str, str]] = []
    if derived(states):
        reason = None
    elif not states and derived(outputs):
        reason = "non_temporal"
    elif links:
        cut_by = reaching.cuts(kind, i)
        stopped = any(name == "stop_gradient" for name, _ in cut_by)
        reason = "stop_gradient" if stopped else "no_derivative"
    else:
        reason = "unused"
    by = reaching.by(kind, i, derived(links))
    return Reached(
        source.key,
        source.uses,
        source.kind,
        source.shape,
        source.dtype,
        states,
        outputs,
        tuple(by),
        reason,
        tuple(cut_by),
    )
