"""Where summaries go: each is called with the number of a step and a summary. Any
function of these is one. Of several processes, only the first writes.
"""

import json
import math
import os
from pathlib import Path
from typing import Any

import jax

from .summary import Histogram, Summary


def writes() -> bool:
    """Whether this process is the one that writes."""
    return jax.process_index() == 0


class JSONL:
    """Appends a line to a file: a JSON object with `"step"`, `"steps"` (how many the
    window has) and the numbers by name. What isn't finite is `null`; a histogram is
    `{"counts": [...], "edges": [...]}`.

    !!! Example

        ```python
        import json
        import tempfile
        from pathlib import Path

        import peex as px

        path = Path(tempfile.mkdtemp()) / "run.jsonl"
        sink = px.monitoring.JSONL(path)
        sink(100, px.monitoring.Summary({"layers.0/rms": 0.5}, steps=100))
        json.loads(path.read_text())["layers.0/rms"]  # 0.5
        ```
    """

    def __init__(self, path: str | os.PathLike[str]):
        """**Arguments:**

        - `path`: of the file, which needn't be there; its folder is made.
        """
        self.path = Path(path)

    def __call__(self, step: Any, summary: Summary) -> None:
        if not writes():
            return
        numbers = {name: _plain(value) for name, value in summary.items()}
        line = {"step": int(step), "steps": summary.steps, **numbers}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")


class TensorBoard:
    """Writes scalars (those that are finite) and histograms for TensorBoard, by
    `tensorboardX` (the extra named `tensorboard`).
    """

    def __init__(self, folder: str | os.PathLike[str]):
        """**Arguments:**

        - `folder`: of the run, the `logdir` of TensorBoard.

        **Raises:** `ImportError` without tensorboardX.
        """
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "`px.monitoring.TensorBoard` needs tensorboardX. Install it with "
                '`pip install "peex[tensorboard]"`.'
            ) from error
        self._writer = SummaryWriter(os.fspath(folder)) if writes() else None

    def __call__(self, step: Any, summary: Summary) -> None:
        writer = self._writer
        if writer is None:
            return
        for name, value in summary.items():
            if not isinstance(value, Histogram):
                if math.isfinite(value):
                    writer.add_scalar(name, value, int(step))
                continue
            low, middle, high = _bins(value)
            counts, n = list(value.counts), sum(value.counts)
            mean = sum(c * x for c, x in zip(counts, middle, strict=True))
            square = sum(c * x * x for c, x in zip(counts, middle, strict=True))
            writer.add_histogram_raw(
                name,
                min=low[0],
                max=high[-1],
                num=n,
                sum=mean,
                sum_squares=square,
                bucket_limits=high,
                bucket_counts=counts,
                global_step=int(step),
            )
        writer.flush()

    def close(self) -> None:
        """Closes the file."""
        if self._writer is not None:
            self._writer.close()


class WandB:
    """Logs to a run of Weights & Biases that is there already, as `wandb.init()`
    returned it.
    """

    def __init__(self, run: Any):
        """**Arguments:**

        - `run`: it is given a dict by `run.log(numbers, step=step)`.
        """
        self._run = run

    def __call__(self, step: Any, summary: Summary) -> None:
        if writes():
            numbers = {name: _for_wandb(value) for name, value in summary.items()}
            self._run.log(numbers, step=int(step))


def _for_wandb(value: Any) -> Any:
    if not isinstance(value, Histogram):
        return value
    import wandb  # pyright: ignore[reportMissingImports]  # who has a run has it

    low, _, high = _bins(value)
    return wandb.Histogram(np_histogram=(list(value.counts), [*low, high[-1]]))


def _bins(histogram: Histogram) -> tuple[list[float], list[float], list[float]]:
    """Lower end, middle and upper end of each bin. The first and the last one, which
    have no end, are as wide as the ones next to them.
    """
    edges = list(histogram.edges)
    first = edges[1] - edges[0] if len(edges) > 1 else 1.0
    last = edges[-1] - edges[-2] if len(edges) > 1 else 1.0
    low = [edges[0] - first, *edges]
    high = [*edges, edges[-1] + last]
    return low, [(a + b) / 2 for a, b in zip(low, high, strict=True)], high


def _plain(value: Any) -> Any:
    if isinstance(value, Histogram):
        return value._asdict()
    return value if math.isfinite(value) else None
