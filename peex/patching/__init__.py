"""What a place in a model does for a metric: experiments with two runs, a clean and a
corrupted one.

What comes back are `Effects`. What acts at sites is in `_hooks`; nothing of it belongs
here.
"""

from .effects import Effects as Effects
