"""What a model has to hook, found without running it: `peex.sites`."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .._sites.places import Place, places, public_methods, static_modules
from .._sites.walk import is_function
from .._table import Column, Shown, Table
from .._text import shown_bytes, shown_count
from .parameters import (
    HasParameters,
    Parameter,
    parameter_notes,
    Parameters,
    parameters_dict,
)


@dataclasses.dataclass(frozen=True)
class SiteInfo(HasParameters):
    """One place of a model.

    - `key`: its name, for `where` and in a log.
    - `class_name`: of the module; `"function"` for a function.
    - `chosen`: what chooses it. `"default"`: `where=None` (it is a leaf module), and
        everything else. `"where"`: a `where` that names it. `"method"`: only the name
        of a method, as in `where="embed:attend"`. `"never"`: it can't be hooked, since
        it is in a static field.
    - `methods`: its public methods other than `__call__`.
    - `parameters`: the arrays inside.
    - `shared_with`: the keys of the other places, neither around it nor inside of it,
        that hold some of the same arrays.
    """

    key: str
    class_name: str
    chosen: str
    methods: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    shared_with: tuple[str, ...]


class Sites(Shown, Mapping[str, SiteInfo]):
    """What a model has to hook, by key, in the order of the model. Printed, a table.

    **Attributes:**

    - `parameters`: all arrays of the model, each once.
    """

    def __init__(
        self, infos: Iterable[SiteInfo], parameters: tuple[Parameter, ...]
    ) -> None:
        self._infos = {info.key: info for info in infos}
        self.parameters = parameters

    def __getitem__(self, key: str) -> SiteInfo:
        return self._infos[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def __repr__(self) -> str:
        default = sum(i.chosen == "default" for i in self.values())
        return f"<Sites: {len(self)} places, {default} chosen by default>"

    def to_dict(self) -> dict[str, Any]:
        """All of it as dicts, lists, strings and numbers, as for JSON."""
        return {
            "sites": [
                {
                    "key": info.key,
                    "class": info.class_name,
                    "chosen": info.chosen,
                    "methods": list(info.methods),
                    "parameters": info.parameter_count,
                    "parameter_bytes": info.parameter_bytes,
                    "shared_with": list(info.shared_with),
                }
                for info in self.values()
            ],
            "parameters": parameters_dict(self.parameters),
        }

    def _table(self) -> Table:
        chosen = {
            "default": "default",
            "where": "where names it",
            "method": "a method named",
            "never": "never: static field",
        }
        rows = [
            (
                i.key,
                i.class_name,
                chosen[i.chosen],
                shown_count(i.parameter_count) + ("*" if i.shared_with else ""),
                shown_bytes(i.parameter_bytes),
            )
            for i in self.values()
        ]
        columns = (
            Column("site", flexible=True),
            Column("class", flexible=True),
            Column("chosen by", flexible=True),
            Column("parameters", right=True),
            Column("bytes", right=True),
        )
        return Table(columns, rows, parameter_notes(self.parameters), keyed=True)


def class_name(node: Any) -> str:
    return "function" if is_function(node) else type(node).__name__


def sites(model: Any) -> Sites:
    """What can be hooked in a model, without running it.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import peex as px

        mlp = eqx.nn.MLP(2, 1, 8, depth=2, key=jax.random.key(0))
        sites = px.sites(mlp)
        list(sites)  # ['.', 'layers.0', 'layers.1', 'layers.2', 'activation', ...]
        sites["layers.0"].parameter_count  # 24
        str(sites)  # a table, as `print` shows it
        ```

    **Arguments:**

    - `model`: any Equinox module, or a pytree of modules. Its arrays may be
        `jax.ShapeDtypeStruct`s, as `eqx.filter_eval_shape` makes them.

    **Returns:**

    A mapping from keys to what is known of each place: class, parameters (those that
    are shared are recognised, and counted once), and what chooses it. Whether it runs,
    and what flows there, says [`peex.report`][]. The arguments of each are a site too:
    `"layers.0:in"`.
    """
    parameters = Parameters(model)
    found = [(p, _chosen(p)) for p in places(model, "__call__")]
    found = [(p, how) for p, how in found if how != "method" or public_methods(p.node)]
    shared = {i for i, p in parameters.by_id.items() if len(p.uses) > 1}
    held = {p.key: shared.intersection(parameters.ids_under(p.key)) for p, _ in found}
    holders = [p for p, _ in found if held[p.key]]
    related = lambda a, b: a[: len(b)] == b or b[: len(a)] == a
    infos = []
    for place, how in found:
        mine = held[place.key]
        others = (
            p.name
            for p in holders
            if mine & held[p.key] and not related(p.key, place.key)
        )
        infos.append(_info(place, how, parameters.under([place.key]), tuple(others)))
    for place in static_modules(model):
        inside = Parameters(place.node).all
        infos.append(_info(place, "never", inside, ()))
    return Sites(infos, parameters.all)


def _chosen(place: Place) -> str:
    if place.is_leaf:
        return "default"
    return "where" if place.called or is_function(place.node) else "method"


def _info(
    place: Place, how: str, inside: tuple[Parameter, ...], others: tuple[str, ...]
) -> SiteInfo:
    name = class_name(place.node)
    return SiteInfo(place.name, name, how, public_methods(place.node), inside, others)
