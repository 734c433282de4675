"""Which parameter reaches which state in one step: `px.reach`."""

from typing import Any

from .._program.derivatives import Asked
from .._program.flow import find_flow
from .._report.abstract_run import run_abstractly
from .._sites.places import places
from .._sites.select import default_of
from .._wrappers.plan import check_method, root_method_of
from .._wrappers.types import Method
from .arguments import as_shapes, find_arguments
from .make import Analysis, analysis
from .result import Reach
from .state import chosen, NewState, State


def reach(
    model: Any,
    *args: Any,
    state: State = 1,
    new_state: NewState = None,
    method: Method = "__call__",
    **kwargs: Any,
) -> Reach:
    """Says which parameter of a recurrent model reaches which of its hidden states, and
    which output, in one step, and how: directly, or through the weights of others. The
    call is only traced, and nothing is computed.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        class Model(eqx.Module):
            cell: eqx.nn.GRUCell
            out: eqx.nn.Linear

            def __call__(self, x, h):
                h = self.cell(x, h)
                return self.out(h), h

        key1, key2 = jax.random.split(jax.random.key(0))
        cell = eqx.nn.GRUCell(10, 32, key=key1)
        model = Model(cell, eqx.nn.Linear(32, 5, key=key2))
        reach = px.reach(model, jnp.ones(10), jnp.ones(32))
        str(reach)  # a table, as `print` shows it
        reach["cell.weight_hh"].states["h"].how  # 'direct'
        reach.excluded  # {'out.weight': 'non_temporal', 'out.bias': 'non_temporal'}
        ```

    A path from a parameter to a state is *through* other parameters if it passes a
    contraction (a matrix product, a convolution) with what comes from these alone,
    while it itself brings what depends on data: as a layer's weight reaches the state
    of the next layer. Elementwise parameters don't make it so. Every other path is
    *direct*: the array is what a rule for online learning would have a trace of.

    What is said is that of the program, not of some values: it holds wherever a
    derivative may not be zero, by branches that aren't taken, too. Which operation has
    a derivative is asked of JAX. Arrays are taken as wholes: of two states that are
    joined to one array each is made of both.

    **Arguments:**

    - `model`: any Equinox module, or a pytree of modules. Its arrays, and those among
        the arguments, may be `jax.ShapeDtypeStruct`s.
    - `*args`, `**kwargs`: as for one step of the model.
    - `state`: which of the arguments are the state: a position or name, or several. By
        default the second one. An `eqx.nn.State` always is. `None`: what the scans of
        the program itself carry, as in a model that runs over a whole sequence; their
        keys are `"./scan[0]"`, `"rnn/scan[0]"`, and of each there is one step. `()` if
        there is none.
    - `new_state`: where in the output the next state is: a position, a name, or a
        function of the output; one for each of `state` if there are several. By default
        it is the one part of the output that is like the state.
    - `method`: as for [`peex.ForwardHook`][].

    **Returns:**

    A [`peex.Reach`][].

    **Raises:**

    [`peex.PeexError`][] if the state isn't among the arguments, or if it isn't clear
    where in the output the new one is.
    """
    return analysed(model, args, kwargs, state, new_state, method).reach


def analysed(
    model: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    state: State,
    new_state: NewState,
    method: Method,
) -> Analysis:
    """What `reach` finds, with where in the call the arrays are."""
    check_method(model, method)
    args, kwargs = as_shapes((args, kwargs))
    arguments = find_arguments(model, method, args, kwargs)
    wanted = chosen(arguments, state)
    root_method = root_method_of(model, method)
    at = {place.name: place for place in places(model, root_method)}
    called = [default_of(p, root_method) for p in at.values() if p.called]
    abstract = run_abstractly(model, called, None, root_method, method, args, kwargs)
    flow = find_flow(abstract.jaxpr, abstract.depth, Asked())
    of_scans = state is None
    return analysis(model, abstract, flow, arguments, wanted, new_state, of_scans)
