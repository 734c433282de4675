"""Watching a training.

A `Monitor` keeps statistics (`Stats`) of its steps in a `MonitorState`, of fixed size.
What is read of that is a `Summary` (of numbers, and `Histogram`s), and goes to a sink:
`JSONL`, `TensorBoard`, `WandB`, `LiveTable`. `coord_check` measures how activations
grow with the width of a model; it hands back a `CoordCheck`. What acts at sites in
general is in `_hooks`; nothing of it belongs here.
"""

from .coordinates import coord_check as coord_check, CoordCheck as CoordCheck
from .live_table import LiveTable as LiveTable
from .monitor import Monitor as Monitor
from .sinks import JSONL as JSONL, TensorBoard as TensorBoard, WandB as WandB
from .state import MonitorState as MonitorState
from .stats import Stats as Stats
from .summary import Histogram as Histogram, Summary as Summary
