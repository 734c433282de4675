"""What a place in a model does for a metric: experiments with two runs, a clean and a
corrupted one. What comes back are `Effects`.

- Put values of one run into the other, at each place in turn: `sweep`.
- Estimate that from gradients, for all places at once: `attribution`; for all pairs of
  places, of which one is added to what the other reads: `edges`.
- Put in what one place does by way of others: `path`.

What acts at sites is in `_hooks`; nothing of it belongs here.
"""

from .attribution import attribution as attribution
from .edges import edges as edges
from .effects import Effects as Effects
from .path import path as path
from .sweep import sweep as sweep
