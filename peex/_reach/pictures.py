"""Pictures of what reaches what: as a diagram, and as a matrix."""

from collections.abc import Mapping, Sequence
from typing import Any


_ARROWS = {"direct": "-->", "both": "-->", "through": "==>", "value": "-.->"}
_COLORS = {
    "": "#ffffff",
    "value": "#d0d0d0",
    "through": "#f2b56b",
    "both": "#7fbf7b",
    "direct": "#3b7fb6",
}


def mermaid(
    parameters: Mapping[str, Any],
    states: Mapping[str, Any],
    groups: Sequence[tuple[str, ...]],
) -> str:
    """See `Reach.to_mermaid`."""
    name = {key: f"s{i}" for i, key in enumerate(states)}
    lines = ["flowchart LR"]
    for i, group in enumerate(groups):
        lines.append(f'  subgraph g{i}["group {i}"]')
        lines += [f"    {name[key]}(({_quoted(key)}))" for key in group]
        lines.append("  end")
    arrows: list[str] = []
    for i, (key, reached) in enumerate(parameters.items()):
        if reached.states:
            lines.append(f"  p{i}[{_quoted(key)}]")
            arrows += _arrows(f"p{i}", reached, name)
    for key, reached in states.items():
        arrows += _arrows(name[key], reached, name)
    return "\n".join([*lines, *arrows])


def _quoted(key: str) -> str:
    return f'"{key.replace(chr(34), "#quot;")}"'


def _arrows(tail: str, reached: Any, name: Mapping[str, str]) -> list[str]:
    return [
        f"  {tail} {_ARROWS[link.how]} {name[key]}"
        for key, link in reached.states.items()
    ]


def plot(parameters: Mapping[str, Any], states: Mapping[str, Any], ax: Any) -> Any:
    """See `Reach.plot`."""
    try:
        import matplotlib.pyplot as plt
        from matplotlib.colors import ListedColormap
        from matplotlib.patches import Patch
    except ImportError as error:
        raise ImportError(
            "`Reach.plot` needs matplotlib. Install it with "
            '`pip install "peex[experiments]"`.'
        ) from error

    rows = [*parameters.values(), *states.values()]
    if ax is None:
        size = 2.5 + 0.5 * len(states), 1.5 + 0.25 * len(rows)
        _, ax = plt.subplots(figsize=size, layout="constrained")
    kinds = list(_COLORS)
    how = lambda r, key: r.states[key].how if key in r.states else ""
    codes = [[kinds.index(how(r, key)) for key in states] for r in rows]
    if rows and states:
        ax.imshow(
            codes,
            cmap=ListedColormap(list(_COLORS.values())),
            vmin=-0.5,
            vmax=len(kinds) - 0.5,
            aspect="auto",
        )
    ax.set_xticks(range(len(states)), list(states), rotation=45, ha="right")
    ax.set_yticks(range(len(rows)), [r.key for r in rows])
    ax.set_xticks([i - 0.5 for i in range(len(states) + 1)], minor=True)
    ax.set_yticks([i - 0.5 for i in range(len(rows) + 1)], minor=True)
    ax.grid(which="minor", color="#999999", linewidth=0.5)
    ax.tick_params(which="minor", length=0)
    ax.axhline(len(parameters) - 0.5, color="black", linewidth=1.5)
    ax.set_xlabel("state after one step")
    ax.set_ylabel("parameters, then the state before")
    there = [kind for kind in kinds if any(kinds.index(kind) in row for row in codes)]
    patches = [Patch(color=_COLORS[kind], label=kind) for kind in there if kind]
    if patches:
        ax.legend(handles=patches, loc="upper left", bbox_to_anchor=(1, 1))
    return ax
