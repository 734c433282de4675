"""How activations grow with the width of a model: the check of a parametrisation."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from .._errors import PeexError
from .._table import Column, Shown, Table
from .._wrappers.types import Where
from .monitor import Monitor
from .slopes_plot import plot
from .stats import Stats


@dataclasses.dataclass(frozen=True, eq=False)
class CoordCheck(Shown):
    """What [`peex.monitoring.coord_check`][] has measured. Printed, it is a table of
    the slopes.

    - `widths`: of the models.
    - `rms`: of what each site returns, by its name: shape `(widths, seeds, steps)`.
    """

    widths: tuple[int, ...]
    rms: dict[str, Float[np.ndarray, "widths seeds steps"]]

    @property
    def slopes(self) -> dict[str, Float[np.ndarray, "steps"]]:
        """For each site and step, that of the line through `log(rms)` (its mean over
        seeds) over `log(width)`, by least squares: `rms` grows as `width ** slope`. NaN
        where an rms is zero or not finite.
        """
        x = np.log2(self.widths)
        x = x - x.mean()
        found = {}
        with np.errstate(divide="ignore", invalid="ignore"):
            for site, rms in self.rms.items():
                y = np.log2(rms).mean(axis=1)
                y = y - y.mean(axis=0)
                found[site] = np.where(
                    np.isfinite(y).all(axis=0), x @ y / np.sum(x**2), np.nan
                )
        return found

    def plot(self) -> list[Any]:
        """Draws the rms of each site over the width, a picture for each step, with
        matplotlib. In a good parametrisation the lines are flat at all steps.

        **Returns:** The axes of the pictures, of one figure.

        **Raises:** `ImportError` without matplotlib (the extra `experiments`).
        """
        return plot(self.widths, self.rms, self.slopes)

    def _table(self) -> Table:
        steps = next(iter(self.rms.values())).shape[-1]
        columns = [Column(f"step {i}", right=True) for i in range(steps)]
        rows = [
            [site, *(f"{slope:.2f}" for slope in slopes)]
            for site, slopes in self.slopes.items()
        ]
        notes = [f"slopes of log(rms) over log(width), of {list(self.widths)}"]
        return Table([Column("site", flexible=True), *columns], rows, notes)


def coord_check(
    make: Callable[[int, Array], Any],
    widths: Sequence[int],
    *batch: Any,
    loss: Callable[..., Any],
    optimiser: Any = None,
    steps: int = 3,
    seeds: int = 3,
    where: Where = None,
) -> CoordCheck:
    """Trains models of several widths for some steps, and says how the activations of
    each site grow with the width. In a good parametrisation they don't, neither when
    the model is made nor after some steps, so that a learning rate that was found at
    one width is right at another ([Yang et al., 2022](https://arxiv.org/abs/2203.03466),
    "coordinate check").

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import optax
        import peex as px

        def make(width, key):
            return eqx.nn.MLP(3, 1, width, depth=1, key=key)

        def loss(model, xs):
            return jnp.mean(jax.vmap(model)(xs) ** 2)

        check = px.monitoring.coord_check(
            make, [8, 16], jnp.ones((4, 3)), loss=loss, optimiser=optax.sgd(0.1)
        )
        check.slopes["layers.1"]  # one for each step
        ```

    **Arguments:**

    - `make`: `make(width, key)` returns a model.
    - `widths`: two or more.
    - `*batch`: what `loss` is given behind the model, the same at each step. One that
        depends on the width is a function of it.
    - `loss`: `loss(model, *batch)`, a scalar.
    - `optimiser`: of optax, or a function of the width that returns one, for learning
        rates that depend on it. `None`: the models aren't trained, and only step 0 is
        measured.
    - `steps`: at how many steps, the first one (0) before any update.
    - `seeds`: how many models of each width, over which `log(rms)` is averaged.
    - `where`: which sites, as for [`peex.ForwardHook`][].

    **Returns:**

    A [`peex.monitoring.CoordCheck`][].

    **Raises:**

    `ValueError` for fewer than two widths, [`peex.PeexError`][] where models of two
    widths have different sites.
    """
    widths = tuple(widths)
    if len(set(widths)) < 2 or len(set(widths)) < len(widths):
        raise ValueError(
            "A slope takes two or more different widths, as in "
            f"`px.monitoring.coord_check(make, [64, 128, 256], ...)`; got {widths}."
        )
    steps = steps if optimiser is not None else 1
    monitor = Monitor(loss, forward=Stats("rms"), where=where)
    found: list[list[list[dict[str, float]]]] = []
    for width in widths:
        mine: Any = optimiser
        if optimiser is not None and not hasattr(optimiser, "update"):
            mine = optimiser(width)
        given = [x(width) if callable(x) else x for x in batch]
        run = _Run(monitor, mine, given)
        found.append([run(make(width, jax.random.key(i)), steps) for i in range(seeds)])
    sites = list(found[0][0][0])
    for width, of_width in zip(widths, found, strict=True):
        other = list(of_width[0][0])
        if set(other) != set(sites):
            name = sorted(set(other) ^ set(sites))[0].removesuffix("/rms")
            raise PeexError(
                f"The models of width {widths[0]} and {width} have different sites: "
                f"{name!r} is in one alone. Make models that differ in their width "
                "alone, or choose what they share with `where`."
            )
    rms = {
        site.removesuffix("/rms"): np.array(
            [[[step[site] for step in run] for run in runs] for runs in found]
        )
        for site in sites
    }
    return CoordCheck(widths, rms)


class _Run:
    """Trains models of one width, compiled once."""

    def __init__(self, monitor: Monitor, optimiser: Any, batch: Sequence[Any]):
        self._monitor = monitor
        self._optimiser = optimiser
        self._batch = batch
        self._step = eqx.filter_jit(self._trained)

    def __call__(self, model: Any, steps: int) -> list[dict[str, float]]:
        monitor = self._monitor
        state, found = monitor.init(model, *self._batch), []
        opt_state = None
        if self._optimiser is not None:
            opt_state = self._optimiser.init(eqx.filter(model, eqx.is_inexact_array))
        for _ in range(steps):
            model, opt_state, state = self._step(model, opt_state, state, self._batch)
            summary, state = monitor.read(state)
            found.append(summary)
        return found

    def _trained(self, model: Any, opt_state: Any, state: Any, batch: Any) -> Any:
        (_, state), grads = self._monitor(model, state, *batch)
        if self._optimiser is not None:
            parameters = eqx.filter(model, eqx.is_inexact_array)
            updates = self._optimiser.update(grads, opt_state, parameters)
            updates, opt_state = updates
            model = eqx.apply_updates(model, updates)
        return model, opt_state, state
