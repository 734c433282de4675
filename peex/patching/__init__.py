"""What a place in a model does for a metric: experiments with two runs, a clean and a
corrupted one. What comes back are `Effects`.

- Put values of one run into the other, at each place in turn: `sweep`.

What acts at sites is in `_hooks`; nothing of it belongs here.
"""

from .effects import Effects as Effects
from .sweep import sweep as sweep
