"""The tables of `docs/performance.md`, from what `run.py --json` wrote:
`python benchmarks/markdown.py results.json`.
"""

import argparse
import json
import pathlib
from collections.abc import Sequence
from typing import Any


OURS = ("unhooked", "peex", "value_and_grad", "by hand", "checkify")


def tables(results: dict[str, Any]) -> str:
    where, rows = results["machine"], results["rows"]
    versions = ", ".join(f"{name} {v}" for name, v in where["versions"].items())
    peers = dict.fromkeys(n for row in rows for n in row["cells"] if n not in OURS)
    with_peers = [row for row in rows if set(row["cells"]) & set(peers)]
    return "\n\n".join(
        [
            f"{where['processor']}, {where['cores']} cores, Python {where['python']}, "
            f"{versions}; {where['date'].partition(' ')[0]}.",
            _table(
                ["figure", "case", *OURS, "target", "met"],
                [[*_cells(row, OURS), row["target"], _met(row)] for row in rows],
            ),
            "Other libraries, next to their own models without hooks where they have "
            "some:",
            _table(
                ["figure", "case", "peex", *peers],
                [_cells(row, ["peex", *peers]) for row in with_peers],
            ),
        ]
    )


def _cells(row: dict[str, Any], columns: Sequence[str]) -> list[str]:
    return [row["figure"], row["case"], *(row["cells"].get(c, "") for c in columns)]


def _met(row: dict[str, Any]) -> str:
    if row["limit"] is None:
        return ""
    # Which peers are ahead is to be seen in the other table.
    missed = [what for what in row["missed"] if not what.startswith("behind ")]
    return "; ".join(missed) or "yes"


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, rule, *lines])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", type=pathlib.Path)
    print(tables(json.loads(parser.parse_args().json.read_text())))
